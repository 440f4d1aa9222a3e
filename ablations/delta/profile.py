"""Where and how much one expert changed, as values that are kept. Computes nothing from tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from ablations.drawing.grid import Grid, scientific
from ablations.paper.published import LABEL
from layerswap_method.errors import InputError
from layerswap_method.frozen import Frozen


class TensorDelta(Frozen):
    """What fine-tuning did to one tensor; of rows see `layerswap_method.deltas.features`."""

    name: str
    """In the base's files."""

    layer: int | None
    """Decoder layer, 0-based from the embedding side; None outside the layers."""

    parameter: str
    """Below the layer, without ``.weight``; the whole name outside."""

    shape: tuple[int, ...]
    """As stored."""

    is_matrix: bool
    """Whether its rows are input features; a vector is one row."""

    rows: int
    """Number of rows."""

    mav_mean: float
    """Mean over the rows of their mean absolute change, in the unit of the weights."""

    mav_median: float
    """Median over the rows."""

    mav_p90: float
    """90th percentile over the rows, interpolated linearly."""

    mav_max: float
    """The most changed row."""

    share_above: float
    """Rows with a MAV above the threshold, in [0, 1]."""

    relative_norm: float | None
    """Norm of the delta over that of the base, Frobenius; None for a base of zeros."""

    cosine_to_base: float | None
    """Cosine between the expert's and the base's values, in [-1, 1]; None where one is all 0."""

    delta_cosine_to_base: float | None
    """Cosine between delta and base: negative where fine-tuning shrank; None for no change."""

    share_changed: float
    """Values with a delta other than 0 in float32, in [0, 1]."""

    share_on_grid: float | None
    """Changed values at most two representable numbers of the expert's dtype from the base, in
    [0, 1]; None for a float32 expert, an adapter, or no change."""


class DeltaProfile(Frozen):
    """What fine-tuning did to a model."""

    schema_version: Literal[1] = 1
    """Of this format."""

    expert: str
    """As it was given."""

    base: str
    """As it was given."""

    architecture: str
    """Class name in the base's config."""

    num_layers: int = Field(ge=0)
    """Decoder layers."""

    dtypes: tuple[str, ...]
    """What the expert's matrices are stored as; `adapter` where one is added in float32."""

    threshold: float = Field(ge=0)
    """MAV, in the unit of the weights."""

    threshold_source: str
    """`given`, or for which share of rows above it it was found."""

    mean_row_mav: float
    """Average MAV over all rows of all tensors, each row once (section 5.1)."""

    relative_norm: float | None
    """Of all weights as one vector."""

    cosine_to_base: float | None
    """Of all weights as one vector."""

    share_changed: float
    """Of all weights."""

    share_on_grid: float | None
    """Of all changed weights that are stored in bfloat16 or float16."""

    columns: tuple[str, ...]
    """Parameters of a layer that are matrices, in the paper's order."""

    vectors: tuple[str, ...]
    """The other parameters of a layer."""

    tensors: tuple[TensorDelta, ...]
    """In the order of the base's files."""

    def grid(self, *, columns: Sequence[str] | None = None, title: str | None = None) -> Grid:
        """Return the share of rows above the threshold per layer and parameter, layer 0 first.

        Where several tensors are one parameter (experts of a mixture), their shares are averaged
        by their number of rows. NaN where a layer has no such parameter.

        Args:
            columns: parameters; `self.columns` by default.
            title: the expert by default.

        Raises:
            InputError: for a model whose layers hold no matrix.
        """
        columns = self.columns if columns is None else columns
        if not columns or not self.num_layers:
            raise InputError(
                f"{self.expert}: no decoder layer has a weight matrix, so there is no grid"
            )
        cells: dict[tuple[int | None, str], list[tuple[int, float]]] = {}
        for tensor in self.tensors:
            place = (tensor.layer, tensor.parameter)
            cells.setdefault(place, []).append((tensor.rows, tensor.share_above))
        return Grid(
            title=title or self.expert,
            columns=tuple(columns),
            values=tuple(
                tuple(_mean(cells.get((layer, column), ())) for column in columns)
                for layer in range(self.num_layers)
            ),
            label=LABEL,
            note=f"MAV > {scientific(self.threshold)}",
            limits=(0.0, 1.0),
        )


def _mean(cells: Sequence[tuple[int, float]]) -> float:
    rows = sum(count for count, _ in cells)
    return sum(count * value for count, value in cells) / rows if rows else math.nan
