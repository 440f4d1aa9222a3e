"""The place and size of an expert's change: a DataFrame of tensors, its profile and grid."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ablations.machine.progress import track
from ablations.paper.published import Grid, scientific
from layerswap_method.deltas.pair import (
    DeltaPair,
    for_each_tensor,
    not_finite,
    read_deltas,
    sum_squares,
)
from layerswap_method.tensor_names import Decoder, layer_part, split_layer

SHARE_ABOVE = 0.125
"""Share of the rows above a threshold that nobody gave; the paper's six grids have 0.11 to 0.16."""

_FINE_ROWS = 256
"""Rows of a block up to which columns are summed in float32."""

_PARTS = ("attention", "mlp", "norm", "other")
_ORDER = (
    "q_proj",
    "k_proj",
    "v_proj",
    "qkv_proj",
    "o_proj",
    "gate_proj",
    "w1",
    "up_proj",
    "w3",
    "gate_up_proj",
    "down_proj",
    "w2",
)
"""Last parts of names in the paper's order: q, k, v, o, gate, up, down (Mixtral's w1, w3, w2)."""

_EXPERT = re.compile(r"(\bexperts)\.\d+\.")


@dataclass(frozen=True)
class DeltaProfile:
    """The change of a model by fine-tuning."""

    label: str
    num_layers: int

    threshold: float
    """Mean absolute change that rows are counted above, in the unit of the weights."""

    mean_row_mav: float
    """Average over all rows of all tensors, each row once (section 5.1)."""

    relative_norm: float | None
    """||change|| / ||base|| of all weights as one vector; None for a base of zeros."""

    share_changed: float

    tensors: pd.DataFrame
    """One row per tensor, as ``delta.csv`` has it:

    - ``name``; ``layer``: decoder layer, 0-based from the embedding side, or none;
    - ``parameter``: below the layer, without ``.weight``; the whole name outside of the layers;
    - ``is_matrix``; ``rows``: input features (a vector is one row);
    - ``mav``, ``mav_max``: mean absolute change of a weight, and of the row that changed most;
    - ``share_above``: share of the rows with a mean absolute change above the threshold;
    - ``relative_norm``: ||change|| / ||base||, Frobenius; none for a base of zeros;
    - ``share_changed``: share of the values with a change other than 0 in float32.
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
        columns = _in_order(shown["parameter"])
        values = shares.reindex(index=range(self.num_layers), columns=columns).to_numpy()
        return Grid(
            title=self.label,
            columns=columns,
            values=tuple(map(tuple, values.tolist())),
            note=f"MAV > {scientific(self.threshold)}",
        )


def read_tensor_changes(pair: DeltaPair) -> pd.DataFrame:
    """Return the sums over the change of every tensor; both checkpoints are read once.

    Returns:
        One row per tensor: ``name``, ``layer``, ``parameter``, ``is_matrix``; ``means``, a float64
        array of the mean absolute change (MAV) of every input feature; ``change`` and ``base``,
        sums of squares; ``size``, the number of values, and ``changed``, of those with a change
        other than 0 in float32.

    Raises:
        InputError: for files that change, and weights that are NaN or infinite.
    """
    names = list(pair.names)
    shown = track(f"reading the changes of {pair.expert}", names)
    measured = for_each_tensor(
        shown, lambda name: _sum_tensor(pair, name), uses_torch=bool(pair.changes)
    )
    sums = [row for _, row in measured]
    places = [_place(name, pair.decoder) for name in names]
    frame = pd.DataFrame({"name": names})
    frame["layer"] = pd.array([layer for layer, _ in places], dtype="Int64")
    frame["parameter"] = [parameter for _, parameter in places]
    frame["is_matrix"] = [pair.axis(name) is not None for name in names]
    return frame.join(pd.DataFrame(sums))


def relative_norm(changes: pd.DataFrame) -> float | None:
    """Return ||change|| / ||base|| of tensors as one vector; None for a base of zeros."""
    base = math.fsum(changes["base"])
    return math.sqrt(math.fsum(changes["change"]) / base) if base > 0 else None


def norms_by_layer(changes: pd.DataFrame, num_layers: int) -> tuple[float | None, ...]:
    """Return `relative_norm` of each decoder layer, layer 0 first."""
    layers = changes["layer"].fillna(-1)
    return tuple(relative_norm(changes[layers == layer]) for layer in range(num_layers))


def profile_of(pair: DeltaPair, label: str, threshold: float | None = None) -> DeltaProfile:
    """Return the profile of an expert.

    Args:
        pair: the expert and its base.
        label: its short name.
        threshold: mean absolute change that rows are counted above; None takes the one with
            `SHARE_ABOVE` of the rows of the layers' matrices above it.

    Raises:
        InputError: as `read_tensor_changes`.
    """
    changes = read_tensor_changes(pair)
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
    )
    return DeltaProfile(
        label=label,
        num_layers=pair.decoder.num_layers or 0,
        threshold=threshold,
        mean_row_mav=float(
            (tensors["mav"] * tensors["rows"]).sum() / max(tensors["rows"].sum(), 1)
        ),
        relative_norm=relative_norm(changes),
        share_changed=float(changes["changed"].sum() / max(changes["size"].sum(), 1)),
        tensors=tensors,
    )


def _place(name: str, decoder: Decoder) -> tuple[int | None, str]:
    """Return a tensor's decoder layer and parameter; None and its name outside of the layers.

    The experts of a layer, one tensor each, are one parameter: ``mlp.experts.*.up_proj``.
    """
    # An encoder-decoder has no one stack to swap; its layers are shown by their numbers.
    layer = split_layer(name)[0] if decoder.doubt else decoder.layer(name)
    if layer is None:
        return None, name
    return layer, _EXPERT.sub(r"\1.*.", split_layer(name)[1].removesuffix(".weight"))


def _in_order(parameters: Iterable[str]) -> tuple[str, ...]:
    """Return parameters in the paper's order, attention before MLP; no name twice.

    Names that the paper does not have come last in their part, in the order given.
    """

    def place(parameter: str) -> tuple[int, int]:
        part, last = layer_part(f"layers.0.{parameter}"), parameter.rpartition(".")[2]
        return _PARTS.index(part), _ORDER.index(last) if last in _ORDER else len(_ORDER)

    return tuple(sorted(dict.fromkeys(parameters), key=place))


def _matrices(tensors: pd.DataFrame) -> pd.DataFrame:
    return tensors[tensors["layer"].notna() & tensors["is_matrix"]]


def _threshold(rows: Sequence[Any]) -> float:
    """Return the smallest row's mean that at most `SHARE_ABOVE` of all rows is above."""
    values = np.concatenate(rows).astype(np.float32) if rows else np.zeros(1, np.float32)
    last = max(0, values.size - 1 - math.floor(SHARE_ABOVE * values.size))
    return float(np.partition(values, last)[last])


def _sum_tensor(pair: DeltaPair, name: str) -> dict[str, Any]:
    """Return the row of `read_tensor_changes` of one tensor.

    Each block of rows is read once, in float32; sums over blocks are in float64.
    """
    layout = pair.layout(name)
    means = np.zeros(layout.features)
    change = base = 0.0
    size = changed = 0
    for block in read_deltas(pair, name):
        first, lines = block.first, np.abs(block.delta, out=block.delta)
        change += sum_squares(lines)
        base += sum_squares(block.base)
        size += lines.size
        changed += int(np.count_nonzero(lines != 0))  # faster than of the floats
        if layout.across:
            place = first // layout.rows * layout.columns
            dtype = np.float32 if len(lines) <= _FINE_ROWS else np.float64
            means[place : place + layout.columns] += np.add.reduce(lines, axis=0, dtype=dtype)
        else:
            means[first : first + len(lines)] = np.add.reduce(lines, axis=1)
    if not np.isfinite(change) or not np.isfinite(base):
        raise not_finite(pair, name)
    means /= max(1, layout.rows if layout.across else layout.columns)
    return {"means": means, "change": change, "base": base, "size": size, "changed": changed}
