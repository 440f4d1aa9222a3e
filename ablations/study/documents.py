"""From a study's recipe to the mergekit recipes of its cells: values, layer counts, experts.

The models ``task``, ``language`` and ``base`` of a recipe stand for the experts of a cell. Every
other model is the name of an expert, the same in all cells.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
from collections.abc import Mapping
from typing import Any

from ablations.models.find import Expert
from ablations.study.schema import EXPERTS, ROLES, BaselineKind, Study, Value
from layerswap_method.errors import InputError
from layerswap_method.layer_plan import format_layers, parse_layers, runs_of
from layerswap_method.methods.layer_swap import NAME as LAYER_SWAP
from layerswap_method.methods.table import METHODS
from layerswap_method.recipe.references import map_texts

_SHARED_KEYS = ("dtype", "out_dtype", "tokenizer", "tokenizer_source", "chat_template")
"""Keys of the study's recipe that its merged baselines share."""

_BASELINES: Mapping[BaselineKind, Mapping[str, Any]] = {
    "soup": {"merge_method": "linear", "base_model": "task", "per_model": {"weight": 1.0}},
    "weighted_soup": {
        "merge_method": LAYER_SWAP,
        "parameters": {"placement": "soup", "weighting": "magnitude"},
    },
    "ties": {
        "merge_method": "ties",
        "base_model": "base",
        "per_model": {"weight": 1.0, "density": 0.2},
        "parameters": {"normalize": True, "lambda": 1.0},
    },
}
"""Merged baselines; ``per_model`` are the parameters of each model. `linear` averages base_model
in, so the donor of the soup is one of its two models. The weighted soup is the paper's: each expert
by the inverse of its change from the base. TIES has its paper's defaults (arXiv 2306.01708)."""


def with_values(template: Mapping[str, Any], values: Mapping[str, Value]) -> dict[str, Any]:
    """Return a copy of a recipe with every value in its place; names of experts are passed over.

    A name is a path such as ``models.0.parameters.weight``, a key such as ``dtype``, or else one
    of the recipe's `parameters`. Raises `InputError` for a path that the recipe does not have.
    """
    document = copy.deepcopy(dict(template))
    for name, value in values.items():
        *above, last = name.split(".")
        if name.startswith(EXPERTS):
            continue
        if not above and name not in ("merge_method", *_SHARED_KEYS):
            above = ["parameters"]
            document["parameters"] = document.get("parameters") or {}
        holder = functools.reduce(_item, above, document)
        if isinstance(holder, dict) and (above[-1:] in ([], ["parameters"]) or last in holder):
            holder[last] = value
        elif isinstance(holder, list) and _item(holder, last) is not None:
            holder[int(last)] = value
        else:
            raise InputError(f"vary: the recipe has no {name!r}")
    return document


def _item(holder: Any, part: str) -> Any:
    if isinstance(holder, dict):
        return holder.get(part)
    if isinstance(holder, list) and part.isdigit() and int(part) < len(holder):
        return holder[int(part)]
    return None


