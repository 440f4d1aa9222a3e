"""Heatmaps of grids: what they show is read back from what was drawn."""

import itertools
import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ablations.drawing.canvas import drawing, images_of
from ablations.drawing.grid import Grid
from ablations.drawing.heatmaps import (
    FONT_PT,
    PAGE_IN,
    column_labels,
    contrasting,
    draw_heatmaps,
    scale_of,
)
from ablations.paper.published import published_grid, published_names

PAPER = tuple(published_grid("math expert #1").columns)


def _grid(layers: int, columns: Sequence[str] = PAPER, **changes: Any) -> Grid:
    draw = random.Random(layers)
    values = tuple(tuple(draw.random() ** 2 for _ in columns) for _ in range(layers))
    settings = {"title": "expert", "values": values, "label": "share", "limits": (0.0, 1.0)}
    return Grid(columns=tuple(columns), **{**settings, **changes})


def test_a_published_expert_is_drawn_as_it_is_printed() -> None:
    import matplotlib

    grid = published_grid("Swahili expert #1")
    with drawing("test"):
        canvas = draw_heatmaps([grid])
        svg = images_of(canvas, ["svg"])["svg"].decode()
        axes, bar = canvas.axes
        assert axes.get_ylim() == (0, 32)  # layer 0 at the bottom
        assert axes.collections[0].get_clim() == bar.get_ylim() == (0.0, 1.0)
        labels = [label.get_text() for label in axes.get_xticklabels()]
        assert labels == ["q", "k", "v", "o", "gate", "up", "down"]
        assert [label.get_text() for label in axes.get_yticklabels()] == [*map(str, range(32))]
    assert "<image" not in svg  # vectors only
    assert f"<!-- {grid.title} -->" in svg
    assert f"<!-- {grid.note.replace('>', '&gt;')} -->" in svg or grid.note in svg
    numbers = {text.get_position(): text.get_text() for text in axes.texts}
    assert numbers == {
        (column + 0.5, layer + 0.5): "0" if value == 0 else f"{value:.2f}"
        for (layer, column), value in np.ndenumerate(grid.array())
    }
    fills = axes.collections[0].get_facecolors().reshape(32, 7, 4)
    assert fills == pytest.approx(matplotlib.colormaps["Greens"](grid.array()))


SIZES = {
    "paper": [_grid(32)],
    "70B": [_grid(80)],
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
            cells = axes.texts
            assert len(cells) == grid.num_layers * len(grid.columns)
            sizes = {each.get_fontsize() for each in cells}
            assert len(sizes) == 1
            assert 0.9 * FONT_PT[0] < min(sizes) <= FONT_PT[1]
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
        assert axes.patch.get_hatch() == "///"  # behind the mesh, which has no colour there
        (mesh,) = axes.collections
        assert mesh.get_array().mask.tolist() == [[True, False], [False, True]]
        found = {text.get_position(): text.get_text() for text in axes.texts}
        assert found == {(1.5, 0.5): "0.50", (0.5, 1.5): "0.25"}


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


def test_numbers_stand_out_from_every_colour() -> None:
    assert contrasting((1.0, 1.0, 1.0)) == contrasting((1.0, 1.0, 0.0)) == "black"
    assert contrasting((0.0, 0.0, 0.0)) == contrasting((0.0, 0.0, 0.8)) == "white"
    # The grey where both read equally well: L = sqrt(1.05 * 0.05) - 0.05, in sRGB 0.4604.
    assert (contrasting((0.47,) * 3), contrasting((0.45,) * 3)) == ("black", "white")
