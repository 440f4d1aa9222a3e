"""Where and how much an expert changed: a DataFrame of tensors, and what is made of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ablations.delta.parameters import in_order, places_of
from ablations.delta.sums import change_product, for_each_tensor, tensor_sums
from ablations.machine.progress import counted
from ablations.paper.published import Grid, scientific
from layerswap_method.deltas.pair import DeltaPair

SHARE_ABOVE = 0.125
"""Share of the rows above a threshold that nobody gave; the paper's six grids have 0.11 to 0.16."""


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
    """||change|| / ||base|| of all weights as one vector; None for a base of zeros."""

    share_changed: float
    share_on_grid: float | None

    tensors: pd.DataFrame
    """A row a tensor, as ``delta.csv`` has it:

    - ``name``; ``layer``: decoder layer, 0-based from the embedding side, or none;
    - ``parameter``: below the layer, without ``.weight``; the whole name outside of the layers;
    - ``is_matrix``; ``rows``: input features (a vector is one row);
    - ``mav``, ``mav_max``: mean absolute change of a weight, and of the row that changed most;
    - ``share_above``: share of the rows with a mean absolute change above the threshold;
    - ``relative_norm``: ||change|| / ||base||, Frobenius; none for a base of zeros;
    - ``share_changed``: share of the values with a change other than 0 in float32;
    - ``share_on_grid``: share of the changed values at most two representable numbers of the
      expert's dtype from the base; none for a float32 expert, an adapter, or no change.
    """

    @property
    def matrices(self) -> pd.DataFrame:
        """The tensors that a heatmap shows: the matrices of the decoder layers."""
        return _matrices(self.tensors)

    def grid(self) -> Grid:
        """Return the share of rows above the threshold per layer and matrix, layer 0 first.

        The parameters stand in the paper's order. Where several tensors are one parameter (experts
        of a mixture), their shares are averaged by their number of rows. NaN where a layer has no
        such parameter.
        """
        shown = self.matrices
        places = [shown["layer"].astype(int), shown["parameter"]]
        above = (shown["share_above"] * shown["rows"]).groupby(places).sum()
        shares = (above / shown["rows"].groupby(places).sum()).unstack()
        columns = in_order(shown["parameter"])
        values = shares.reindex(index=range(self.num_layers), columns=columns).to_numpy()
        return Grid(
            title=self.label,
            columns=columns,
            values=tuple(map(tuple, values.tolist())),
            note=f"MAV > {scientific(self.threshold)}",
        )


def read_changes(pair: DeltaPair, names: Sequence[str]) -> pd.DataFrame:
    """Return the sums over the change of every tensor; both checkpoints are read once.

    Returns:
        A row a tensor: ``name``, ``layer``, ``parameter``, ``is_matrix``, and the keys of `Sums`.

    Raises:
        InputError: for files that change, and weights that are NaN or infinite.
    """
    shown = counted(f"reading the changes of {pair.expert}", names)
    sums = dict(for_each_tensor(shown, lambda name: tensor_sums(pair, name)))
    frame = pd.DataFrame({"name": list(sums)})
    places = places_of(list(sums))
    frame["layer"] = pd.array([places[name][0] for name in sums], dtype="Int64")
    frame["parameter"] = [places[name][1] for name in sums]
    frame["is_matrix"] = [pair.axis(name) is not None for name in sums]
    return frame.join(pd.DataFrame(list(sums.values())))


def relative_norm(changes: pd.DataFrame) -> float | None:
    """Return ||change|| / ||base|| of tensors as one vector; None for a base of zeros."""
    base = math.fsum(changes["base"])
    return math.sqrt(math.fsum(changes["change"]) / base) if base > 0 else None


def norms_by_layer(changes: pd.DataFrame, num_layers: int) -> tuple[float | None, ...]:
    """Return `relative_norm` of each decoder layer, layer 0 first."""
    return tuple(relative_norm(_in_layer(changes, layer)) for layer in range(num_layers))


