"""A `layer_swap` recipe as mergekit parsed it, read into typed values with every problem at once.

Knows the fields of mergekit's `MergeConfiguration` (duck-typed, nothing is imported) and the
rules of the method's parameters; not checkpoints or tensors.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pydantic

from layerswap_method.errors import InputError, nearest
from layerswap_method.references import same_model_key
from layerswap_method.spec import MODEL_PARAMETERS, ROLES, SHARED_PARAMETERS, LayerSwapSpec

_ALL_PARAMETERS = (*MODEL_PARAMETERS, *SHARED_PARAMETERS)
_SCALARS = (bool, int, float, str)


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
    problems = list(key_problems(source, known)) if source is not None else []
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


def key_problems(source: Mapping[str, Any], known: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield the keys that mergekit would silently ignore.

    Args:
        source: the YAML document; values of a wrong type are passed over.
        known: `mergekit_api.recipe_fields()`.
    """
    yield from _unknown_keys(source, known["recipe"], "the recipe")
    yield from _input_key_problems(source, known, "")
    modules = source.get("modules")
    for name, module in modules.items() if isinstance(modules, Mapping) else ():
        yield from _unknown_keys(module, known["modules"], f"modules.{name}")
        if isinstance(module, Mapping):
            yield from _input_key_problems(module, known, f"modules.{name}.")


def _input_key_problems(
    holder: Mapping[str, Any], known: Mapping[str, Sequence[str]], place: str
) -> Iterator[str]:
    for i, model in enumerate(_items(holder, "models")):
        yield from _unknown_keys(model, known["models"], f"{place}models[{i}]")
    for i, out in enumerate(_items(holder, "slices")):
        yield from _unknown_keys(out, known["slices"], f"{place}slices[{i}]")
        for j, entry in enumerate(_items(out, "sources")):
            yield from _unknown_keys(entry, known["sources"], f"{place}slices[{i}].sources[{j}]")


def _items(holder: Any, key: str) -> Sequence[Any]:
    found = holder.get(key) if isinstance(holder, Mapping) else None
    return found if isinstance(found, list | tuple) else ()


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
    unread = False
    for name, value in parameters.items():
        if name in MODEL_PARAMETERS:
            problems.append(f"{name} belongs under the parameters: of each model, not at the top")
        elif name not in SHARED_PARAMETERS:
            problems.append(f"unknown parameter {name!r}{nearest(str(name), _ALL_PARAMETERS)}")
        elif not isinstance(value, _SCALARS):
            problems.append(_list_problem(name, value))
            unread = True
        else:
            values[name] = value
    try:
        return LayerSwapSpec(**values), problems
    except pydantic.ValidationError as error:
        found = error.errors()
        if unread:  # what does not fit together may fit once every value is read
            found = [item for item in found if item["loc"]]
        return None, problems + [_value_problem(item) for item in found]


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
    if item["type"] == "float_type":
        return f"{name} is {value!r}; it must be one number{_number_hint(value)}"
    return f"{name} is {value!r}: {item['msg']}"


def _number_hint(value: Any) -> str:
    """Return how to write a number that YAML took for text, such as 1e-6 or "1"."""
    try:
        number = float(value) if isinstance(value, str) else math.nan
    except ValueError:
        return ""
    if not math.isfinite(number):
        return ""
    text = repr(number)
    if "e" in text and "." not in text:
        text = text.replace("e", ".0e")
    return f", and this is text (YAML reads 1e-6 and quoted numbers so): write {text}"


def _shown(value: Any) -> str:
    """Return a setting for a message; mergekit's filters have no readable form."""
    flat = value if isinstance(value, list) else [value]
    return repr(value) if all(isinstance(v, _SCALARS) for v in flat) else "a list or filter"


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
    seen: dict[str, str] = {}
    for i, entry in enumerate(sources):
        where = f"{place}[{i}] ({entry.model})"
        parameters = entry.parameters or {}
        role = parameters.get("role")
        weight = parameters.get("weight", 1.0)
        problems += [f"{where}{problem}" for problem in _input_problems(entry, base_model)]
        key = same_model_key(entry.model)
        if key in seen:
            other = "" if seen[key] == str(entry.model) else f" (first as {seen[key]})"
            problems.append(f"{where} is listed twice{other}; one model plays one role")
        seen.setdefault(key, str(entry.model))
        models.append(InputModel(entry.model, role, float(weight) if _is_weight(weight) else 1.0))
    with_role = tuple(model for model in models if model.role in ROLES)
    if not problems:
        for role in ROLES:
            given = [model for model in with_role if model.role == role]
            if not given:
                problems.append(f"{place} has no model with role: {role}; one or more is needed")
            elif sum(model.weight for model in given) == 0:
                problems.append(f"{place}: the weights of role {role} sum to 0")
    return with_role, problems


def _input_problems(entry: Any, base_model: Any) -> Iterator[str]:
    """Yield what is wrong with the parameters of one input, to be read after its place."""
    parameters = entry.parameters or {}
    for name in parameters:
        if name in SHARED_PARAMETERS:
            yield f": {name} belongs under the recipe's top parameters:"
        elif name not in MODEL_PARAMETERS:
            yield f": unknown parameter {name!r}{nearest(str(name), _ALL_PARAMETERS)}"
    role = parameters.get("role")
    if role is None and entry.model != base_model:
        if base_model is not None and same_model_key(entry.model) == same_model_key(base_model):
            yield f" is the base_model; write it in the same way ({base_model}), or leave it out"
        elif not any(nearest(str(key), ["role"]) for key in parameters):  # else named above
            yield " has no role; write role: task or role: language"
    elif role == "base":
        yield (
            ": role is 'base'; the base is named by base_model: at the recipe's top and needs no "
            "role: drop this line"
        )
    elif role is not None and role not in ROLES:
        hint = nearest(role, ROLES) if isinstance(role, str) else ""
        yield f": role is {_shown(role)}; it must be task or language{hint}"
    elif role is None and "weight" in parameters:
        yield ": weight has no effect on the base, which has no role; drop it"
    if "weight" in parameters:
        weight = parameters["weight"]
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            yield f": weight is {_shown(weight)}; it must be one number{_number_hint(weight)}"
        elif not _is_weight(weight):
            yield f": weight is {weight}; it must be finite and 0 or more"


def _is_weight(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 <= value <= sys.float_info.max


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
