"""What a cell's recipe leaves as it is, and the dtype of a study's engines. Starts no engine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from ablations.engines.options import EngineOptions
from ablations.study.documents import DELTA_REVERT
from layerswap_method.stream.weight_stream import checkpoint_stream


def unmerged(merge: Mapping[str, Any]) -> str | None:
    """Return the reference of the model that the recipe leaves as it is; None for a merge."""
    models = list(merge.get("models") or ())
    if merge["merge_method"] != "passthrough" or len(models) != 1:
        return None
    is_plain = set(merge) <= {"merge_method", "models"} and set(models[0]) == {"model"}
    return str(models[0]["model"]) if is_plain else None


def engine_options(options: EngineOptions, base_folder: Path) -> EngineOptions:
    """Return the options of every engine of a study, with its one dtype written out.

    Args:
        options: what the study says; ``auto`` is the dtype in which the base is stored.
        base_folder: checkpoint of the base.
    """
    known = get_args(EngineOptions.model_fields["dtype"].annotation)
    stored = checkpoint_stream(base_folder).model_dtype
    if options.dtype != "auto" or stored not in known:
        return options
    return options.model_copy(update={"dtype": stored})


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
