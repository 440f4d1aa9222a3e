"""What mergekit's own validation of a recipe of ours finds, in a few words of ours.

Knows the errors of pydantic and of `mergekit.config`; not the method's parameters. Recipes of
other methods keep mergekit's errors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import pydantic

from layerswap_method.errors import InputError, nearest

_REASONS = (
    (
        "Exactly one of 'models', 'slices', or 'modules'",
        "it needs models:, slices: or modules:, exactly one of them and with entries",
    ),
    (
        "Must specify either output slices or models",
        "each entry of modules: needs models: or slices:, exactly one of them and with entries",
    ),
    ("Cannot specify both tokenizer_source", "it has tokenizer_source: and tokenizer:; drop one"),
)
"""How a message of mergekit begins -> ours."""


def patch_config(module: Any, names: Collection[str], *, applies: Callable[[str], bool]) -> None:
    """Wrap `MergeConfiguration.model_validate` of the executed module `mergekit.config`.

    Args:
        module: `mergekit.config`.
        names: the merge methods of this project.
        applies: whether one of them is this project's at the time of a call.
    """
    original = module.MergeConfiguration.model_validate
    if getattr(original, "_layerswap_patched", False):
        return

    @functools.wraps(original.__func__)
    def model_validate(cls: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        name = obj.get("merge_method") if isinstance(obj, dict) else None
        meant = name.lower().replace("-", "_") if isinstance(name, str) else ""
        if meant not in names or not applies(meant):
            return original.__func__(cls, obj, *args, **kwargs)
        problems = []
        if name != meant:
            problems.append(f"merge_method is {name!r}; did you mean {meant!r}?")
        try:
            config = original.__func__(cls, obj, *args, **kwargs)
        except (RuntimeError, ValueError) as error:
            problems += _problems(obj, error, _parameters(meant))
        if problems:
            raise InputError.from_problems(f"{meant} recipe", problems)
        return config

    model_validate._layerswap_patched = True  # type: ignore[attr-defined]
    module.MergeConfiguration.model_validate = classmethod(model_validate)


def check_form(document: Mapping[str, Any]) -> None:
    """Check that mergekit has the method of a recipe, any method, and can read the recipe.

    Raises:
        InputError: with every problem; for the methods of this project without the keys that
            mergekit would ignore, which `read_recipe` and `read_revert_recipe` tell.
    """
    from layerswap_method.mergekit_plugin.api import method_names, parse_recipe, recipe_fields
    from layerswap_method.mergekit_plugin.methods import METHODS
    from layerswap_method.recipe.keys import key_problems

    name, known = document.get("merge_method"), sorted({*method_names(), *METHODS})
    problems = []
    if name not in known:
        hint = nearest(str(name), known)
        problems.append(f"merge_method is {name!r}; mergekit has {', '.join(known)}{hint}")
    try:
        parse_recipe(document)
    except InputError:  # a recipe of ours, in our words
        raise
    except (RuntimeError, ValueError) as error:
        problems += _problems(document, error, ())
    else:
        if name not in METHODS:
            problems += key_problems(document, recipe_fields(), ())
    if problems:
        raise InputError.from_problems(f"{name} recipe" if name in known else "recipe", problems)


def _parameters(method: str) -> tuple[str, ...]:
    """Return the names that `method` knows below ``parameters:``."""
    if method == "layer_swap":
        from layerswap_method.layer_swap.spec import MODEL_PARAMETERS, SHARED_PARAMETERS

        return (*MODEL_PARAMETERS, *SHARED_PARAMETERS)
    from layerswap_method.delta_revert import spec as revert_spec

    return revert_spec.SHARED_PARAMETERS


def _problems(
    document: Mapping[str, Any], error: Exception, parameters: Collection[str]
) -> list[str]:
    """Return what mergekit refuses, and the keys that it would ignore: a typo may be the cause."""
    from layerswap_method.mergekit_plugin.api import recipe_fields
    from layerswap_method.recipe.keys import key_problems

    if isinstance(error, pydantic.ValidationError):
        found = list(_value_problems(document, error.errors(include_url=False)))
    else:
        found = [_reason(str(error))]
    return found + list(key_problems(document, recipe_fields(), parameters))


def _reason(text: str) -> str:
    """Return what a `RuntimeError` of mergekit's validators means."""
    if text.startswith("Can't parse "):
        path = text.removeprefix("Can't parse ")
        return (
            f"{path}: mergekit reads + as MODEL+ADAPTER, so there is one adapter at most and no "
            "path holds a +; merge the adapters first, or rename the folder"
        )
    if text.startswith("Invalid model path - multiple @"):
        path = text.rpartition(": ")[2]
        return f"{path}: mergekit reads @ as PATH@REVISION, so a path may hold one @ at most"
    return next((ours for start, ours in _REASONS if text.startswith(start)), text)


def _value_problems(document: Any, errors: Sequence[Any]) -> Iterator[str]:
    """Yield one problem for each place; pydantic reports one for each type that it tried."""
    seen = set()
    for item in errors:
        place, value, rest = _find(document, item["loc"])
        if place in seen:
            continue
        seen.add(place)
        if rest[-1:] == ("[key]",) or item["type"] == "invalid_key":
            yield f"{place}: the name {item['input']!r} is no text; write it in quotes"
        elif item["type"] == "missing" and len(rest) == 1:
            yield (
                f"{place} lacks {rest[0]}" if isinstance(rest[0], str) else f"{place} is too short"
            )
        elif value is None:
            yield f"{place} is empty; write a value or drop the line"
        elif len(rest) > 0:  # one for each type that the value could have had
            yield f"{place} is {_short(value)}, which mergekit cannot read as its value"
        else:
            yield f"{place} is {_short(value)}; it must be {_expected(item)}"


def _find(document: Any, loc: Sequence[Any]) -> tuple[str, Any, tuple[Any, ...]]:
    """Return (place, value there, what of `loc` lies below and is no part of the document)."""
    place, value = "", document
    for i, part in enumerate(loc):
        inside = isinstance(value, Mapping) and part in value
        if not inside and not (
            isinstance(value, list) and isinstance(part, int) and part < len(value)
        ):
            return place or "the recipe", value, tuple(loc[i:])
        if inside and "[key]" in loc[i + 1 : i + 2]:
            return place or "the recipe", value, ("[key]",)
        place += f"[{part}]" if isinstance(value, list) else f".{part}" if place else str(part)
        value = value[part]
    return place, value, ()


def _expected(item: Any) -> str:
    kinds = {
        "list_type": "a list",
        "tuple_type": "a list such as [0, 8]",
        "dict_type": "a block of names and values",
        "string_type": "text",
    }
    if item["type"] == "model_type":
        reference = "Reference" in item["msg"]
        return "a model's folder or hub id" if reference else "a block of names and values"
    return kinds.get(item["type"], f"another value ({item['msg']})")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
