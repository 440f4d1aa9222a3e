"""Heatmaps of experts: what they show is read back from what was drawn."""

import itertools
import json
import math
import random
from importlib.resources import files

import numpy as np
import pytest

from ablations.delta.heatmap import PAGE_IN, column_labels, draw_heatmaps
from ablations.drawing.canvas import drawing, images_of
from ablations.paper.published import Grid, published_grid, published_names
from layerswap_method.errors import InputError

PAPER = tuple(published_grid("math expert #1").columns)


def _grid(layers, title="expert", note=""):
    draw = random.Random(layers)
    values = tuple(tuple(draw.random() ** 2 for _ in PAPER) for _ in range(layers))
    return Grid(title, PAPER, values, note)


def test_a_published_expert_is_drawn_as_it_is_printed():
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
def test_every_number_fits_its_cell_and_no_text_another(name):
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


def test_a_layer_without_the_parameter_has_no_number():
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
    ],
)
def test_columns_have_short_names_that_tell_them_apart(columns, labels):
    assert column_labels(columns) == labels


def test_all_published_values_but_the_suspects_are_shares_of_input_features():
    assert len(published_names()) == 6
    odd = set()
    for name in published_names():
        grid = published_grid(name)
        assert (grid.title, len(grid.values), len(grid.columns)) == (name, 32, 7)
        for (layer, column), value in np.ndenumerate(np.array(grid.values)):
            rows = 14336 if grid.columns[column] == "mlp.down_proj" else 4096
            assert 0 <= value <= 1
            # Printed with six decimals.
            if abs(value * rows - round(value * rows)) > 0.5e-6 * rows + 1e-9:
                odd.add((name, layer, grid.columns[column], value))
    # Figure 4 prints layer 31 at the top: 0.411865 ... 0.374442.
    grid = published_grid("math EXPERT #1")
    assert (grid.values[31][0], grid.values[0][-1]) == (0.411865, 0.035854)
    assert "MAV > 1.0×10⁻⁵" in grid.note
    suspects = json.loads((files("ablations.paper") / "grids.json").read_text())["suspect"]
    assert odd == {(s["name"], s["layer"], s["column"], s["value"]) for s in suspects}
    assert len(odd) == 6


def test_an_unknown_expert_gets_the_nearest():
    with pytest.raises(InputError, match=r"did you mean 'Swahili expert #1'\? Valid are math"):
        published_grid("Swahli expert #1")


def test_the_same_depth_stands_at_the_same_height():
    reference = published_grid("Swahili expert #1")
    rows = np.array(reference.values).reshape(16, 2, 7).mean(axis=1)
    half = Grid("half", reference.columns, tuple(map(tuple, rows)), "")
    with drawing("test"):
        one, other, _ = draw_heatmaps([half, reference]).axes
        assert one.get_position().height == pytest.approx(other.get_position().height)
        assert [len(axes.get_yticks()) for axes in (one, other)] == [16, 32]
