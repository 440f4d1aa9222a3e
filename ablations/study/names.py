"""The names of a study's experts: those that it gives, else the ends of their paths."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ablations.study.checks import expert_names
from ablations.study.schema import EXPERTS, ROLES, Study
from layerswap_method.recipe.references import model_names, named_models


def with_names(study: Study, taken: Collection[str]) -> tuple[Study, dict[str, str]]:
    """Return the study with a name in place of each path, and name -> path, which it has as well.

    A path or a hub id has a slash (``./math``, ``org/math``); other texts are names already.
    `taken` are the names of the experts file and of `Pools.places`.
    """
    written = expert_names(study)
    paths = [text for text in written if "/" in text and text not in taken]
    others = {*taken, *written} - {*paths}
    if {*paths} & {*named_models(study.recipe or {})}:
        others |= {*ROLES}  # which stand for other models in a recipe
    names = model_names(paths, others)
    if not names:
        return study, {}
    pools, report = study.experts, study.report
    written_places = {name: path for path, name in names.items()}
    places = {**pools.places, **written_places}
    roles = {role: _named(getattr(pools, role), names) for role in ROLES}
    facts = {names.get(text, text): facts for text, facts in pools.facts.items()}
    setting = report.primary.setting and _with_experts(report.primary.setting, names)
    primary = report.primary.model_copy(update={"setting": setting})
    vary = study.vary
    changes = {
        "experts": pools.model_copy(update={**roles, "facts": facts, "places": places}),
        "recipe": _with_models(study.recipe, names),
        "vary": tuple(_with_experts(one, names) for one in vary)
        if isinstance(vary, tuple)
        else vary and _with_experts(vary, names),
        "report": report.model_copy(update={"primary": primary}),
    }
    return study.model_copy(update=changes), written_places


def _named(value: Any, names: Mapping[str, str]) -> Any:
    """Return texts, alone, in a tuple or by language, with their names."""
    if isinstance(value, dict):
        return {key: _named(inner, names) for key, inner in value.items()}
    if isinstance(value, tuple):
        return tuple(_named(inner, names) for inner in value)
    return names.get(value, value) if isinstance(value, str) else value


def _with_experts(setting: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {
        name: _named(value, names) if name.startswith(EXPERTS) else value
        for name, value in setting.items()
    }


def _with_models(value: Any, names: Mapping[str, str], key: str = "") -> Any:
    """Return a part of a recipe with the names of its models."""
    if isinstance(value, dict):
        return {name: _with_models(inner, names, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [_with_models(inner, names) for inner in value]
    return names.get(value, value) if key in ("model", "base_model") else value
