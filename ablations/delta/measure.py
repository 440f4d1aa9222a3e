"""An expert's statistics from the sums of one pass. Knows arithmetic; reads and writes no file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ablations.delta.parameters import places_of
from ablations.delta.profile import DeltaProfile, TensorDelta
from ablations.delta.sums import TensorSums, tensor_sums
from ablations.machine.progress import Step, counted, tell
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


def read_changes(pairs: Sequence[DeltaPair], names: Sequence[str]) -> list[Change]:
    """Return the changes of several experts of one base, from one pass over their tensors.

    Args:
        pairs: at least one.
        names: tensors that all of them hold.

    Raises:
        InputError: for files that change, and weights that are NaN or infinite.
    """
    changes = [Change(pair, number) for number, pair in enumerate(pairs)]
    for sums in tensor_sums(pairs, counted("reading the changes", names)):
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
    tell(Step("computing the statistics"))
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
    source = "the threshold that was given"
    if threshold is None:
        threshold = threshold_below([change.rows[n] for n in matrices_of(pair, places)], quantile)
        source = f"the threshold of --quantile {quantile:g}"
    tensors = tuple(_tensor(change, name, place, threshold) for name, place in places.items())
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
        **_totals(change, change.sums),
        columns=tuple(columns),
        vectors=tuple(vectors),
        tensors=tensors,
    )


def _tensor(
    change: Change, name: str, place: tuple[int | None, str], threshold: float
) -> TensorDelta:
    pair, rows = change.pair, change.rows[name]
    sums, i = change.sums[name], change.number
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
        **_totals(change, (name,)),
        delta_cosine_to_base=cosine(sums.along_base[i], sums.gram[i, i], sums.base),
    )


def _totals(change: Change, names: Iterable[str]) -> dict[str, Any]:
    """Return what a tensor and a model both have, from the sums over some tensors."""
    i = change.number
    found = [change.sums[name] for name in names]
    rounded = [sums for sums in found if change.pair.grid_dtype(sums.name) is not None]
    delta = math.fsum(sums.gram[i, i] for sums in found)
    base = math.fsum(sums.base for sums in found)
    along_base = math.fsum(sums.along_base[i] for sums in found)
    size = sum(sums.size for sums in found)
    # Only of values that were rounded to a grid that is known.
    moved = sum(int(sums.changed[i]) for sums in rounded)
    return {
        "relative_norm": math.sqrt(delta / base) if base > 0 else None,
        "cosine_to_base": cosine(base + along_base, base + 2 * along_base + delta, base),
        "share_changed": sum(int(sums.changed[i]) for sums in found) / size if size else 0.0,
        "share_on_grid": sum(int(sums.near[i]) for sums in rounded) / moved if moved else None,
    }


def cosine(product: float, first: float, second: float) -> float | None:
    """Return the cosine of two vectors from their product and their squares; None for a zero."""
    if first <= 0 or second <= 0:
        return None
    return min(1.0, max(-1.0, float(product) / math.sqrt(first * second)))


def _dtypes(pair: DeltaPair) -> tuple[str, ...]:
    found = [pair.expert_dtype(name) for name in pair.names if pair.axis(name) is not None]
    return tuple(sorted({"adapter" if d is None else str(d).removeprefix("torch.") for d in found}))
