"""The published grids: as the paper prints them, and beside one's own."""

import json
from importlib.resources import files

import numpy as np
import pytest

from ablations.delta.heatmap import draw_heatmaps
from ablations.drawing.canvas import drawing
from ablations.paper.published import Grid, published_grid, published_names
from layerswap_method.errors import InputError


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
    suspects = json.loads((files("ablations.paper") / "grids.json").read_text())["suspect"]
    assert odd == {(s["name"], s["layer"], s["column"], s["value"]) for s in suspects}
    assert len(odd) == 6


def test_layer_0_stands_first():
    # Figure 4 prints layer 31 at the top: 0.411865 ... 0.374442.
    grid = published_grid("math expert #1")
    assert grid.values[31][0] == 0.411865
    assert grid.values[0][-1] == 0.035854
    assert "MAV > 1.0×10⁻⁵" in grid.note
    assert "MAV > 1.9×10⁻⁵" in published_grid("swahili EXPERT #1").note


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
