"""A recipe that gives tensors of the origins that were seen, where a method has one.

Tried in this order: one model (`passthrough`), one sum everywhere (`linear`), layers of two experts
or two soups (`layer_swap`), and whole layers of several models in another order (`passthrough` with
slices). A recipe is returned only if every tensor can come from where it says.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from ablations.explain.origins import Origin
from layerswap_method.checkpoint.checkpoint import Checkpoint
from layerswap_method.layer_plan import (
    LayerPlan,
    Source,
    build_plan,
    format_layers,
    runs_of,
    tensor_source,
)

Coefficients = Mapping[str, float]

_SOURCES: tuple[Source, ...] = ("average", "task", "language")


def recipe_of(
    origins: Sequence[Origin], merged: Checkpoint, parents: Sequence[str], dtype: str
) -> dict[str, Any] | None:
    """Return a recipe's document that gives tensors of these origins; None where none fits.

    Args:
        origins: of every tensor of the merge.
        merged: the merge.
        parents: references of the models, which the recipe names.
        dtype: torch's name of the merge's dtype.
    """
    if any(origin.kind == "unexplained" for origin in origins):
        return None
    for parent in parents:
        if all(origin.can_be({parent: 1.0}) for origin in origins):
            return {
                "merge_method": "passthrough",
                "models": [{"model": parent}],
                "dtype": dtype,
            }
    sums = _distinct_sums(origins)
    for coefficients in sums:
        if all(origin.can_be(coefficients) for origin in origins):
            return _linear(coefficients, dtype)
    if merged.num_layers is None or not merged.decoder.prefix:
        return None
    swap = _layer_swap(origins, parents, sums, merged.num_layers, dtype)
    return swap or _slices(origins, merged, parents, dtype)


def _distinct_sums(origins: Sequence[Origin]) -> list[Coefficients]:
    """Return the sums of tensors, the most frequent first, those with the most parents before."""
    counts: dict[tuple[tuple[str, float], ...], int] = {}
    for origin in origins:
        if origin.kind == "sum" and origin.is_told:
            key = tuple(sorted(origin.coefficients.items()))
            counts[key] = counts.get(key, 0) + 1
    return [dict(key) for key in sorted(counts, key=lambda key: (-len(key), -counts[key]))]


def _linear(coefficients: Coefficients, dtype: str) -> dict[str, Any]:
    entries = [
        {"model": name, "parameters": {"weight": value}} for name, value in coefficients.items()
    ]
    document: dict[str, Any] = {"merge_method": "linear", "models": entries}
    if all(value >= 0 for value in coefficients.values()):
        # Otherwise mergekit adds the base to the sum.
        document["base_model"] = entries[0]["model"]
    if abs(sum(coefficients.values()) - 1) > 1e-6:
        document["parameters"] = {"normalize": False}
    return {**document, "dtype": dtype}


def _layer_swap(
    origins: Sequence[Origin],
    parents: Sequence[str],
    sums: Sequence[Coefficients],
    num_layers: int,
    dtype: str,
) -> dict[str, Any] | None:
    """Return the simplest `layer_swap` recipe in which each tensor has its origin."""
    outside = [origin for origin in origins if origin.layer is None]
    in_layers = [origin for origin in origins if origin.layer is not None]
    # A role is one model, or a soup that some tensors are.
    singles: list[Coefficients] = [{parent: 1.0} for parent in parents]
    sides = [side for side in (*singles, *sums) if abs(sum(side.values()) - 1) < 1e-6]
    ranked: list[tuple[tuple[int, int], dict[str, Any]]] = []
    for task, language in itertools.permutations(sides, 2):
        if task.keys() & language.keys():
            continue
        for average, weights in _averages(task, language, sums):
            by_source = {"task": task, "language": language, "average": average}
            rest = _non_layer(outside, by_source, parents)
            placed = _swapped(in_layers, by_source, num_layers)
            if rest is None or placed is None:
                continue
            non_layer, base = rest
            if base is None:
                others = [name for name in parents if name not in {*task, *language}]
                base = others[0] if len(others) == 1 else next(iter(task))
            parameters = {**placed, **weights}
            if non_layer != "average":
                parameters["non_layer"] = non_layer
            document = {
                "merge_method": "layer_swap",
                "base_model": base,
                "models": [*_entries("task", task), *_entries("language", language)],
                "parameters": parameters,
                "dtype": dtype,
            }
            # The paper's placement before others, and the language expert's part the smaller.
            share = len(placed.get("language_layers", "").split(","))
            ranked.append((("placement" in placed, share + len(parameters)), document))
    return min(ranked, key=lambda entry: entry[0])[1] if ranked else None


def _non_layer(
    outside: Sequence[Origin], by_source: Mapping[str, Coefficients], parents: Sequence[str]
) -> tuple[Source, str | None] | None:
    """Return the source of what is outside of the layers, and the base where it is that source.

    None where none fits.
    """
    for source in _SOURCES:
        if all(origin.can_be(by_source[source]) for origin in outside):
            return source, None
    for base in parents:
        if all(origin.can_be({base: 1.0}) for origin in outside):
            return "base", base
    return None


def _swapped(
    in_layers: Sequence[Origin], by_source: Mapping[str, Coefficients], num_layers: int
) -> dict[str, Any] | None:
    """Return the parameters that give every layer its source; None where none do."""
    for modules, norms in itertools.product(("all", "attention", "mlp"), ("block", "average")):
        plan = _plan(in_layers, by_source, num_layers, modules, norms)
        placed = None if plan is None else _placement(plan)
        if placed is not None:
            extra = {"swap_modules": modules, "layer_norms": norms}
            return placed | {k: v for k, v in extra.items() if v not in ("all", "block")}
    return None


def _entries(role: str, side: Coefficients) -> Iterator[dict[str, Any]]:
    for model, weight in side.items():
        parameters: dict[str, Any] = {"role": role}
        if len(side) > 1:
            parameters["weight"] = weight
        yield {"model": model, "parameters": parameters}


def _averages(
    task: Coefficients, language: Coefficients, sums: Sequence[Coefficients]
) -> Iterator[tuple[Coefficients, dict[str, float]]]:
    """Yield the sums that are averages of two roles, with the parameters for their weights."""
    for total in sums:
        if total.keys() != task.keys() | language.keys():
            continue
        ratios = [
            [total[name] / share for name, share in side.items()] for side in (task, language)
        ]
        is_average = all(max(r) - min(r) < 1e-3 and min(r) > 0 for r in ratios)
        if is_average and abs(ratios[0][0] + ratios[1][0] - 1) < 1e-3:
            of_language = Fraction(ratios[1][0] / ratios[0][0]).limit_denominator(20)
            weights = {
                "task_weight": float(of_language.denominator),
                "language_weight": float(of_language.numerator),
            }
            yield total, {} if of_language == 1 else weights
    # Nothing need be averaged, or what is may be equal in both.
    yield {name: share / 2 for side in (task, language) for name, share in side.items()}, {}


def _plan(
    origins: Sequence[Origin],
    by_source: Mapping[str, Coefficients],
    num_layers: int,
    modules: str,
    norms: str,
) -> LayerPlan | None:
    """Return the plan in which every layer has the source of its tensors; None if there is none."""
    by_layer: list[set[str]] = [set(by_source) for _ in range(num_layers)]
    for origin in origins:
        if origin.layer is None or origin.layer >= num_layers:
            return None
        by_layer[origin.layer] &= {
            source
            for source in by_source
            if origin.can_be(by_source[_source(origin, source, num_layers, modules, norms)])
        }
    if not all(by_layer):
        return None
    sources: list[str] = []
    for layer, possible in enumerate(by_layer):
        # Where experts are equal in a layer, it goes on as the one before.
        before = sources[-1] if layer else "language"
        sources.append(before if before in possible else sorted(possible)[-1])
    return LayerPlan(tuple(sources))  # type: ignore[arg-type]


def _source(origin: Origin, source: str, num_layers: int, modules: str, norms: str) -> Source:
    plan = LayerPlan((source,) * num_layers)  # type: ignore[arg-type]
    return tensor_source(origin.name, origin.layer, plan, layer_norms=norms, swap_modules=modules)


def _placement(plan: LayerPlan) -> dict[str, Any] | None:
    """Return the parameters that give a plan; None where only single layers' averages would."""
    size, language = plan.num_layers, plan.layers_from("language")
    averaged = plan.layers_from("average")
    if len(averaged) == size:
        return {"placement": "soup"}
    bottom = next((i for i, s in enumerate(plan.sources) if s != "language"), size)
    top = next((i for i, s in enumerate(reversed(plan.sources)) if s != "language"), size)
    inner = plan.sources[bottom : size - top]
    after = next((i for i, s in enumerate(inner) if s != "average"), len(inner))
    before = next((i for i, s in enumerate(reversed(inner)) if s != "average"), len(inner))
    candidates: list[dict[str, Any]] = [
        {
            "bottom_layers": bottom,
            "top_layers": top,
            "bottom_transition": after,
            "top_transition": before if after < len(inner) else 0,
        }
    ]
    if language:
        longest = max((end - start for start, end in runs_of(averaged)), default=0)
        named = {"placement": "layers", "language_layers": format_layers(language)}
        for t_b, t_u in itertools.product(range(longest + 1), repeat=2):
            candidates.append({**named, "bottom_transition": t_b, "top_transition": t_u})
    for parameters in candidates:
        try:
            made = build_plan(size, **parameters)
        except ValueError:
            continue
        if made.sources == plan.sources:
            zones = ("bottom_transition", "top_transition")
            return {k: v for k, v in parameters.items() if v or k not in zones}
    return None


