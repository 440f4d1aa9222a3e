"""Where and how much an expert changed: one row a tensor, and what is made of the rows."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ablations.delta.parameters import in_order, places_of
from ablations.delta.sums import Sums, change_product, for_each_tensor, tensor_sums
from ablations.machine.progress import counted
from ablations.paper.published import Grid, scientific
from layerswap_method.deltas.pair import DeltaPair

SHARE_ABOVE = 0.125
"""Share of the rows above a threshold that nobody gave; the paper's six grids have 0.11 to 0.16."""

Changes = Mapping[str, Sums]
"""Tensor -> the sums over its change."""


class TensorDelta(NamedTuple):
    """What fine-tuning did to one tensor: a row of ``delta.csv``."""

    name: str
    layer: int | None
    """Decoder layer, 0-based from the embedding side; None outside the layers."""
    parameter: str
    """Below the layer, without ``.weight``; the whole name outside."""
    is_matrix: bool
    rows: int
    """Number of rows (input features; a vector is one row)."""
    mav: float
    """Mean absolute change of a weight, in the unit of the weights."""
    mav_max: float
    """Mean absolute change of the row that changed most."""
    share_above: float
    """Share of the rows with a mean absolute change above the threshold."""
    relative_norm: float | None
    """||change|| / ||base||, Frobenius; None for a base of zeros."""
    share_changed: float
    """Share of the values with a change other than 0 in float32."""
    share_on_grid: float | None
    """Share of the changed values at most two representable numbers of the expert's dtype from the
    base; None for a float32 expert, an adapter, or no change."""


@dataclass(frozen=True)
class DeltaProfile:
    """What fine-tuning did to a model."""

    label: str
    """Short name of the expert."""

    num_layers: int
    dtypes: tuple[str, ...]
    """What the expert's matrices are stored as; `adapter` where one is added in float32."""

    threshold: float
    """Mean absolute change that rows are counted above, in the unit of the weights."""

    mean_row_mav: float
    """Average over all rows of all tensors, each row once (section 5.1)."""

    relative_norm: float | None
    """Of all weights as one vector."""

    layer_norms: tuple[float | None, ...]
    """The same of each layer."""

    share_changed: float
    share_on_grid: float | None
    columns: tuple[str, ...]
    """Parameters of a layer that are matrices, in the paper's order."""

    tensors: tuple[TensorDelta, ...]
    """In the order of the base's files."""

    def grid(self) -> Grid:
        """Return the share of rows above the threshold per layer and matrix, layer 0 first.

        Where several tensors are one parameter (experts of a mixture), their shares are averaged
        by their number of rows. NaN where a layer has no such parameter.
        """
        cells: dict[tuple[int | None, str], list[TensorDelta]] = {}
        for tensor in self.tensors:
            cells.setdefault((tensor.layer, tensor.parameter), []).append(tensor)
        return Grid(
            title=self.label,
            columns=self.columns,
            values=tuple(
                tuple(_mean_share(cells.get((layer, column), ())) for column in self.columns)
                for layer in range(self.num_layers)
            ),
            note=f"MAV > {scientific(self.threshold)}",
        )


class Similarity(NamedTuple):
    """How alike the changes of two experts are: a row of ``comparison.csv``."""

    first: str
    second: str
    layer: int | None
    """None for the whole model."""
    cosine: float | None
    """Between the two changes, all weights as one vector: what souping the two meets. 1 is the same
    direction, 0 none in common, below 0 they undo each other; None without a change."""
    correlation: float | None
    """Pearson's, of the mean absolute changes of the rows of the layers' matrices."""


def read_changes(pair: DeltaPair, names: Sequence[str]) -> dict[str, Sums]:
    """Return the sums over the change of every tensor; both checkpoints are read once.

    Raises:
        InputError: for files that change, and weights that are NaN or infinite.
    """
    shown = counted(f"reading the changes of {pair.expert}", names)
    return dict(for_each_tensor(shown, lambda name: tensor_sums(pair, name)))


def relative_norm(changes: Changes, names: Iterable[str] | None = None) -> float | None:
    """Return ||change|| / ||base|| of tensors (all by default) as one vector; None for a 0 base."""
    sums = [changes[name] for name in (changes if names is None else names)]
    base = math.fsum(part["base"] for part in sums)
    return math.sqrt(math.fsum(part["change"] for part in sums) / base) if base > 0 else None


def norms_by_layer(changes: Changes, num_layers: int) -> tuple[float | None, ...]:
    """Return `relative_norm` of each decoder layer, layer 0 first."""
    return tuple(relative_norm(changes, _names_in(changes, layer)) for layer in range(num_layers))


