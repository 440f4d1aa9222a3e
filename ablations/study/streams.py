"""A cell's recipe as a stream of tensors. Knows which of mergekit's methods can be streamed.

And what the merged model needs of its engine; starts none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from ablations.evaluation.evaluator import EngineOptions
from ablations.study.documents import DELTA_REVERT, LAYER_SWAP, named_models
from ablations.study.experts import Expert
from layerswap_method.revert.spec import RevertSpec
from layerswap_method.revert.stream import revert_stream
from layerswap_method.spec import LayerSwapSpec
from layerswap_method.streams import (
    StreamInput,
    WeightStream,
    checkpoint_stream,
    layer_swap_stream,
    linear_stream,
)

_KNOWN = ("merge_method", "models", "base_model", "parameters", "dtype", "out_dtype")
"""Keys of a recipe that streams follow; with any other (``tokenizer:``) mergekit must merge."""


def can_stream(merge: Mapping[str, Any]) -> bool:
    """Return whether the recipe's tensors can be had without a merged copy on disk."""
    if not set(merge) <= set(_KNOWN):
        return False
    method, models = merge["merge_method"], list(merge.get("models") or ())
    if method == "passthrough":
        return len(models) == 1 and not models[0].get("parameters")
    if method == "linear":
        references = [entry["model"] for entry in models]
        weights = [(entry.get("parameters") or {}).get("weight") for entry in models]
        numbers = all(isinstance(weight, (int, float)) for weight in weights)
        # mergekit adds a base_model that is none of the models to the sum.
        return numbers and merge.get("base_model") == references[0] and not merge.get("parameters")
    return method in (LAYER_SWAP, DELTA_REVERT)


def unmerged(merge: Mapping[str, Any]) -> str | None:
    """Return the reference of the model that the recipe leaves as it is; None for a merge."""
    models = list(merge.get("models") or ())
    if merge["merge_method"] != "passthrough" or len(models) != 1:
        return None
    is_plain = set(merge) <= {"merge_method", "models"} and set(models[0]) == {"model"}
    return str(models[0]["model"]) if is_plain else None


def donor(merge: Mapping[str, Any]) -> str:
    """Return the reference of the model whose config and tokenizer mergekit writes."""
    return str(merge.get("base_model") or next(named_models(merge)))


def engine_options(
    options: EngineOptions, model_dtype: str | None, base_dtype: str | None
) -> EngineOptions:
    """Return the options of a live engine that computes as a cold one would on the checkpoint.

    Args:
        options: what the study says; a dtype there is that of every model.
        model_dtype: torch dtype that the merged model's config states; None where none.
        base_dtype: that of the checkpoint on which the engine starts.
    """
    known = get_args(EngineOptions.model_fields["dtype"].annotation)
    if options.dtype != "auto" or model_dtype == base_dtype or model_dtype not in known:
        return options
    return options.model_copy(update={"dtype": model_dtype})


def needs_deltas(merge: Mapping[str, Any]) -> bool:
    """Return whether the experts' changes must be measured for the recipe: all weights are read."""
    parameters = merge.get("parameters") or {}
    if merge["merge_method"] == DELTA_REVERT:
        return RevertSpec(**parameters).by_row
    return merge["merge_method"] == LAYER_SWAP and LayerSwapSpec(**parameters).needs_deltas


def without_idle_rows(merge: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a recipe of the same weights that compares no rows where all of them stay.

    At ``keep_fraction: 1`` and ``threshold: 0`` nothing need be measured to know that. Without a
    ``dtype`` the recipe stays as it is: of two dtypes, compared rows get the wider.
    """
    parameters = dict(merge.get("parameters") or {})
    idle = parameters.get("keep_fraction") == 1 or parameters.get("threshold") == 0
    if merge["merge_method"] != DELTA_REVERT or not idle or merge.get("dtype") is None:
        return merge
    left = {k: v for k, v in parameters.items() if k not in ("keep_fraction", "threshold")}
    return {**merge, "parameters": left or {"bottom_layers": 0}}


def stream_of(merge: Mapping[str, Any], experts: Mapping[str, Expert]) -> WeightStream:
    """Return the stream of a recipe that `can_stream`.

    Args:
        merge: the recipe.
        experts: reference, as the recipe writes it -> expert.

    Raises:
        InputError: where an expert cannot be read, or its adapter cannot be streamed.
    """
    dtypes = {key: merge.get(key) for key in ("dtype", "out_dtype")}
    inputs = [_input(experts[entry["model"]], entry) for entry in merge["models"]]
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


def _input(expert: Expert, entry: Mapping[str, Any]) -> StreamInput:
    parameters = entry.get("parameters") or {}
    return StreamInput(
        name=expert.name,
        folder=expert.folder,
        role=parameters.get("role"),
        weight=float(parameters.get("weight", 1.0)),
        adapter=expert.adapter,
    )
