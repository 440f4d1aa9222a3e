"""Heatmaps of experts: what they show is read back from what was drawn."""

import itertools
import math
import random
from collections.abc import Sequence

import numpy as np
import pytest

from ablations.delta.heatmap import PAGE_IN, column_labels, draw_heatmaps
from ablations.drawing.canvas import drawing, images_of
from ablations.paper.published import Grid, published_grid, published_names

PAPER = tuple(published_grid("math expert #1").columns)


def _grid(layers: int, title: str = "expert", note: str = "") -> Grid:
    draw = random.Random(layers)
    values = tuple(tuple(draw.random() ** 2 for _ in PAPER) for _ in range(layers))
    return Grid(title, PAPER, values, note)


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
    numbers = {text.get_position(): text.get_text() for text in axes.texts}
    assert numbers == {
        (column + 0.5, layer + 0.5): "0" if value == 0 else f"{value:.2f}"
        for (layer, column), value in np.ndenumerate(np.array(grid.values))
    }
    fills = axes.collections[0].get_facecolors().reshape(32, 7, 4)
    assert fills == pytest.approx(matplotlib.colormaps["Greens"](np.array(grid.values)))


PAGES = {
    "70B": [_grid(80)],
    "six": [published_grid(name) for name in published_names()],
    "two depths": [_grid(8, "runs/pocket/swahili/final"), published_grid("Swahili expert #1")],
    "long": [_grid(32, "an expert with a long name " * 3, "and a long note " * 9)],
}


@pytest.mark.parametrize("name", PAGES)
def test_every_number_fits_its_cell_and_no_text_another(name: str) -> None:
    grids = PAGES[name]
    with drawing("test"):
        canvas = draw_heatmaps(grids)
        canvas.draw_without_rendering()
        assert canvas.get_size_inches()[0] <= PAGE_IN
        for axes, grid in zip(canvas.axes[:-1], grids, strict=True):  # the last is the bar
            assert len(axes.texts) == len(grid.values) * len(grid.columns)
            frame = axes.get_window_extent()
            width, height = frame.width / len(grid.columns), frame.height / len(grid.values)
            for text in axes.texts:
                box = text.get_window_extent()
                assert box.width < 0.95 * width, text
                assert box.height < 0.95 * height, text
        boxes = [axes.get_tightbbox() for axes in canvas.axes]
        for one, other in itertools.combinations(boxes, 2):
            assert not one.overlaps(other)
        assert all(box.x0 >= 0 and box.x1 <= canvas.bbox.width for box in boxes)
        assert all(box.y0 >= 0 and box.y1 <= canvas.bbox.height for box in boxes)


def test_a_layer_without_the_parameter_has_no_number() -> None:
    grid = Grid("expert", ("q", "k"), ((math.nan, 0.5), (0.25, math.nan)), "")
    with drawing("test"):
        axes = draw_heatmaps([grid]).axes[0]
        assert [text.get_text() for text in axes.texts] == ["0.50", "0.25"]


@pytest.mark.parametrize(
    ("columns", "labels"),
    [
        (PAPER, ["q", "k", "v", "o", "gate", "up", "down"]),
        (
            ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"),
            ["c_attn", "attn.c_proj", "c_fc", "mlp.c_proj"],
        ),
        (("self_attn.qkv_proj", "self_attn.o_proj"), ["qkv", "o"]),
        (("mlp.gate", "mlp.gate_proj"), ["mlp.gate", "mlp.gate_proj"]),
    ],
)
def test_columns_have_short_names_that_tell_them_apart(
    columns: Sequence[str], labels: list[str]
) -> None:
    assert column_labels(columns) == labels
