"""From a study's template to a mergekit recipe with folders in it. Knows documents; opens no file.

The models ``task``, ``language`` and ``base`` of a template stand for the experts of a cell. Every
other model is the name of an expert, the same in all cells.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from typing import Any

from ablations.models.find import Expert
from ablations.study.scaling import COUNTS, scale_counts, scale_layers
from ablations.study.schema import Scalar
from layerswap_method.errors import InputError, nearest_of
from layerswap_method.methods.delta_revert import RevertSpec
from layerswap_method.methods.layer_swap import LayerSwapSpec

LAYER_SWAP = "layer_swap"
DELTA_REVERT = "delta_revert"
PLACEHOLDERS = ("base", "task", "language")
"""Model names of a template that stand for the experts of a cell."""

_PARAMETERS = {
    LAYER_SWAP: tuple(LayerSwapSpec.model_fields),
    DELTA_REVERT: tuple(RevertSpec.model_fields),
}
"""Method of ours -> the names of its top-level parameters, written in the template or not."""

_STRUCTURE = ("models", "slices", "modules", "parameters", "base_model")
_SHARED_KEYS = ("dtype", "out_dtype", "tokenizer", "tokenizer_source", "chat_template")
"""Keys of the template that its baselines share."""


def place_problem(template: Mapping[str, Any], name: str, known: Collection[str]) -> str | None:
    """Return why a recipe has no parameter `name` to vary; None where it has.

    Args:
        template: the recipe.
        name: as `vary` writes it.
        known: keys of mergekit's recipes.
    """
    if "." in name:
        return None if _holder(template, name) is not None else f"the recipe has no {name!r}"
    keys = [key for key in known if key not in _STRUCTURE]
    parameters = _PARAMETERS.get(str(template.get("merge_method")))
    if parameters is None:
        given = template.get("parameters")
        parameters = tuple(map(str, given)) if isinstance(given, Mapping) else ()
    if name in keys or name in parameters:
        return None
    choices = [*parameters, *keys]
    return f"unknown parameter {name!r}{nearest_of(name, choices)}"


def with_values(template: Mapping[str, Any], values: Mapping[str, Scalar]) -> dict[str, Any]:
    """Return a copy of a recipe with every value in its place; see `place_problem`."""
    document = copy.deepcopy(dict(template))
    ours = _PARAMETERS.get(str(document.get("merge_method")), ())
    for name, value in values.items():
        parameters = document.get("parameters") or {}
        if "." in name:
            holder = _holder(document, name)
            last = name.rpartition(".")[2]
            if isinstance(holder, list):
                holder[int(last)] = value
            elif isinstance(holder, dict):
                holder[last] = value
        elif name in parameters or name in ours:
            if isinstance(parameters, Mapping):  # else no recipe at all, see `check_form`
                document["parameters"] = {**parameters, name: value}
        else:
            document[name] = value
    return document


def with_scaled_counts(
    document: dict[str, Any], reference: int, num_layers: int
) -> tuple[dict[str, Any], dict[str, int | str]]:
    """Return a recipe with the layer counts of our methods scaled, and the counts before that.

    Counts that a `layer_swap` recipe does not write are the method's defaults, scaled like the
    others. A `delta_revert` recipe also has a list of layers, which is scaled too.

    Raises:
        ValueError: for explicit layers, which name layers of one depth, or a count out of range.
    """
    parameters = dict(document.get("parameters") or {})
    if document.get("merge_method") == DELTA_REVERT:
        return _with_scaled_reverts(document, parameters, reference, num_layers)
    if document.get("merge_method") != LAYER_SWAP:
        return document, {}
    if parameters.get("placement") in ("soup", "delta_share"):  # no count is read
        return document, {}
    if parameters.get("placement") == "layers":
        if reference == num_layers:
            return document, {}
        raise ValueError(
            f"language_layers {parameters.get('language_layers')!r} names layers of a model of "
            f"{num_layers}; it cannot be scaled from reference_layers: {reference}"
        )
    defaults = {name: LayerSwapSpec.model_fields[name].default for name in COUNTS}
    counts = {name: parameters.get(name, defaults[name]) for name in COUNTS}
    _check_counts(counts)
    parameters |= scale_counts(counts, reference, num_layers)
    return {**document, "parameters": parameters}, counts


def _with_scaled_reverts(
    document: dict[str, Any], parameters: dict[str, Any], reference: int, num_layers: int
) -> tuple[dict[str, Any], dict[str, int | str]]:
    given = {name: parameters[name] for name in (*COUNTS, "revert_layers") if name in parameters}
    counts = {name: value for name, value in given.items() if name in COUNTS}
    _check_counts(counts)
    parameters |= scale_counts(counts, reference, num_layers)
    layers = given.get("revert_layers")
    if isinstance(layers, str):  # else no recipe, which the method says
        parameters["revert_layers"] = scale_layers(layers, reference, num_layers, "revert_layers")
    return {**document, "parameters": parameters}, given


def _check_counts(counts: Mapping[str, Any]) -> None:
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int):
            raise ValueError(f"{name} is {count!r}; it must be a whole number")


def with_experts(document: Mapping[str, Any], experts: Mapping[str, Expert]) -> dict[str, Any]:
    """Return a copy of a recipe in which every model is the reference of an expert.

    In `layer_swap` recipes the models ``task`` and ``language`` get their role, and the base
    becomes the donor of config and tokenizer, where the recipe says nothing else.

    Args:
        document: the recipe.
        experts: placeholder or name -> expert.
    """
    filled = _replaced(document, experts)
    if not isinstance(filled, dict) or filled.get("merge_method") != LAYER_SWAP:
        return dict(filled)
    filled.setdefault("base_model", experts["base"].reference)
    models = (each.get("models") or () for each in (filled, document))
    for entry, source in zip(*models, strict=True):
        if source.get("model") in ("task", "language"):
            entry["parameters"] = {"role": source["model"], **(entry.get("parameters") or {})}
    return filled


def baseline_document(
    kind: str, experts: Mapping[str, Expert], template: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return mergekit's recipe of a baseline, with the dtype and tokenizer of the template.

    An unmerged model is a ``passthrough`` of itself, in the dtype it is stored in. `linear`
    averages its base_model in, so the donor of the soup is one of its two models. The weighted
    soup is the paper's: each expert by the inverse of its change from the base. TIES has the
    defaults of its own paper (arXiv 2306.01708): density 0.2 and lambda 1.
    """
    if kind in ("base", "task_expert", "language_expert"):
        model = experts[kind.removesuffix("_expert")].reference
        return {"merge_method": "passthrough", "models": [{"model": model}]}
    shared = {key: template[key] for key in _SHARED_KEYS if template and key in template}
    pair = [experts["task"].reference, experts["language"].reference]
    if kind == "soup":
        models = [{"model": model, "parameters": {"weight": 1.0}} for model in pair]
        return {"merge_method": "linear", "models": models, "base_model": pair[0], **shared}
    if kind == "weighted_soup":
        roles = zip(pair, ("task", "language"), strict=True)
        return {
            "merge_method": LAYER_SWAP,
            "models": [{"model": model, "parameters": {"role": role}} for model, role in roles],
            "base_model": experts["base"].reference,
            "parameters": {"placement": "soup", "weighting": "magnitude"},
            **shared,
        }
    models = [{"model": model, "parameters": {"weight": 1.0, "density": 0.2}} for model in pair]
    return {
        "merge_method": "ties",
        "models": models,
        "base_model": experts["base"].reference,
        "parameters": {"normalize": True, "lambda": 1.0},
        **shared,
    }