def layer_counts(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the layer counts of a recipe, and its lists of layers; see `Recipe.layer_counts`."""
    method = METHODS.get(str(document.get("merge_method")))
    if method is None:
        return {}
    return method.recipe.layer_counts(dict(document.get("parameters") or {}))


def merge_counts(study: Study, values: Mapping[str, Value], num_layers: int | None) -> Any:
    """Return `layer_counts` of one setting of a study, for a model of `num_layers` layers."""
    document = with_values(study.recipe or {}, values)
    with contextlib.suppress(ValueError):
        document = with_scaled_counts(document, study.reference_layers, num_layers)
    return layer_counts(document)


def with_scaled_counts(
    document: dict[str, Any], reference: int | None, num_layers: int | None
) -> dict[str, Any]:
    """Return a recipe with the layer counts of our methods scaled from `reference` layers.

    Raises `ValueError` for explicit layers, which are of one depth, or for a count out of range.
    """
    if reference is None or num_layers is None:
        return document
    parameters = document.get("parameters") or {}
    if parameters.get("placement") == "layers":
        if reference == num_layers:
            return document
        raise ValueError(
            f"language_layers {parameters.get('language_layers')!r} names layers of a model of "
            f"{num_layers}; it cannot be scaled from reference_layers: {reference}"
        )
    # A value that is no number is left to the recipe's own check.
    written = layer_counts(document)
    counts = {name: count for name, count in written.items() if type(count) is int}
    scaled: dict[str, Any] = {**scale_counts(counts, reference, num_layers)}
    for name, layers in written.items():
        if isinstance(layers, str):
            scaled[name] = scale_layers(layers, reference, num_layers, name)
    return {**document, "parameters": {**parameters, **scaled}} if scaled else document


def scale_count(count: int, reference: int, num_layers: int) -> int:
    """Return ``floor(count * num_layers / reference + 1/2)``: the share of the depth, rounded.

    Halves are rounded up (2 of 32 layers are 1 of 8), unlike Python's `round`. Raises `ValueError`
    for a count that is negative or beyond the reference depth.
    """
    if not 0 <= count <= reference:
        raise ValueError(f"{count} is not a layer count of a model with {reference} layers")
    return math.floor(count * num_layers / reference + 0.5)


def scale_counts(counts: Mapping[str, int], reference: int, num_layers: int) -> dict[str, int]:
    """Return the layer counts of one merge for another depth, each as `scale_count` gives it.

    Counts that fit the reference fit the other depth: where rounding makes their sum too large (2
    and 6 of 8 layers are 7.5 and 22.5 of 30), the count that was rounded up the most loses a layer,
    the last of those if there are several.
    """
    scaled = {name: scale_count(count, reference, num_layers) for name, count in counts.items()}
    if sum(counts.values()) > reference:  # a mistake, which the plan of the merge names
        return scaled
    while sum(scaled.values()) > num_layers:
        added = {name: scaled[name] * reference - counts[name] * num_layers for name in scaled}
        scaled[max(reversed(scaled), key=added.__getitem__)] -= 1
    return scaled


def scale_layers(text: str, reference: int, num_layers: int, name: str) -> str:
    """Return a list of layers such as ``"0-1,7"`` for another depth: the same shares of the depth.

    Layer i of `reference` covers the depth from ``i / reference`` to ``(i + 1) / reference``, and
    both ends are rounded as `scale_count` does: layer 7 of 8 is 28-31 of 32. Raises `ValueError`
    for what is not a list of layers of `reference`, or rounds to no layer of the other depth.
    """
    scaled: list[int] = []
    for start, end in runs_of(parse_layers(text, reference, name)):
        first, last = (scale_count(layer, reference, num_layers) for layer in (start, end))
        if first == last:
            raise ValueError(
                f"{name} {text!r}: layers {format_layers(range(start, end))} of {reference} "
                f"round to none of {num_layers}; choose other layers"
            )
        scaled += range(first, last)
    return format_layers(scaled)


def describe_scaling(study: Study, num_layers: int) -> str:
    """Return what becomes of layer counts and lists at the depth of the model; "" for no change."""
    became: dict[str, dict[str, None]] = {}
    for values in study.settings() if study.reference_layers not in (None, num_layers) else ():
        scaled = merge_counts(study, values, num_layers)
        for name, count in merge_counts(study, values, None).items():
            became.setdefault(name, {})[f"{count!r} -> {scaled[name]!r}"] = None
    parts = "; ".join(f"{name} {', '.join(changes)}" for name, changes in became.items())
    return (
        f"layer counts of {study.reference_layers} layers, scaled to {num_layers}: {parts}"
        if parts
        else ""
    )


def baseline_document(kind: BaselineKind, template: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a baseline's recipe: models by role, dtype and tokenizer from the template.

    An unmerged model is a ``passthrough`` of itself, in the dtype it is stored in.
    """
    if kind not in _BASELINES:
        return {"merge_method": "passthrough", "models": [{"model": kind.removesuffix("_expert")}]}
    document = dict(_BASELINES[kind])
    parameters = {"parameters": document.pop("per_model")} if "per_model" in document else {}
    models = [{"model": role, **parameters} for role in ("task", "language")]
    shared = {key: template[key] for key in _SHARED_KEYS if template and key in template}
    return {**document, "models": models, **shared}


def with_experts(document: Mapping[str, Any], experts: Mapping[str, Expert]) -> dict[str, Any]:
    """Return a copy of a recipe in which every model is the reference of an expert.

    In `layer_swap` recipes the models ``task`` and ``language`` get their role, and the base
    becomes the donor of config and tokenizer, where the recipe says nothing else. `experts` are by
    role or name. Raises `InputError` for a model that is not a text, or a role without an expert.
    """
    filled = dict(_filled(document, experts))
    if filled.get("merge_method") != LAYER_SWAP:
        return filled
    filled.setdefault("base_model", experts["base"].reference)
    models = [part.get("models") for part in (filled, document)]
    for entry, source in zip(*models, strict=True) if isinstance(models[0], list) else ():
        if isinstance(source, Mapping) and source.get("model") in ("task", "language"):
            parameters = entry.get("parameters") or {}
            if isinstance(parameters, Mapping):  # else the recipe's schema says what is wrong
                entry["parameters"] = {"role": source["model"], **parameters}
    return filled


def _filled(value: Any, experts: Mapping[str, Expert], key: str = "") -> Any:
    if key in ("model", "base_model") and value is not None:
        if not isinstance(value, str):
            raise InputError(
                f"{key} is {value!r}; write task, language, base or the name of another expert"
            )
        if value not in experts and value in ROLES:
            name = f"{EXPERTS}{value}"
            raise InputError(
                f"{name} is missing: name an expert, or name {name} in every setting of vary"
            )
        return experts[value].reference
    if isinstance(value, Mapping):
        return {key: _filled(inner, experts, key) for key, inner in value.items()}
    return [_filled(inner, experts) for inner in value] if isinstance(value, list) else value


def with_references(value: Any, references: Mapping[str, str]) -> Any:
    """Return a recipe, or a part of one, with texts that are keys of `references` replaced."""
    return map_texts(value, lambda text: references.get(text, text))
