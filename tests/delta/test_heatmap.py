"""Heatmaps of experts: what they show is read back from what was drawn."""

import itertools
import json
import math
from importlib.resources import files

import numpy as np
import pytest

from ablations.delta.heatmap import PAGE_IN, draw_heatmaps
from ablations.drawing.canvas import drawing, images_of
from ablations.paper.published import Grid, published_grid, published_names

PAPER = tuple(published_grid("math expert #1").columns)


def _grid(layers, title="expert", note=""):
    values = np.random.default_rng(layers).random((layers, len(PAPER))) ** 2
    return Grid(title, PAPER, tuple(map(tuple, values.tolist())), note)


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


@pytest.mark.parametrize(
    "grids",
    [
        [_grid(80)],
        [published_grid(name) for name in published_names()],
        [_grid(8, "runs/pocket/swahili/final"), published_grid("Swahili expert #1")],
        [_grid(32, "an expert with a long name " * 3, "and a long note " * 9)],
    ],
    ids=["70B", "six", "two depths", "long"],
)
def test_every_number_fits_its_cell_and_no_text_another(grids):
    with drawing("test"):
        canvas = draw_heatmaps(grids)
        canvas.draw_without_rendering()
        assert canvas.get_size_inches()[0] <= PAGE_IN
        for axes, grid in zip(canvas.axes[:-1], grids, strict=True):  # the last is the bar
            assert len(axes.texts) == len(grid.values) * len(grid.columns)
            frame = axes.get_window_extent()
            width, height = frame.width / len(grid.columns), frame.height / len(grid.values)
            boxes = [text.get_window_extent() for text in axes.texts]
            assert all(box.width < 0.95 * width and box.height < 0.95 * height for box in boxes)
        boxes = [axes.get_tightbbox() for axes in canvas.axes]
        assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
        assert all(canvas.bbox.fully_containsx(x) for box in boxes for x in box.intervalx)
        assert all(canvas.bbox.fully_containsy(y) for box in boxes for y in box.intervaly)


def test_a_layer_without_the_parameter_has_no_number():
    grid = Grid("expert", ("q", "k"), ((math.nan, 0.5), (0.25, math.nan)), "")
    with drawing("test"):
        axes = draw_heatmaps([grid]).axes[0]
        assert [text.get_text() for text in axes.texts] == ["0.50", "0.25"]


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
