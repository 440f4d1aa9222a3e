"""A recipe of any streamable method as a stream of tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from layerswap_method.checkpoints.model_files import ModelFiles, StreamInput
from layerswap_method.delta_revert.spec import NAME as DELTA_REVERT
from layerswap_method.delta_revert.spec import RevertSpec
from layerswap_method.delta_revert.stream import revert_stream
from layerswap_method.layer_swap.spec import NAME as LAYER_SWAP
from layerswap_method.layer_swap.spec import LayerSwapSpec
from layerswap_method.layer_swap.stream import layer_swap_stream
from layerswap_method.stream.weight_stream import WeightStream, checkpoint_stream, linear_stream

KNOWN = ("merge_method", "models", "base_model", "parameters", "dtype", "out_dtype")
"""Keys of a recipe that streams follow; with any other (``tokenizer:``) mergekit must merge."""


def can_stream(merge: Mapping[str, Any]) -> bool:
    """Return whether the recipe's tensors can be had without a merged copy on disk."""
    if not set(merge) <= set(KNOWN):
        return False
    method, models = merge["merge_method"], list(merge.get("models") or ())
    if method == "passthrough":  # its one parameter, `scale`, may stand in both places
        return (
            len(models) == 1
            and not (models[0].get("parameters") or merge.get("parameters"))
            and merge.get("base_model") in (None, models[0]["model"])
        )
    if method == "linear":
        references = [entry["model"] for entry in models]
        weights = [(entry.get("parameters") or {}).get("weight") for entry in models]
        numbers = all(isinstance(weight, (int, float)) for weight in weights)
        # mergekit adds a base_model that is none of the models to the sum.
        return numbers and merge.get("base_model") == references[0] and not merge.get("parameters")
    return method in (LAYER_SWAP, DELTA_REVERT)


def needs_deltas(merge: Mapping[str, Any]) -> bool:
    """Return whether the experts' changes must be measured for the recipe: all weights are read."""
    parameters = merge.get("parameters") or {}
    if merge["merge_method"] == DELTA_REVERT:
        return RevertSpec(**parameters).by_row
    return merge["merge_method"] == LAYER_SWAP and LayerSwapSpec(**parameters).needs_deltas


def stream_of(merge: Mapping[str, Any], experts: Mapping[str, ModelFiles]) -> WeightStream:
    """Return the stream of a recipe that `can_stream`.

    Args:
        merge: the recipe.
        experts: reference, as the recipe writes it -> where the model is.

    Raises:
        InputError: where an expert cannot be read, or its adapter cannot be streamed.
    """
    dtypes = {key: merge.get(key) for key in ("dtype", "out_dtype")}
    inputs = stream_inputs(merge, experts)
    if merge["merge_method"] == "passthrough":
        return checkpoint_stream(inputs[0].folder, inputs[0].adapter, **dtypes)
    if merge["merge_method"] == "linear":
        return linear_stream(inputs, **dtypes)
    base = _input(experts[merge["base_model"]], {})
    parameters = merge.get("parameters") or {}
    if merge["merge_method"] == DELTA_REVERT:
        listed = zip(merge["models"], inputs, strict=True)
        (expert,) = (given for entry, given in listed if entry["model"] != merge["base_model"])
        return revert_stream(RevertSpec(**parameters), expert, base, **dtypes)
    spec = LayerSwapSpec(**parameters)
    with_role = [given for given in inputs if given.role is not None]
    return layer_swap_stream(spec, with_role, base, **dtypes)


def stream_inputs(merge: Mapping[str, Any], experts: Mapping[str, ModelFiles]) -> list[StreamInput]:
    """Return the models of a recipe in its order, with their roles and weights."""
    return [_input(experts[entry["model"]], entry) for entry in merge["models"]]


def _input(expert: ModelFiles, entry: Mapping[str, Any]) -> StreamInput:
    parameters = entry.get("parameters") or {}
    return StreamInput(
        name=expert.name,
        folder=expert.folder,
        role=parameters.get("role"),
        weight=float(parameters.get("weight", 1.0)),
        adapter=expert.adapter,
    )
