"""The rows of an expert and how far they moved, measured once. Knows pairs; not layers or recipes.

One pass over the weights serves every threshold and every `keep_fraction` of a study: what it found
is kept in this process's memory only, under the files' names and dates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from layerswap_method.checkpoints.spans import read_rows
from layerswap_method.delta_revert.rows import keep_threshold, rows_that_stay
from layerswap_method.deltas.known import known
from layerswap_method.deltas.magnitudes import row_mav, row_mavs
from layerswap_method.deltas.pair import DeltaPair, not_finite
from layerswap_method.errors import InputError
from layerswap_method.stream.mix import TensorMix, TensorOrigin
from layerswap_method.stream.read import read_mix

if TYPE_CHECKING:
    import torch

    from layerswap_method.delta_revert.spec import RevertSpec


@dataclass(frozen=True)
class MeasuredRows:
    """How far every row of an expert moved from its base."""

    pair: DeltaPair
    """The expert and its base."""

    mavs: Mapping[str, torch.Tensor]
    """Tensor -> `magnitudes.row_mav`."""

    def threshold(self, spec: RevertSpec) -> float:
        """Return the threshold below which rows go back: the recipe's, or `rows.keep_threshold`.

        For `keep_fraction` that is over all rows of all parameters of the expert. Buffers are left
        out and a tied embedding counts once. Rows of layers or modules that go back whole count as
        well: the fraction is one of the expert, not of what is left of it.

        Raises:
            InputError: for a change that is not finite.
        """
        if spec.keep_fraction is None:
            return spec.threshold or 0.0
        rows = []
        for name, mav in self.mavs.items():
            if not bool(mav.isfinite().all()):
                raise not_finite(self.pair, name)
            rows.append((mav, self.pair.layout(name).width))
        return keep_threshold(rows, spec.keep_fraction)

    def stays(self, name: str, threshold: float) -> torch.Tensor:
        """Return whether each row of a tensor stays the expert's (`rows.rows_that_stay`).

        Raises:
            InputError: for a change that is not finite, or a tensor that is no weight.
        """
        if name not in self.mavs:
            raise InputError(f"{name}: no weight, so it has no rows to compare")
        try:
            return rows_that_stay(self.mavs[name], threshold)
        except ValueError as error:
            raise not_finite(self.pair, name) from error


def measure_rows(pair: DeltaPair, merged: Mapping[str, TensorOrigin] | None = None) -> MeasuredRows:
    """Return how far the rows of an expert moved; reads both checkpoints, unless it is known.

    Args:
        pair: the expert and its base.
        merged: tensors that differ from the expert's file by a cast or an adapter's change. They
            are compared as the copy that it is merged into holds them, which is what mergekit
            compares.

    Raises:
        InputError: for files that are gone, cut short, or were written anew.
    """
    changed = merged or {}

    def measured() -> dict[str, torch.Tensor]:
        found = dict(row_mavs(pair, [name for name in pair.names if name not in changed]))
        for name in (name for name in pair.names if name in changed):
            ours = read_mix(TensorMix(terms=((changed[name], 1.0),)))
            found[name] = row_mav(ours, read_rows(pair.base_tensors[name]), pair.axis(name))
        return {name: found[name] for name in pair.names}

    key = ("rows", pair.identity, frozenset(changed.items()))
    return MeasuredRows(pair, known(key, measured))
