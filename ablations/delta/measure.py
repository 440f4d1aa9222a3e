"""An expert's statistics from the sums of one pass. Knows arithmetic; reads and writes no file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ablations.delta.parameters import places_of
from ablations.delta.profile import DeltaProfile, TensorDelta
from ablations.delta.sums import TensorSums, tensor_sums
from layerswap_method.deltas.pair import DeltaPair

QUANTILE = 0.125
"""Share of rows above a threshold that nobody gave; the paper's six grids have 0.11 to 0.16."""

Rows = npt.NDArray[np.float32]


@dataclass
class Change:
    """What one pass found of one expert: sums, and the MAV of every row."""

    pair: DeltaPair
    """The expert and its base."""

    number: int
    """Which of the experts of the pass this is."""

    sums: dict[str, TensorSums] = field(default_factory=dict)
    """Name -> sums over all experts of the pass, without their rows."""

    rows: dict[str, Rows] = field(default_factory=dict)
    """Name -> MAV of every row."""

    summaries: dict[str, tuple[float, float, float, float]] = field(default_factory=dict)
    """Name -> mean, median, 90th percentile and maximum of the rows, from float64."""


def read_changes(pairs: Sequence[DeltaPair], names: Iterable[str]) -> list[Change]:
    """Return the changes of several experts of one base, from one pass over their tensors.

    Args:
        pairs: at least one.
        names: tensors that all of them hold; taken as they are needed.

    Raises:
        InputError: for files that change, and weights that are NaN or infinite.
    """
    changes = [Change(pair, number) for number, pair in enumerate(pairs)]
    with closing(tensor_sums(pairs, names)) as every:
        for sums in every:
            for change, rows in zip(changes, sums.rows, strict=True):
                change.sums[sums.name] = sums
                change.rows[sums.name] = rows.astype(np.float32)
                change.summaries[sums.name] = (
                    float(rows.mean()),
                    float(np.median(rows)),
                    float(np.quantile(rows, 0.9)),
                    float(rows.max()),
                )
            sums.rows = sums.rows[:, :0].copy()
    return changes


def matrices_of(pair: DeltaPair, places: Mapping[str, tuple[int | None, str]]) -> list[str]:
    """Return the tensors that a heatmap shows: the matrices of the decoder layers."""
    return [
        name
        for name, (layer, _) in places.items()
        if layer is not None and pair.axis(name) is not None
    ]


def threshold_below(rows: Sequence[Rows], quantile: float) -> float:
    """Return the smallest row's MAV that at most the share `quantile` of all rows is above.

    Args:
        rows: MAVs of every tensor.
        quantile: in (0, 1).
    """
    values = np.concatenate(rows) if rows else np.zeros(1, np.float32)
    last = max(0, values.size - 1 - math.floor(quantile * values.size))
    return float(np.partition(values, last)[last])


def profile_of(
    change: Change,
    columns: Sequence[str],
    vectors: Sequence[str],
    num_layers: int,
    *,
    threshold: float | None = None,
    quantile: float = QUANTILE,
) -> DeltaProfile:
    """Return the profile of an expert.

    Args:
        change: what a pass over all its tensors found.
        columns: matrices of a layer, in order.
        vectors: the other parameters of a layer, in order.
        num_layers: decoder layers.
        threshold: MAV that rows are counted above; None takes the one with the share `quantile`
            of the rows of the layers' matrices above it.
        quantile: that share.
    """
    pair = change.pair
    places = places_of(list(change.sums))
    source = "given"
    if threshold is None:
        threshold = threshold_below([change.rows[n] for n in matrices_of(pair, places)], quantile)
        source = f"found for a share of {quantile:g} above it"
    tensors = tuple(_tensor(change, name, place, threshold) for name, place in places.items())
    total = _Totals.of(change)
    rows = sum(tensor.rows for tensor in tensors)
    return DeltaProfile(
        expert=pair.expert,
        base=pair.base,
        architecture=pair.architecture,
        num_layers=num_layers,
        dtypes=_dtypes(pair),
        threshold=threshold,
        threshold_source=source,
        mean_row_mav=math.fsum(t.mav_mean * t.rows for t in tensors) / rows if rows else 0.0,
        relative_norm=total.relative_norm,
        cosine_to_base=total.cosine_to_base,
        share_changed=total.changed / total.size if total.size else 0.0,
        share_on_grid=total.near / total.rounded if total.rounded else None,
        columns=tuple(columns),
        vectors=tuple(vectors),
        tensors=tensors,
    )


def _tensor(
    change: Change, name: str, place: tuple[int | None, str], threshold: float
) -> TensorDelta:
    pair, rows = change.pair, change.rows[name]
    total = _Totals.of(change, (name,))
    mean, median, p90, largest = change.summaries[name]
    return TensorDelta(
        name=name,
        layer=place[0],
        parameter=place[1],
        shape=pair.shape(name),
        is_matrix=pair.axis(name) is not None,
        rows=rows.size,
        mav_mean=mean,
        mav_median=median,
        mav_p90=p90,
        mav_max=largest,
        share_above=float(np.count_nonzero(rows > threshold)) / rows.size if rows.size else 0.0,
        relative_norm=total.relative_norm,
        cosine_to_base=total.cosine_to_base,
        delta_cosine_to_base=total.delta_cosine_to_base,
        share_changed=total.changed / total.size if total.size else 0.0,
        share_on_grid=total.near / total.rounded if total.rounded else None,
    )


@dataclass(frozen=True)
class _Totals:
    """Sums over some tensors of one expert, and what follows from them."""

    change: float
    base: float
    along_base: float
    size: int
    changed: int
    near: int
    rounded: int
    """Changed values that were rounded to a grid that is known."""

    @classmethod
    def of(cls, change: Change, names: Sequence[str] | None = None) -> _Totals:
        i = change.number
        found = [change.sums[name] for name in (change.sums if names is None else names)]
        rounded = [sums for sums in found if change.pair.grid_dtype(sums.name) is not None]
        return cls(
            change=math.fsum(sums.gram[i, i] for sums in found),
            base=math.fsum(sums.base for sums in found),
            along_base=math.fsum(sums.along_base[i] for sums in found),
            size=sum(sums.size for sums in found),
            changed=sum(int(sums.changed[i]) for sums in found),
            near=sum(int(sums.near[i]) for sums in rounded),
            rounded=sum(int(sums.changed[i]) for sums in rounded),
        )

    @property
    def relative_norm(self) -> float | None:
        return math.sqrt(self.change / self.base) if self.base > 0 else None

    @property
    def cosine_to_base(self) -> float | None:
        """Return <base + delta, base> / (|base + delta| |base|)."""
        expert = self.base + 2 * self.along_base + self.change
        if self.base <= 0 or expert <= 0:
            return None
        return _within((self.base + self.along_base) / math.sqrt(expert * self.base))

    @property
    def delta_cosine_to_base(self) -> float | None:
        if self.base <= 0 or self.change <= 0:
            return None
        return _within(self.along_base / math.sqrt(self.change * self.base))


def _within(cosine: float) -> float:
    return min(1.0, max(-1.0, cosine))


def _dtypes(pair: DeltaPair) -> tuple[str, ...]:
    found = [pair.expert_dtype(name) for name in pair.names if pair.axis(name) is not None]
    return tuple(sorted({"adapter" if d is None else str(d).removeprefix("torch.") for d in found}))