def profile_of(
    pair: DeltaPair, label: str, changes: pd.DataFrame, threshold: float | None = None
) -> DeltaProfile:
    """Return the profile of an expert.

    Args:
        pair: the expert and its base.
        label: its short name.
        changes: of `read_changes`.
        threshold: mean absolute change that rows are counted above; None takes the one with
            `SHARE_ABOVE` of the rows of the layers' matrices above it.
    """
    means = changes["means"]
    if threshold is None:
        threshold = _threshold(list(_matrices(changes)["means"]))
    tensors = changes[["name", "layer", "parameter", "is_matrix"]].assign(
        rows=means.map(len),
        mav=means.map(lambda rows: rows.mean() if rows.size else 0.0),
        mav_max=means.map(lambda rows: rows.max(initial=0.0)),
        share_above=means.map(
            lambda rows: (rows.astype(np.float32) > threshold).mean() if rows.size else 0.0
        ),
        relative_norm=np.sqrt(changes["change"] / changes["base"].where(changes["base"] > 0)),
        share_changed=(changes["changed"] / changes["size"]).fillna(0.0),
        share_on_grid=changes["near"] / changes["rounded"].where(changes["rounded"] > 0),
    )
    total = changes[["size", "changed", "rounded", "near"]].sum()
    stored = [pair.expert_dtype(name) for name in changes["name"][changes["is_matrix"]]]
    dtypes = {"adapter" if d is None else str(d).removeprefix("torch.") for d in stored}
    rows = tensors["rows"].sum()
    return DeltaProfile(
        label=label,
        num_layers=_depth(pair, changes),
        dtypes=tuple(sorted(dtypes)),
        threshold=threshold,
        mean_row_mav=float((tensors["mav"] * tensors["rows"]).sum() / max(rows, 1)),
        relative_norm=relative_norm(changes),
        share_changed=float(total["changed"] / max(total["size"], 1)),
        share_on_grid=float(total["near"] / total["rounded"]) if total["rounded"] else None,
        tensors=tensors,
    )


def compare_changes(
    one: tuple[DeltaPair, str, pd.DataFrame], other: tuple[DeltaPair, str, pd.DataFrame]
) -> pd.DataFrame:
    """Return how alike two experts of one base are: as a whole, and layer by layer.

    Args:
        one: an expert, its short name and its changes.
        other: another, with changes of the same tensors.

    Returns:
        The rows of ``comparison.csv``: ``first``, ``second``, ``layer`` (none for the whole model),
        ``cosine`` between the two changes, all weights as one vector (what souping the two meets:
        1 is the same direction, 0 none in common, below 0 they undo each other), and
        ``correlation``, Pearson's, of the mean absolute changes of the rows of the layers'
        matrices. Empty where there is no change.
    """
    (pair, first, changes), (other_pair, second, other_changes) = one, other
    names = counted(f"comparing {first} and {second}", list(changes["name"]))
    products = dict(for_each_tensor(names, lambda name: change_product(pair, other_pair, name)))
    both = changes.assign(
        product=changes["name"].map(products),
        other_change=other_changes["change"],
        other_means=other_changes["means"],
    )
    rows = []
    for layer in (None, *range(_depth(pair, changes))):
        part = both if layer is None else _in_layer(both, layer)
        squares = math.fsum(part["change"]) * math.fsum(part["other_change"])
        cosine = None
        if squares > 0:
            cosine = min(1.0, max(-1.0, math.fsum(part["product"]) / math.sqrt(squares)))
        rows.append((first, second, layer, cosine, _correlation(_matrices(part))))
    table = pd.DataFrame(rows, columns=["first", "second", "layer", "cosine", "correlation"])
    return table.astype({"layer": "Int64", "cosine": float, "correlation": float})


def _in_layer(changes: pd.DataFrame, layer: int) -> pd.DataFrame:
    return changes[(changes["layer"] == layer).fillna(False)]


def _matrices(tensors: pd.DataFrame) -> pd.DataFrame:
    return tensors[tensors["layer"].notna() & tensors["is_matrix"]]


def _depth(pair: DeltaPair, changes: pd.DataFrame) -> int:
    if pair.num_layers is not None:
        return pair.num_layers
    return int(changes["layer"].max()) + 1 if changes["layer"].notna().any() else 0


def _threshold(rows: Sequence[Any]) -> float:
    """Return the smallest row's mean that at most `SHARE_ABOVE` of all rows is above."""
    values = np.concatenate(rows).astype(np.float32) if rows else np.zeros(1, np.float32)
    last = max(0, values.size - 1 - math.floor(SHARE_ABOVE * values.size))
    return float(np.partition(values, last)[last])


def _correlation(matrices: pd.DataFrame) -> float | None:
    if matrices.empty:
        return None
    first, second = (np.concatenate(list(matrices[key])) for key in ("means", "other_means"))
    if first.size < 3 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    return float(np.corrcoef(first, second)[0, 1])
