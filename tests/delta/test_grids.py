"""Grids: rank correlation, depths, and the published values as the paper prints them."""

import json
import math
from importlib.resources import files

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablations.delta.grids import pearson, rank_correlation, resample_layers, spearman
from ablations.drawing.grid import Grid
from ablations.paper.published import published_grid, published_names
from layerswap_method.errors import InputError

NAMES = (
    "math expert #1",
    "math expert #2",
    "Swahili expert #1",
    "Japanese expert #1",
    "Telugu expert #1",
    "Bengali expert #1",
)


def _grid(
    values: list[list[float]], title: str = "a", columns: tuple[str, ...] = ("q", "k")
) -> Grid:
    return Grid(title, columns, tuple(map(tuple, values)), "share")


def test_spearman_of_a_worked_example() -> None:
    # Ranks 1, 2.5, 2.5, 4 and 1, 3, 2, 4: 4.5 / sqrt(4.5 * 5).
    rho = spearman(np.array([10.0, 20, 20, 30]), np.array([1.0, 8, 5, 9]))
    assert rho == pytest.approx(math.sqrt(0.9))


def test_a_constant_vector_has_no_correlation() -> None:
    assert math.isnan(pearson([0.1] * 7, list(range(7))))
    assert math.isnan(pearson([1.0, 2.0], [1.0, 2.0]))


def test_a_deeper_grid_is_averaged_by_depth() -> None:
    deep = np.arange(8.0)[:, None]
    assert resample_layers(deep, 4)[:, 0].tolist() == [0.5, 2.5, 4.5, 6.5]
    # Of five layers, the first of two spans two and half of the third.
    assert resample_layers(np.arange(5.0)[:, None], 2)[:, 0].tolist() == pytest.approx([0.8, 3.2])
    assert resample_layers(deep, 8) is deep


@given(st.integers(1, 40), st.integers(1, 40))
def test_resampling_keeps_the_mean_and_a_constant(old: int, new: int) -> None:
    values = np.random.default_rng(old).random((old, 2))
    assert resample_layers(values, new).mean(axis=0) == pytest.approx(values.mean(axis=0))
    assert resample_layers(np.full((old, 1), 0.3), new) == pytest.approx(np.full((new, 1), 0.3))


def test_grids_of_other_depth_and_columns_are_matched() -> None:
    deep = _grid([[0.0, 5, 1], [1.0, 5, 2], [2.0, 5, 7], [3.0, 5, 8]], "deep", ("q", "norm", "v"))
    flat = _grid([[1.0, 0.5], [7.0, 2.5]], "flat", ("v", "q"))
    found = rank_correlation(deep, flat)
    assert (found.cells, found.num_layers) == (4, 2)
    # Averaged: q 0.5, 2.5 and v 1.5, 7.5; of the other q 0.5, 2.5 and v 1, 7: the same order.
    assert found.rho == pytest.approx(1)
    assert found.text() == "Spearman ρ = 1.00 over 4 cells (4 layers averaged to 2 by depth)"
    assert rank_correlation(flat, deep).rho == found.rho


def test_cells_without_the_parameter_do_not_count() -> None:
    one = _grid([[1.0, math.nan], [2.0, 4.0], [3.0, 5.0]])
    other = _grid([[1.0, 9.0], [2.0, 4.0], [3.0, 5.0]])
    found = rank_correlation(one, other)
    assert (found.cells, found.rho) == (5, pytest.approx(1))


def test_grids_without_a_common_parameter_are_refused() -> None:
    with pytest.raises(InputError, match=r"a and b have no parameter in common: q; c_attn"):
        rank_correlation(_grid([[1.0]], "a", ("q",)), _grid([[1.0]], "b", ("c_attn",)))


def test_the_six_published_grids_are_there() -> None:
    assert published_names() == NAMES
    for name in published_names():
        grid = published_grid(name)
        assert (grid.title, grid.num_layers, len(grid.columns)) == (name, 32, 7)
        assert ((grid.array() >= 0) & (grid.array() <= 1)).all()


def test_all_published_values_but_the_suspects_are_shares_of_input_features() -> None:
    found = set()
    for name in published_names():
        grid = published_grid(name)
        for (layer, column), value in np.ndenumerate(grid.array()):
            rows = 14336 if grid.columns[column] == "mlp.down_proj" else 4096
            # Printed with six decimals.
            if abs(value * rows - round(value * rows)) > 0.5e-6 * rows + 1e-9:
                found.add((name, layer, grid.columns[column], value))
    suspects = json.loads((files("ablations.paper") / "grids.json").read_text())["suspect"]
    assert found == {(s["name"], s["layer"], s["column"], s["value"]) for s in suspects}
    assert len(found) == 6


def test_layer_0_stands_first() -> None:
    # Figure 4 prints layer 31 at the top: 0.411865 ... 0.374442.
    grid = published_grid("math expert #1")
    assert grid.values[31][0] == 0.411865
    assert grid.values[0][-1] == 0.035854
    assert "MAV > 1.0×10⁻⁵" in grid.note
    assert "MAV > 1.9×10⁻⁵" in published_grid("swahili EXPERT #1").note


def test_an_unknown_expert_gets_the_nearest() -> None:
    with pytest.raises(InputError, match=r"did you mean 'Swahili expert #1'\? Valid are math"):
        published_grid("Swahli expert #1")
