"""The figures of deltas: what they show is read back from what was drawn."""

import itertools
import math
import random
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ablations.delta.figures import (
    MOST_LINES,
    PairLines,
    comparison,
    draw_lines,
    heatmap,
    plot_reference,
    side_by_side,
)
from ablations.drawing.canvas import GREENS, PURPLES, contrasting, drawing
from ablations.drawing.grid import Grid
from ablations.drawing.heatmaps import FONT_PT, PAGE_IN, column_labels, draw_heatmaps, scale_of
from ablations.paper.published import published_grid, published_names
from layerswap_method.errors import InputError, LayerSwapError
from tests.fresh_process import printed

PAPER = tuple(published_grid("math expert #1").columns)
MOE = (
    *("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
    *("self_attn.o_proj.weight", "self_attn.q_norm.weight", "self_attn.k_norm.weight"),
    *("mlp.gate.weight", "mlp.experts.gate_proj.weight", "mlp.experts.up_proj.weight"),
    *("mlp.experts.down_proj.weight", "mlp.shared_expert.gate_proj.weight"),
    *("mlp.shared_expert.up_proj.weight", "mlp.shared_expert.down_proj.weight"),
    *("mlp.shared_expert_gate.weight", "input_layernorm.weight", "post_attention_layernorm.weight"),
)


def _grid(layers: int, columns: Sequence[str] = PAPER, **changes: Any) -> Grid:
    draw = random.Random(layers)
    values = tuple(tuple(draw.random() ** 2 for _ in columns) for _ in range(layers))
    settings = {"title": "expert", "values": values, "label": "share", "limits": (0.0, 1.0)}
    return Grid(columns=tuple(columns), **{**settings, **changes})


def _green(share: float) -> tuple[int, ...]:
    """Return the colour of a value on a scale from 0 to 1, in 0 to 255."""
    anchors = np.array([[int(each[at : at + 2], 16) for at in (1, 3, 5)] for each in GREENS])
    # A colour map of matplotlib has 256 steps.
    place = min(255, math.floor(share * 256)) / 255 * (len(anchors) - 1)
    return tuple(np.interp(place, range(len(anchors)), anchors[:, c]) for c in range(3))


def _shown(value: float) -> str:
    return "0" if value == 0 else f"{value:.2f}"


@pytest.mark.parametrize("name", published_names())
def test_a_published_expert_is_drawn_as_it_is_printed(name: str) -> None:
    grid = published_grid(name)
    with drawing("test"):
        axes, bar = draw_heatmaps([grid]).axes
        (mesh,) = axes.collections
        assert (mesh.get_array() == grid.array()).all()
        corners = mesh.get_coordinates()
        assert (corners[0, 0].tolist(), corners[-1, -1].tolist()) == ([-0.5, -0.5], [6.5, 31.5])
        assert axes.get_ylim() == (-0.5, 31.5)  # layer 0 at the bottom
        numbers = {each.get_position(): each for each in axes.texts[:-2]}
        assert len(numbers) == 32 * 7
        mesh.update_scalarmappable()
        colors = 255 * mesh.get_facecolors().reshape(32, 7, 4)[..., :3]
        for (layer, column), value in np.ndenumerate(grid.array()):
            assert numbers[column, layer].get_text() == _shown(float(value))
            assert colors[layer, column] == pytest.approx(_green(float(value)), abs=0.51)
        assert mesh.get_clim() == bar.get_ylim() == (0.0, 1.0)
        labels = [label.get_text() for label in axes.get_xticklabels()]
        assert labels == ["q", "k", "v", "o", "gate", "up", "down"]
        assert [label.get_text() for label in axes.get_yticklabels()] == [*map(str, range(32))]
        assert [each.get_text() for each in axes.texts[-2:]] == [name, grid.note]


@pytest.mark.parametrize("name", published_names())
def test_the_file_shows_every_number_in_its_place(name: str, tmp_path: Path) -> None:
    grid = published_grid(name)
    paths = plot_reference(name, tmp_path)
    slug = name.lower().replace(" #", "-").replace(" ", "-")
    assert [path.name for path in paths] == [f"reference-{slug}.png", f"reference-{slug}.svg"]
    assert paths[0].read_bytes().startswith(b"\x89PNG")
    svg = paths[1].read_text(encoding="utf-8")
    assert "<image" not in svg  # vectors only
    numbers, fills = _cells(svg)
    rows = [[_shown(value) for value in row] for row in reversed(grid.values)]
    assert numbers == rows
    for row, values in zip(fills, reversed(grid.values), strict=True):
        for fill, value in zip(row, values, strict=True):
            assert fill == pytest.approx(_green(value), abs=0.51)


def _cells(svg: str) -> tuple[list[list[str]], list[list[tuple[int, ...]]]]:
    """Return the numbers and the colours of the first mesh in an SVG, from the top left."""
    root = ElementTree.fromstring(svg, ElementTree.XMLParser(target=_with_comments()))
    space = "{http://www.w3.org/2000/svg}"
    (first, *_) = (g for g in root.iter(f"{space}g") if g.get("id") == "QuadMesh_1")
    fills, corners = {}, set()
    for path in first.iter(f"{space}path"):
        where = re.match(r"M ([\d.]+) ([\d.]+)", path.get("d", ""))
        color = re.search(r"fill: #(\w{6})", path.get("style", ""))
        assert where is not None
        assert color is not None
        x, y = (float(each) for each in where.groups())
        corners.add((x, y))
        fills[x, y] = tuple(bytes.fromhex(color[1]))
    # A path begins at the lower left corner of its cell, a text in the middle of it.
    xs, ys = (sorted({corner[axis] for corner in corners}) for axis in (0, 1))
    wide, tall = xs[1] - xs[0], ys[1] - ys[0]
    numbers = {}
    for group in root.iter(f"{space}g"):
        text = next((each.text for each in group if each.tag is ElementTree.Comment), None)
        inner = group.find(f"{space}g")
        if text is None or inner is None:
            continue
        moved = re.match(r"translate\(([\d.]+) ([\d.]+)\)", inner.get("transform", ""))
        if moved is None:
            continue
        x, y = (float(each) for each in moved.groups())
        column, row = math.floor((x - xs[0]) / wide), math.ceil((y - ys[0]) / tall)
        if 0 <= column < len(xs) and 0 <= row < len(ys):
            numbers[column, row] = text.strip()
    assert len(numbers) == len(fills) == len(xs) * len(ys)
    rows = range(len(ys))
    return (
        [[numbers[column, row] for column in range(len(xs))] for row in rows],
        [[fills[x, ys[row]] for x in xs] for row in rows],
    )


def _with_comments() -> Any:
    return ElementTree.TreeBuilder(insert_comments=True)


SIZES = {
    "paper": [_grid(32)],
    "pocket": [_grid(8)],
    "one layer": [_grid(1)],
    "70B": [_grid(80)],
    "MoE": [_grid(48, MOE)],
    "three": [published_grid(name) for name in published_names()[:3]],
    "six": [published_grid(name) for name in published_names()],
    "beside": [_grid(8, title="runs/pocket/swahili/final"), published_grid("Swahili expert #1")],
    "small": [_grid(16, limits=None, values=tuple((3e-5 * n,) * 7 for n in range(16)))],
    "long": [_grid(32, title="an expert with a long name " * 3, note="and a long note " * 9)],
    "signed": [_grid(12, values=tuple((-0.31, 0.2, 0.0, 1.0, -1.0, 0.5, 0.7) for _ in range(12)))],
}


@pytest.mark.parametrize("name", SIZES)
def test_every_number_fits_its_cell_and_the_page(name: str) -> None:
    grids = SIZES[name]
    with drawing("test"):
        canvas = draw_heatmaps(grids, "a headline")
        canvas.draw_without_rendering()
        wide, tall = canvas.get_size_inches()
        assert wide <= PAGE_IN[0] + 0.01
        assert tall <= PAGE_IN[1] + 0.01
        for axes, grid in zip(canvas.axes[:-1], grids, strict=True):  # the last is the bar
            cells = axes.texts[: grid.num_layers * len(grid.columns)]
            sizes = {each.get_fontsize() for each in cells}
            assert len(sizes) == 1
            assert FONT_PT[0] < min(sizes) <= FONT_PT[1]
            frame = axes.get_window_extent()
            width, height = frame.width / len(grid.columns), frame.height / grid.num_layers
            for text in cells:
                box = text.get_window_extent()
                assert box.width < 0.95 * width, text
                assert box.height < 0.95 * height, text
            # Titles, ticks and labels end inside the picture and over no other panel.
            box = axes.get_tightbbox()
            assert box.x0 >= 0
            assert box.y0 >= 0
            assert box.x1 <= canvas.bbox.width
            assert box.y1 <= canvas.bbox.height
        boxes = [axes.get_tightbbox() for axes in canvas.axes]
        for one, other in itertools.combinations(boxes, 2):
            assert not one.overlaps(other)
        assert all(box.x1 <= canvas.bbox.width and box.y0 >= 0 for box in boxes)


def test_several_experts_share_one_scale() -> None:
    low = _grid(4, values=((0.1,) * 7,) * 4, limits=None)
    high = _grid(4, values=((0.4,) * 7,) * 4, limits=None)
    with drawing("test"):
        one, other, bar = draw_heatmaps([low, high]).axes
        limits = {axes.collections[0].get_clim() for axes in (one, other)}
        assert limits == {(0.0, 0.4)} == {bar.get_ylim()}


def test_what_is_not_there_is_hatched() -> None:
    grid = _grid(2, ("q", "k"), values=((math.nan, 0.5), (0.25, math.nan)))
    with drawing("test"):
        axes = draw_heatmaps([grid]).axes[0]
        hatched = [patch.get_xy() for patch in axes.patches if patch.get_hatch()]
        assert hatched == [(-0.5, -0.5), (0.5, 0.5)]
        assert [text.get_text() for text in axes.texts[:-1]] == ["0.50", "0.25"]


@pytest.mark.parametrize(
    ("values", "limits", "texts", "ends"),
    [
        ((0.0, 0.0002, 0.999, 1.0), (0.0, 1.0), ["0", "0.00", "1.00", "1.00"], (0.0, 1.0)),
        ((1.23e-5, 3e-6), None, ["1.2", "0.3"], (0.0, 1.23e-5)),
        ((0.0312, 0.002), None, ["0.031", "0.002"], (0.0, 0.0312)),
        ((-0.001, 0.25), (-1.0, 1.0), ["0.00", "0.25"], (-1.0, 1.0)),
        ((-0.5, 0.25), None, ["-0.50", "0.25"], (-0.5, 0.5)),
        ((0.0, 0.0), None, ["0", "0"], (0.0, 1.0)),
        ((25.0, 120.0), None, ["25", "120"], (0.0, 120.0)),
    ],
)
def test_numbers_are_short_and_true(
    values: tuple[float, ...],
    limits: tuple[float, float] | None,
    texts: list[str],
    ends: tuple[float, float],
) -> None:
    grid = Grid("a", tuple(map(str, range(len(values)))), (values,), "MAV", limits=limits)
    scale = scale_of([grid])
    assert [scale.text(value) for value in values] == texts
    assert scale.limits == ends
    assert scale.label == ("MAV (× 10⁻⁵)" if max(values) == 1.23e-5 else "MAV")


@pytest.mark.parametrize(
    ("columns", "labels"),
    [
        (PAPER, ["q", "k", "v", "o", "gate", "up", "down"]),
        (
            ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"),
            ["c_attn", "attn.c_proj", "c_fc", "mlp.c_proj"],
        ),
        (("self_attn.qkv_proj.weight", "self_attn.o_proj.weight"), ["qkv", "o"]),
        (("self_attn.q_proj.weight", "self_attn.q_proj.bias"), ["q", "bias"]),
        (("mlp.gate.weight", "mlp.gate_proj.weight"), ["gate", "gate_proj"]),
        (("q1.5 × sw", "q2.5 × sw"), ["q1.5 × sw", "q2.5 × sw"]),
    ],
)
def test_columns_have_the_shortest_names_that_tell_them_apart(
    columns: tuple[str, ...], labels: list[str]
) -> None:
    assert column_labels(columns) == labels


def test_moe_columns_stay_apart() -> None:
    labels = column_labels(MOE)
    assert len(set(labels)) == len(MOE) == 16


@pytest.mark.parametrize("colors", [GREENS, PURPLES])
def test_the_colours_go_in_equal_steps_to_the_dark(colors: tuple[str, ...]) -> None:
    lab = np.array([_cielab(color) for color in colors])
    steps = np.linalg.norm(np.diff(lab, axis=0), axis=1)
    # Of 8-bit colours, so not to the last digit.
    assert np.cumsum(steps) / steps.sum() == pytest.approx(np.arange(1, 17) / 16, abs=0.01)
    assert (np.diff(lab[:, 0]) < -1.5).all()
    assert lab[0, 0] > 95
    assert lab[-1, 0] < 20


def _cielab(color: str) -> list[float]:
    srgb = np.array([int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    matrix = [[0.4125, 0.3576, 0.1804], [0.2127, 0.7152, 0.0722], [0.0193, 0.1192, 0.9503]]
    x, y, z = np.cbrt(np.array(matrix) @ linear / (0.9505, 1.0, 1.0888))
    return [116 * y - 16, 500 * (x - y), 200 * (y - z)]


def test_numbers_stand_out_from_every_colour() -> None:
    assert contrasting((1.0, 1.0, 1.0)) == contrasting((1.0, 1.0, 0.0)) == "black"
    assert contrasting((0.0, 0.0, 0.0)) == contrasting((0.0, 0.0, 0.8)) == "white"
    # The grey where both read equally well: L = sqrt(1.05 * 0.05) - 0.05, in sRGB 0.4604.
    assert (contrasting((0.47,) * 3), contrasting((0.45,) * 3)) == ("black", "white")


def test_a_profile_beside_the_published_one(tmp_path: Path) -> None:
    reference = published_grid("Swahili expert #1")
    half = _grid(
        16, values=tuple(tuple(row) for row in reference.array().reshape(16, 2, 7).mean(axis=1))
    )
    found = side_by_side(half, reference, tmp_path / "beside.svg")
    assert found.rho == pytest.approx(1)
    told = "Spearman ρ = 1.00 over 112 cells (32 layers averaged to 16 by depth)"
    svg = (tmp_path / "beside.svg").read_text(encoding="utf-8")
    assert f"<!-- {told} -->" in svg
    assert svg.count("<!-- Swahili expert #1 -->") == 1
    with drawing("test"):
        one, other, _ = draw_heatmaps([half, reference]).axes
        # Equally high, so that the same depth stands at the same height.
        assert one.get_position().height == pytest.approx(other.get_position().height)
        assert [len(axes.get_yticks()) for axes in (one, other)] == [16, 32]


def _pairs(number: int, layers: int = 12) -> list[PairLines]:
    draw = random.Random(number)
    names = itertools.combinations("abcdefgh", 2)
    return [
        PairLines(
            first,
            second,
            tuple(draw.uniform(-1, 1) for _ in range(layers)),
            tuple(draw.uniform(-0.2, 0.2) for _ in range(layers)),
        )
        for first, second in itertools.islice(names, number)
    ]


@pytest.mark.parametrize("number", [1, 3, MOST_LINES])
def test_pairs_are_lines_over_the_layers(number: int) -> None:
    pairs = _pairs(number)
    with drawing("test"):
        canvas = draw_lines(pairs)
        for axes, key in zip(canvas.axes, ("correlation", "cosine"), strict=True):
            lines = [line for line in axes.lines if not line.get_label().startswith("_")]
            assert [line.get_label() for line in lines] == [pair.name for pair in pairs]
            for line, pair in zip(lines, pairs, strict=True):
                assert line.get_xdata().tolist() == list(range(12))
                assert tuple(line.get_ydata()) == getattr(pair, key)
            looks = {(line.get_color(), line.get_marker()) for line in lines}
            assert len(looks) == number
        (legend,) = canvas.legends
        assert [text.get_text() for text in legend.texts] == [pair.name for pair in pairs]


def test_more_pairs_are_columns_of_heatmaps(tmp_path: Path) -> None:
    pairs = _pairs(MOST_LINES + 1)
    comparison(pairs, tmp_path / "pairs.svg")
    svg = (tmp_path / "pairs.svg").read_text(encoding="utf-8")
    assert "<!-- cosine between deltas -->" in svg
    numbers, _ = _cells(svg)
    expected = [[f"{pair.correlation[11 - row]:.2f}" for pair in pairs] for row in range(12)]
    assert [[n.replace("−", "-") for n in row] for row in numbers] == expected


def test_pairs_of_other_depth_are_refused(tmp_path: Path) -> None:
    for pairs in ([], [*_pairs(1, 3), *_pairs(1, 4)]):
        with pytest.raises(ValueError, match="as many layers each"):
            comparison(pairs, tmp_path / "pairs.svg")
    assert list(tmp_path.iterdir()) == []


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"kind 'pgn'; did you mean 'png'\?"):
        heatmap(_grid(2), tmp_path / "a.pgn")


def test_without_matplotlib_it_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(LayerSwapError, match=r"pip install 'layerswap\[plot\]'"):
        plot_reference("math expert #1", tmp_path)
    assert list(tmp_path.iterdir()) == []


_DRAW = """
import hashlib, sys
from pathlib import Path
from ablations.delta.figures import PairLines, comparison, plot_reference
out = Path(sys.argv[1])
plot_reference("math expert #2", out)
comparison([PairLines("a", "b", (0.1, 0.2), (0.3, 0.4))], out / "pairs.svg")
for path in sorted(out.iterdir()):
    print(path.name, hashlib.sha256(path.read_bytes()).hexdigest())
"""


def test_another_process_gives_the_same_bytes(tmp_path: Path) -> None:
    def drawn(seed: int) -> str:
        return printed(_DRAW, str(tmp_path / str(seed)), seed=seed)

    first = drawn(1)
    assert len(first.splitlines()) == 3
    assert first == drawn(2)
