"""The figures of deltas: what they show is read back from what was drawn."""

import itertools
import random
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from ablations.delta.compare import PairComparison
from ablations.delta.figures import (
    MOST_LINES,
    comparison,
    draw_lines,
    heatmap,
)
from ablations.drawing.canvas import drawing
from ablations.drawing.grid import Grid
from ablations.drawing.heatmaps import draw_heatmaps
from ablations.paper.published import published_grid


def test_equally_high_panels_stand_beside_each_other() -> None:
    reference = published_grid("Swahili expert #1")
    rows = reference.array().reshape(16, 2, 7).mean(axis=1)
    half = Grid("half", reference.columns, tuple(map(tuple, rows)), "share", limits=(0.0, 1.0))
    with drawing("test"):
        one, other, _ = draw_heatmaps([half, reference]).axes
        # So the same depth stands at the same height.
        assert one.get_position().height == pytest.approx(other.get_position().height)
        assert [len(axes.get_yticks()) for axes in (one, other)] == [16, 32]


def pair_of(
    first: str, second: str, correlation: Sequence[float], cosine: Sequence[float]
) -> PairComparison:
    return PairComparison(
        first=first,
        second=second,
        cosine=None,
        correlation=None,
        layer_cosine=tuple(cosine),
        layer_correlation=tuple(correlation),
    )


def _pairs(number: int, layers: int = 12) -> list[PairComparison]:
    draw = random.Random(number)
    names = itertools.combinations("abcdefgh", 2)
    return [
        pair_of(
            *pair,
            [draw.uniform(-1, 1) for _ in range(layers)],
            [draw.uniform(-0.2, 0.2) for _ in range(layers)],
        )
        for pair in itertools.islice(names, number)
    ]


@pytest.mark.parametrize("number", [1, 3, MOST_LINES])
def test_pairs_are_lines_over_the_layers(number: int) -> None:
    pairs = _pairs(number)
    with drawing("test"):
        canvas = draw_lines(pairs)
        for axes, key in zip(canvas.axes, ("layer_correlation", "layer_cosine"), strict=True):
            lines = [line for line in axes.lines if not line.get_label().startswith("_")]
            assert [line.get_label() for line in lines] == [
                f"{pair.first} × {pair.second}" for pair in pairs
            ]
            for line, pair in zip(lines, pairs, strict=True):
                assert line.get_xdata().tolist() == list(range(12))
                assert tuple(line.get_ydata()) == getattr(pair, key)
            looks = {(line.get_color(), line.get_marker()) for line in lines}
            assert len(looks) == number
        (legend,) = canvas.legends
        assert [text.get_text() for text in legend.texts] == [
            f"{pair.first} × {pair.second}" for pair in pairs
        ]


def test_more_pairs_are_columns_of_heatmaps(tmp_path: Path) -> None:
    pairs = _pairs(MOST_LINES + 1)
    comparison(pairs, tmp_path / "pairs")
    svg = (tmp_path / "pairs.svg").read_text(encoding="utf-8")
    assert "<!-- cosine between deltas -->" in svg
    numbers = re.findall(r"<!-- (-?\d\.\d\d) -->", svg)
    expected = [f"{pair.layer_correlation[layer]:.2f}" for layer in range(12) for pair in pairs]
    assert numbers[: len(expected)] == [n.replace("-0.00", "0.00") for n in expected]


def test_a_name_with_dollar_signs_is_no_mathematics(tmp_path: Path) -> None:
    drawn: dict[str, list[str]] = {}
    for name in ("a$b$c", "axbxc"):
        grid = Grid(title=name, columns=("q", "k"), values=((0.1, 0.2),) * 2, label="MAV")
        heatmap([grid], tmp_path / "delta")
        comparison([pair_of(name, "d", (0.1, 0.2), (0.3, 0.4))], tmp_path / "lines")
        drawn[name] = [(tmp_path / file).read_text("utf-8") for file in ("delta.svg", "lines.svg")]
    for odd, plain in zip(*drawn.values(), strict=True):
        # As many letters, the two signs among them; in mathematics they would be slanted.
        assert odd.count("#DejaVuSans") == plain.count("#DejaVuSans") > 5
        assert "Oblique" not in odd