def _slices(
    origins: Sequence[Origin], merged: Checkpoint, parents: Sequence[str], dtype: str
) -> dict[str, Any] | None:
    """Return mergekit's `passthrough` with slices: whole layers, copied, in any order."""
    num_layers = merged.depth()
    places: list[set[tuple[str, int]]] = [
        {
            (parent, layer)
            for origin in origins
            if origin.layer == number
            for parent, layer in origin.places
            if layer is not None
        }
        for number in range(num_layers)
    ]
    for origin in origins:
        if origin.kind != "copy":
            return None
        if origin.layer is not None:
            places[origin.layer] &= {(p, layer) for p, layer in origin.places if layer is not None}
    if not all(places):
        return None
    slices: list[dict[str, Any]] = []
    for possible in places:
        last = slices[-1]["sources"][0] if slices else None
        if last is not None and (last["model"], last["layer_range"][1]) in possible:
            last["layer_range"][1] += 1
        else:
            parent, layer = min(possible, key=lambda place: (parents.index(place[0]), place[1]))
            slices.append({"sources": [{"model": parent, "layer_range": [layer, layer + 1]}]})
    first, last_model = slices[0]["sources"][0]["model"], slices[-1]["sources"][0]["model"]
    for origin in origins:
        # mergekit takes the embeddings from the first slice's model, the rest from the last one's.
        model = first if origin.name == merged.embedding else last_model
        if origin.layer is None and not origin.can_be({model: 1.0}):
            return None
    return {"merge_method": "passthrough", "slices": slices, "dtype": dtype}