def unmerged(merge: Mapping[str, Any]) -> str | None:
    """Return the reference of the model that the recipe leaves as it is; None for a merge."""
    models = list(merge.get("models") or ())
    if merge["merge_method"] != "passthrough" or len(models) != 1:
        return None
    is_plain = set(merge) <= {"merge_method", "models"} and set(models[0]) == {"model"}
    return str(models[0]["model"]) if is_plain else None


def with_references(value: Any, references: Mapping[str, str]) -> Any:
    """Return a recipe, or a part of one, in which texts that are keys of `references` changed."""
    if isinstance(value, Mapping):
        return {key: with_references(each, references) for key, each in value.items()}
    if isinstance(value, list):
        return [with_references(each, references) for each in value]
    return references.get(value, value) if isinstance(value, str) else value


def _replaced(value: Any, experts: Mapping[str, Expert]) -> Any:
    if isinstance(value, Mapping):
        return {
            key: _reference(key, each, experts)
            if key in ("model", "base_model") and each is not None
            else _replaced(each, experts)
            for key, each in value.items()
        }
    if isinstance(value, list):
        return [_replaced(each, experts) for each in value]
    return value


def _reference(key: str, name: Any, experts: Mapping[str, Expert]) -> str:
    if not isinstance(name, str):
        raise InputError(
            f"{key} is {name!r}; write task, language, base or the name of another expert"
        )
    return experts[name].reference


def _holder(document: Any, name: str) -> Any:
    """Return the list or mapping that holds the last part of a path; None where there is none."""
    *above, last = name.split(".")
    holder = document
    for part in above:
        holder = _item(holder, part)
    if isinstance(holder, dict) and (last in holder or above[-1] == "parameters"):
        return holder
    return holder if _item(holder, last) is not None else None


def _item(holder: Any, part: str) -> Any:
    if isinstance(holder, Mapping):
        return holder.get(part)
    if isinstance(holder, list) and part.isdigit() and int(part) < len(holder):
        return holder[int(part)]
    return None
