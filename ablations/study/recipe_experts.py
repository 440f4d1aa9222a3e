"""The experts of a study whose recipe names its models by place, as a working recipe does.

Knows documents as YAML gives them, before any check; opens no file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablations.study.documents import DELTA_REVERT, PLACEHOLDERS
from layerswap_method.recipe.references import named_models


def with_recipe_experts(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a study with the experts that its recipe names added to its `experts`.

    The base is the recipe's `base_model` (without one, its first model), the experts are the models
    with ``role: task`` and ``role: language``, and for `delta_revert` its one model. Where the
    recipe has one model of a role, the role takes the model's place in it, so that `vary` can
    choose others. What `experts` says itself stays.

    Args:
        document: the study, its recipe read.
    """
    study = dict(document)
    recipe, experts = study.get("recipe"), study.get("experts", {})
    if not isinstance(recipe, Mapping) or not isinstance(experts, Mapping):
        return study
    template, found = dict(recipe), dict(experts)
    models = [dict(each) if isinstance(each, Mapping) else each for each in _models(recipe)]
    for role in ("task", "language"):
        chosen = [each for each in models if isinstance(each, dict) and _role(recipe, each) == role]
        if role in experts or len(chosen) != 1 or not _is_place(chosen[0].get("model")):
            continue
        found[role] = chosen[0]["model"]
        chosen[0]["model"] = role
    base = recipe.get("base_model") or next(named_models(recipe), None)
    if "base" not in experts and _is_place(base):
        found["base"] = base
        for each in [template, *models]:
            for key in ("model", "base_model"):
                if isinstance(each, dict) and each.get(key) == base:
                    each[key] = "base"
    if found != experts:
        study["experts"] = found
        study["recipe"] = {**template, **({"models": models} if models else {})}
    return study


def _models(recipe: Mapping[str, Any]) -> list[Any]:
    models = recipe.get("models")
    return models if isinstance(models, list) else []


def _role(recipe: Mapping[str, Any], model: Mapping[str, Any]) -> Any:
    parameters = model.get("parameters")
    if recipe.get("merge_method") == DELTA_REVERT:
        return "task"
    return parameters.get("role") if isinstance(parameters, Mapping) else None


def _is_place(model: Any) -> bool:
    return isinstance(model, str) and model not in PLACEHOLDERS
