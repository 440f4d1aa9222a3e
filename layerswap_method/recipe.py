"""A `layer_swap` recipe as mergekit parsed it, read into typed values with every problem at once.

Knows the fields of mergekit's `MergeConfiguration` (duck-typed, nothing is imported) and the
rules of the method's parameters; not checkpoints, paths or tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pydantic

from layerswap_method.errors import InputError, nearest
from layerswap_method.spec import MODEL_PARAMETERS, ROLES, SHARED_PARAMETERS, LayerSwapSpec

_ALL_PARAMETERS = (*MODEL_PARAMETERS, *SHARED_PARAMETERS)


@dataclass(frozen=True)
class InputModel:
    """One input of a merge."""

    reference: Any
    """mergekit's `ModelReference`; printed as ``path`` or ``path+adapter``."""

    role: str | None
    """`task`, `language`, or None for a base that gives only config, tokenizer and `base`."""

    weight: float
    """Weight within the soup of its role; 0 or more."""


@dataclass(frozen=True)
class Recipe:
    """What a `layer_swap` merge is asked to do."""

    spec: LayerSwapSpec
    """The top-level parameters."""

    models: tuple[InputModel, ...]
    """Every input with a role, in the recipe's order."""

    base_model: Any
    """mergekit's `ModelReference`: donor of config and tokenizer."""

    def by_role(self, role: str) -> tuple[InputModel, ...]:
        """Return the inputs of one role, in the recipe's order."""
        return tuple(model for model in self.models if model.role == role)


def read_recipe(
    config: Any, source: Mapping[str, Any] | None = None, *, known: Any = None
) -> Recipe:
    """Return the recipe, or raise one error that lists every problem.

    Args:
        config: mergekit's `MergeConfiguration` with ``merge_method: layer_swap``.
        source: the YAML document before mergekit parsed it, to find keys that mergekit ignored.
        known: `mergekit_api.recipe_fields()`; needed with `source`.

    Raises:
        InputError: with all problems, each with its place and the nearest valid name.
    """
    problems = list(_key_problems(source, known)) if source is not None else []
    spec, spec_problems = _read_spec(config.parameters or {})
    problems += spec_problems
    models: tuple[InputModel, ...] = ()
    for place, sources in _output_groups(config):
        found, found_problems = _read_models(place, sources, config.base_model)
        problems += found_problems
        if models and not found_problems and found != models:
            problems.append(
                f"{place} lists other models, roles or weights than the first; layer_swap needs "
                "the same inputs in the same order everywhere (it picks the layers itself)"
            )
        models = models or found
    problems += _stray_parameters(config)
    if config.base_model is None:
        task = next((str(model.reference) for model in models if model.role == "task"), "...")
        problems.append(
            "base_model is missing: mergekit would copy config and tokenizer from a model drawn "
            f"at random; write base_model: {task} (or the pretrained parent of the experts)"
        )
    if problems or spec is None:
        raise InputError.from_problems("layer_swap recipe", problems)
    return Recipe(spec=spec, models=models, base_model=config.base_model)


