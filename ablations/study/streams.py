"""A cell's recipe as a stream of tensors. Knows which of mergekit's methods can be streamed.

And what the merged model needs of its engine; starts none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from ablations.engines.options import EngineOptions
from ablations.study.documents import DELTA_REVERT


def unmerged(merge: Mapping[str, Any]) -> str | None:
    """Return the reference of the model that the recipe leaves as it is; None for a merge."""
    models = list(merge.get("models") or ())
    if merge["merge_method"] != "passthrough" or len(models) != 1:
        return None
    is_plain = set(merge) <= {"merge_method", "models"} and set(models[0]) == {"model"}
    return str(models[0]["model"]) if is_plain else None


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
