"""What mergekit's own validation of a recipe of ours finds, in a few words of ours.

Knows the errors of pydantic and of `mergekit.config`; not the method's parameters. Recipes of
other methods keep mergekit's errors.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Mapping
from typing import Any

import pydantic

from layerswap_method.delta_revert.recipe import RevertDocument
from layerswap_method.delta_revert.spec import NAME as DELTA_REVERT
from layerswap_method.errors import InputError, nearest
from layerswap_method.layer_swap.recipe import LayerSwapDocument
from layerswap_method.layer_swap.spec import NAME as LAYER_SWAP
from layerswap_method.recipe.document import RecipeDocument
from layerswap_method.recipe.parameters import RECIPE, problems
from layerswap_method.recipe.references import named_models, syntax_problem

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

_DOCUMENTS: Mapping[str, type[RecipeDocument]] = {
    LAYER_SWAP: LayerSwapDocument,
    DELTA_REVERT: RevertDocument,
}


def configuration_type() -> Any:
    """Return the class `MergeConfiguration`, as which mergekit reads every recipe."""
    from mergekit.config import MergeConfiguration

    return MergeConfiguration


def patch_config(module: Any, *, applies: Callable[[str], bool]) -> None:
    """Wrap `MergeConfiguration.model_validate` of the executed module `mergekit.config`.

    `applies` says at the time of a call whether a merge method is this project's.
    """
    original = module.MergeConfiguration.model_validate
    if getattr(original, "_layerswap_patched", False):
        return

    @functools.wraps(original.__func__)
    def model_validate(cls: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        name = obj.get("merge_method") if isinstance(obj, dict) else None
        meant = meant_method(name) if isinstance(name, str) else ""
        if not applies(meant):
            return original.__func__(cls, obj, *args, **kwargs)
        found = []
        if name != meant:
            found.append(_near_miss(name, meant))
        try:
            config = original.__func__(cls, obj, *args, **kwargs)
        except (RuntimeError, ValueError) as error:
            found += _problems(obj, error, _DOCUMENTS[meant])
        if found:
            raise InputError.from_problems(f"{meant} recipe", found)
        return config

    model_validate._layerswap_patched = True  # type: ignore[attr-defined]
    module.MergeConfiguration.model_validate = classmethod(model_validate)


def meant_method(name: str) -> str:
    """Return the method of ours that `name` is, or nearly is; else an empty text.

    mergekit's registry is asked only where it matters, for it takes seconds to import.
    """
    written = name.lower().replace("-", "_")
    if written in _DOCUMENTS or not difflib.get_close_matches(written, _DOCUMENTS, n=1):
        return written if written in _DOCUMENTS else ""
    from mergekit.merge_methods.registry import registered_methods

    every = {*_DOCUMENTS, *(method.spec.name for method in registered_methods())}
    found = difflib.get_close_matches(written, every, n=1)
    return found[0] if found[0] in _DOCUMENTS else ""


def _near_miss(name: object, meant: str) -> str:
    return f"merge_method is {name!r}; did you mean {meant!r}?"


def method_problem(name: str) -> str | None:
    """Return why a recipe cannot have this `merge_method`; None where mergekit has it."""
    meant = meant_method(name)
    if meant:
        return None if name == meant else _near_miss(name, meant)
    from mergekit.merge_methods.registry import registered_methods

    known = sorted({*(method.spec.name for method in registered_methods()), *_DOCUMENTS})
    if name in known:
        return None
    return f"merge_method is {name!r}; mergekit has {', '.join(known)}{nearest(name, known)}"


def check_form(document: Mapping[str, Any]) -> None:
    """Check that mergekit has the method of a recipe, any method, and can read the recipe.

    Raises:
        InputError: with every problem; for the methods of this project without the keys that
            mergekit would ignore, which `RecipeDocument.read` names.
    """
    name = document.get("merge_method")
    problem = method_problem(str(name))
    # A near miss of a method of ours is reported below, with what else is wrong.
    found = [problem] if problem is not None and not meant_method(str(name)) else []
    try:
        configuration_type().model_validate(dict(document))
    except InputError:  # a recipe of ours, in our words
        raise
    except (RuntimeError, ValueError) as error:
        found += _problems(document, error, configuration_type())
    else:
        if name not in _DOCUMENTS:
            found += problems(configuration_type(), document, None, RECIPE)
    if found:
        raise InputError.from_problems("recipe" if problem is not None else f"{name} recipe", found)


def _problems(document: Any, error: Exception, model: type[pydantic.BaseModel]) -> list[str]:
    """Return what mergekit refuses, and the keys that it would ignore: a typo may be the cause."""
    if isinstance(error, pydantic.ValidationError):
        return problems(model, document, error, RECIPE)
    text = str(error)
    reasons = [ours for start, ours in _REASONS if text.startswith(start)]
    references = [problem for each in named_models(document) if (problem := syntax_problem(each))]
    return [*(reasons or references or [text]), *problems(model, document, None, RECIPE)]