def _key_problems(source: Mapping[str, Any], known: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield the keys that mergekit would silently ignore."""
    yield from _unknown_keys(source, known["recipe"], "the recipe")
    for i, model in enumerate(source.get("models") or ()):
        yield from _unknown_keys(model, known["models"], f"models[{i}]")
    for i, out in enumerate(source.get("slices") or ()):
        yield from _unknown_keys(out, known["slices"], f"slices[{i}]")
        for j, entry in enumerate(out.get("sources") or () if isinstance(out, Mapping) else ()):
            yield from _unknown_keys(entry, known["sources"], f"slices[{i}].sources[{j}]")


def _unknown_keys(found: Any, known: Sequence[str], place: str) -> Iterator[str]:
    for key in found if isinstance(found, Mapping) else ():
        if key not in known:
            hint = nearest(str(key), known)
            if key in _ALL_PARAMETERS:
                hint = "; it belongs under parameters:"
            yield f"{place} has the unknown key {key!r}, which mergekit ignores{hint}"


def _read_spec(parameters: Mapping[str, Any]) -> tuple[LayerSwapSpec | None, list[str]]:
    problems: list[str] = []
    values: dict[str, Any] = {}
    for name, value in parameters.items():
        if name in MODEL_PARAMETERS:
            problems.append(f"{name} belongs under the parameters: of each model, not at the top")
        elif name not in SHARED_PARAMETERS:
            problems.append(f"unknown parameter {name!r}{nearest(name, _ALL_PARAMETERS)}")
        elif not isinstance(value, (bool, int, float, str)):
            problems.append(_list_problem(name, value))
        else:
            values[name] = value
    try:
        return LayerSwapSpec(**values), problems
    except pydantic.ValidationError as error:
        return None, problems + [_value_problem(item) for item in error.errors()]


def _list_problem(name: str, value: Any) -> str:
    if name == "language_layers":
        layers = value if isinstance(value, list) else []
        text = ",".join(str(layer) for layer in layers) or "0-4,30,31"
        return f'{name} is a list, which mergekit interpolates; write a string: "{text}"'
    return f"{name} is a list or filter, which mergekit interpolates by layer; write one value"


def _value_problem(item: Any) -> str:
    name = ".".join(str(part) for part in item["loc"])
    value = item.get("input")
    if item["type"] == "literal_error":
        expected = item["ctx"]["expected"]
        options = [option.strip("' ") for option in expected.replace(" or ", ", ").split(", ")]
        return f"{name} is {value!r}; it must be {expected}{nearest(str(value), options)}"
    if item["type"] == "value_error":
        return str(item["ctx"]["error"])
    if name == "language_layers":
        return f'{name} is {value!r}; it must be a string in quotes, such as "{value}"'
    if item["type"] == "int_type":
        return f"{name} is {value!r}; it must be a whole number"
    return f"{name} is {value!r}: {item['msg']}"


def _output_groups(config: Any) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield (place, inputs) of everything that is merged: models, slices, modules."""
    if config.models:
        yield "models", config.models
    for i, out in enumerate(config.slices or ()):
        yield f"slices[{i}].sources", out.sources
    for name, module in (config.modules or {}).items():
        if module.models:
            yield f"modules.{name}.models", module.models
        for i, out in enumerate(module.slices or ()):
            yield f"modules.{name}.slices[{i}].sources", out.sources


def _read_models(
    place: str, sources: Sequence[Any], base_model: Any
) -> tuple[tuple[InputModel, ...], list[str]]:
    problems: list[str] = []
    models: list[InputModel] = []
    seen: set[str] = set()
    for i, entry in enumerate(sources):
        where = f"{place}[{i}] ({entry.model})"
        parameters = entry.parameters or {}
        for name in parameters:
            if name in SHARED_PARAMETERS:
                problems.append(f"{where}: {name} belongs under the recipe's top parameters:")
            elif name not in MODEL_PARAMETERS:
                problems.append(
                    f"{where}: unknown parameter {name!r}{nearest(name, _ALL_PARAMETERS)}"
                )
        role = parameters.get("role")
        if role is None and entry.model != base_model:
            if not any(nearest(key, ["role"]) for key in parameters):  # else a typo, named above
                problems.append(f"{where} has no role; write role: task or role: language")
        elif role is not None and role not in ROLES:
            problems.append(
                f"{where}: role is {role!r}; it must be task or language{nearest(str(role), ROLES)}"
            )
        weight = parameters.get("weight", 1.0)
        if isinstance(weight, bool) or not isinstance(weight, (int, float)):
            problems.append(f"{where}: weight is {weight!r}; it must be one number")
            weight = 1.0
        elif not 0 <= weight < float("inf"):
            problems.append(f"{where}: weight is {weight}; it must be finite and 0 or more")
        if str(entry.model) in seen:
            problems.append(f"{where} is listed twice; one model plays one role")
        seen.add(str(entry.model))
        models.append(InputModel(entry.model, role, float(weight)))
    with_role = tuple(model for model in models if model.role in ROLES)
    if not problems:
        for role in ROLES:
            given = [model for model in with_role if model.role == role]
            if not given:
                problems.append(f"{place} has no model with role: {role}; one or more is needed")
            elif sum(model.weight for model in given) == 0:
                problems.append(f"{place}: the weights of role {role} sum to 0")
    return with_role, problems


def _stray_parameters(config: Any) -> list[str]:
    """Return what is set in slices and modules, where this method does not read it."""
    places: list[tuple[str, Any]] = []
    for i, out in enumerate(config.slices or ()):
        places.append((f"slices[{i}]", out))
    for name, module in (config.modules or {}).items():
        places.append((f"modules.{name}", module))
        places += [(f"modules.{name}.slices[{i}]", o) for i, o in enumerate(module.slices or ())]
    problems = [
        f"{place}.base_model is {holder.base_model}: layer_swap has one base, the recipe's own "
        f"base_model ({config.base_model}); drop this line"
        for place, holder in places
        if getattr(holder, "base_model", None) not in (None, config.base_model)
    ]
    return problems + [
        f"{place}.parameters: {', '.join(holder.parameters)}: move them to the recipe's top "
        "parameters: (role and weight: to each model)"
        for place, holder in places
        if holder.parameters
    ]
