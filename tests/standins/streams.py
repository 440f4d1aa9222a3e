"""A mergekit recipe as the stream that should equal it: one document, read two ways."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from layerswap_method.delta_revert.stream import revert_stream

from layerswap_method.deltas import known
from layerswap_method.methods.delta_revert import RevertSpec
from layerswap_method.methods.layer_swap import LayerSwapSpec
from layerswap_method.methods.layer_swap_merge import layer_swap_stream
from layerswap_method.recipe.document import WeightStream, checkpoint_stream, linear_stream
from layerswap_method.recipe.references import StreamInput
from tests.standins.merging import merge
from tests.standins.oracle import assert_same, stored


def stream_of(document: Mapping[str, Any]) -> WeightStream:
    """Return the stream of a recipe with `models:`."""
    dtypes = {"dtype": document.get("dtype"), "out_dtype": document.get("out_dtype")}
    inputs = [_input(entry) for entry in document["models"]]
    if document["merge_method"] == "passthrough":
        return checkpoint_stream(inputs[0].folder, inputs[0].adapter, **dtypes)
    if document["merge_method"] == "linear":
        return linear_stream(inputs, **dtypes)
    base = _input({"model": document["base_model"]})
    if document["merge_method"] == "delta_revert":
        return revert_stream(RevertSpec(**document["parameters"]), inputs[0], base, **dtypes)
    spec = LayerSwapSpec(**document["parameters"])
    return layer_swap_stream(spec, inputs, base, **dtypes)


def check_stream(document: Mapping[str, Any], out: Path, **options: Any) -> WeightStream:
    """Fail unless stream and merge agree, each having measured for itself; return the stream."""
    merged = stored(merge(document, out, **options))
    known._known.clear()
    stream = stream_of(document)
    assert_same(dict(stream.tensors()), merged)
    return stream


def _input(entry: Mapping[str, Any]) -> StreamInput:
    parameters = entry.get("parameters", {})
    folder, _, adapter = entry["model"].partition("+")
    return StreamInput(
        name=entry["model"],
        folder=Path(folder),
        role=parameters.get("role"),
        weight=parameters.get("weight", 1.0),
        adapter=Path(adapter) if adapter else None,
    )
