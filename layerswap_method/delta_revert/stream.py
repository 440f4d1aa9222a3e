"""A `delta_revert` recipe as a stream of tensors, each from expert, base, or rows of both.

Knows specs and files; not engines, not mergekit. Every tensor is bit-identical to the one that
`mergekit-yaml` writes for the same recipe: rows are parted by the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from layerswap_method.algorithm.tensor_names import decoder_layer
from layerswap_method.checkpoints.model_files import StreamInput
from layerswap_method.deltas.rows import input_axis, row_layout
from layerswap_method.errors import InputError
from layerswap_method.stream.mix import RowChoice, TensorMix
from layerswap_method.stream.weight_stream import (
    StreamModel,
    WeightStream,
    copy_mix,
    read_models,
    weight_names,
    written,
)

if TYPE_CHECKING:
    from layerswap_method.delta_revert.measure import MeasuredRows
    from layerswap_method.delta_revert.rows import Kept
    from layerswap_method.delta_revert.spec import RevertSpec


@dataclass(frozen=True)
class RevertStream(WeightStream):
    """The stream of a `delta_revert`."""

    layers: frozenset[int] = frozenset()
    """Layers that go back whole."""

    num_layers: int = 0
    """Decoder layers."""

    threshold: float | None = None
    """Rows with a smaller change go back; None where rows are not looked at."""

    tally: Mapping[str, Kept] = field(default_factory=dict)
    """Tensor name -> what is kept of it."""


def revert_stream(
    spec: RevertSpec,
    expert: StreamInput,
    base: StreamInput,
    dtype: str | None = None,
    out_dtype: str | None = None,
) -> RevertStream:
    """Return the stream of a `delta_revert` recipe.

    Where rows are compared both checkpoints are read here, once in a process for all thresholds
    and fractions.

    Args:
        spec: the recipe's parameters.
        expert: the fine-tuned model.
        base: what goes back is of it, and so are config and tokenizer.
        dtype: the recipe's ``dtype``.
        out_dtype: the recipe's ``out_dtype``.

    Raises:
        InputError: with every problem of the first kind found: files, adapters, models that do not
            fit each other, layers that do not fit the model; where rows are compared, a base that
            is not the expert's or has an adapter, and changes that are not finite.
    """
    import numpy as np

    from layerswap_method.delta_revert.rows import NOTHING, Kept

    models = ours, theirs = read_models([expert, base])
    num_layers = theirs.checkpoint.depth()
    try:
        layers = spec.layers(num_layers)
    except ValueError as error:
        raise InputError(f"delta_revert recipe: {error}") from error
    measured = _measure(ours, theirs) if spec.by_row else None
    threshold = None if measured is None else measured.threshold(spec)
    tally: dict[str, Kept] = {}

    def mix(name: str) -> TensorMix:
        rule = spec.rule(name, decoder_layer(name), layers)
        shape = ours.stored(name).shape
        if measured is None or threshold is None or rule != "rows":
            axis = input_axis(name, len(shape), theirs.checkpoint.config.text_type)
            rows = row_layout(shape, axis).features
            tally[name] = Kept.whole(rows, math.prod(shape), stays=rule != "base")
            return copy_mix(theirs if rule == "base" else ours, name, dtype, out_dtype)
        # A tied head that only one of them stores has the embedding's rows.
        places = (name, ours.stored_name(name), theirs.stored_name(name))
        compared = next((each for each in places if each in measured.mavs), name)
        is_stored_alike = places[1] == places[2] and ours.dtype(name) == theirs.dtype(name)
        stays = measured.stays(compared, threshold)
        tally[name] = kept = Kept.of(stays, math.prod(shape))
        if kept.kept_rows in (0, kept.rows) and is_stored_alike:
            return copy_mix(ours if kept.kept_rows else theirs, name, dtype, out_dtype)
        return TensorMix(
            terms=((ours.origin(name), 1.0), (theirs.origin(name), 1.0)),
            rows=RowChoice(
                first=np.packbits(stays.numpy()).tobytes().hex(), axis=measured.pair.axis(compared)
            ),
            # Compared as stored, rounded after: mergekit does not round on loading here.
            dtype=dtype,
            out_dtype=out_dtype,
        )

    mixes = written({name: mix(name) for name in weight_names(models)})
    kept = sum(tally.values(), NOTHING).record()
    return RevertStream(
        mixes,
        donor=base.folder,
        model_dtype=out_dtype or dtype or theirs.config_dtype,
        description=f"delta_revert of {expert.name}",
        measured={"base_model": base.name, "threshold": threshold, "kept": kept},
        layers=layers,
        num_layers=num_layers,
        threshold=threshold,
        tally=tally,
    )


def _measure(ours: StreamModel, theirs: StreamModel) -> MeasuredRows:
    from layerswap_method.delta_revert.measure import measure_rows
    from layerswap_method.deltas.open_pair import open_pair

    pair = open_pair(ours.given, theirs.given)
    origins = {name: ours.origin(name) for name in pair.names}
    changed = {
        name: origin
        for name, origin in origins.items()
        if origin.change is not None or origin.dtype is not None
    }
    return measure_rows(pair, changed)