def profile_of(
    pair: DeltaPair, label: str, changes: Changes, threshold: float | None = None
) -> DeltaProfile:
    """Return the profile of an expert.

    Args:
        pair: the expert and its base.
        label: its short name.
        changes: of `read_changes`.
        threshold: mean absolute change that rows are counted above; None takes the one with
            `SHARE_ABOVE` of the rows of the layers' matrices above it.
    """
    places = places_of(list(changes))
    matrices = _matrices(pair, changes)
    if threshold is None:
        threshold = _threshold([changes[name]["rows"] for name in matrices])
    tensors = tuple(
        TensorDelta(
            name=name,
            layer=places[name][0],
            parameter=places[name][1],
            is_matrix=pair.axis(name) is not None,
            rows=sums["rows"].size,
            mav=float(sums["rows"].mean()) if sums["rows"].size else 0.0,
            mav_max=float(sums["rows"].max(initial=0.0)),
            share_above=float((sums["rows"].astype(np.float32) > threshold).mean())
            if sums["rows"].size
            else 0.0,
            relative_norm=relative_norm(changes, [name]),
            share_changed=sums["changed"] / sums["size"] if sums["size"] else 0.0,
            share_on_grid=_share_on_grid([sums]),
        )
        for name, sums in changes.items()
    )
    rows = sum(tensor.rows for tensor in tensors)
    size = sum(sums["size"] for sums in changes.values())
    num_layers = _depth(pair, changes)
    stored = [pair.expert_dtype(name) for name in changes if pair.axis(name) is not None]
    dtypes = {"adapter" if d is None else str(d).removeprefix("torch.") for d in stored}
    return DeltaProfile(
        label=label,
        num_layers=num_layers,
        dtypes=tuple(sorted(dtypes)),
        threshold=threshold,
        mean_row_mav=math.fsum(t.mav * t.rows for t in tensors) / rows if rows else 0.0,
        relative_norm=relative_norm(changes),
        layer_norms=norms_by_layer(changes, num_layers),
        share_changed=sum(s["changed"] for s in changes.values()) / size if size else 0.0,
        share_on_grid=_share_on_grid(changes.values()),
        columns=in_order(places[name][1] for name in matrices),
        tensors=tensors,
    )


def compare_changes(
    one: tuple[DeltaPair, str, Changes], other: tuple[DeltaPair, str, Changes]
) -> list[Similarity]:
    """Return how alike two experts of one base are: as a whole, and layer by layer.

    Args:
        one: an expert, its short name and its changes.
        other: another.
    """
    (pair, first, changes), (other_pair, second, other_changes) = one, other
    shared = [name for name in changes if name in other_changes]
    counting = counted(f"comparing {first} and {second}", shared)
    products = dict(for_each_tensor(counting, lambda name: change_product(pair, other_pair, name)))
    shown = set(_matrices(pair, changes))
    rows = []
    for layer in (None, *range(_depth(pair, changes))):
        names = shared if layer is None else [n for n in _names_in(changes, layer) if n in products]
        squares = [
            math.fsum(sums[name]["change"] for name in names) for sums in (changes, other_changes)
        ]
        cosine = None
        if min(squares) > 0:
            product = math.fsum(products[name] for name in names)
            cosine = min(1.0, max(-1.0, product / math.sqrt(squares[0] * squares[1])))
        matrices = [name for name in names if name in shown]
        correlation = _correlation(changes, other_changes, matrices)
        rows.append(Similarity(first, second, layer, cosine, correlation))
    return rows


def table(rows: Sequence[Any]) -> str:
    """Return named tuples as CSV; a cell is empty where there is no number."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(rows[0]._fields)
    writer.writerows([f"{v:.9g}" if isinstance(v, float) else v for v in row] for row in rows)
    return file.getvalue()


def _names_in(changes: Changes, layer: int) -> list[str]:
    return [name for name, (place, _) in places_of(list(changes)).items() if place == layer]


def _matrices(pair: DeltaPair, changes: Changes) -> list[str]:
    """Return the tensors that a heatmap shows: the matrices of the decoder layers."""
    places = places_of(list(changes))
    return [n for n in changes if places[n][0] is not None and pair.axis(n) is not None]


def _depth(pair: DeltaPair, changes: Changes) -> int:
    if pair.num_layers is not None:
        return pair.num_layers
    layers = [layer for layer, _ in places_of(list(changes)).values() if layer is not None]
    return max(layers, default=-1) + 1


def _threshold(rows: Sequence[Any]) -> float:
    """Return the smallest row's mean that at most `SHARE_ABOVE` of all rows is above."""
    values = np.concatenate(rows).astype(np.float32) if rows else np.zeros(1, np.float32)
    last = max(0, values.size - 1 - math.floor(SHARE_ABOVE * values.size))
    return float(np.partition(values, last)[last])


def _share_on_grid(sums: Iterable[Sums]) -> float | None:
    known = list(sums)
    rounded = sum(part["rounded"] for part in known)
    return sum(part["near"] for part in known) / rounded if rounded else None


def _mean_share(tensors: Sequence[TensorDelta]) -> float:
    rows = sum(tensor.rows for tensor in tensors)
    return sum(tensor.rows * tensor.share_above for tensor in tensors) / rows if rows else math.nan


def _correlation(one: Changes, other: Changes, names: Sequence[str]) -> float | None:
    if not names:
        return None
    first, second = (
        np.concatenate([sums[name]["rows"] for name in names]) for sums in (one, other)
    )
    if first.size < 3 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    return float(np.corrcoef(first, second)[0, 1])
