"""Functions that complete mergekit's modules once they have run; see `layerswap_method.autoload`.

Nothing of mergekit is imported here before it is needed: it may be half imported itself.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from layerswap_method.methods.table import OUR_METHODS

LOG = logging.getLogger("layerswap")

_yielded: set[str] = set()
"""Methods whose names this mergekit has given to methods of its own."""


def is_ours(name: object) -> bool:
    """Return whether `name` is a merge method of this project that mergekit takes from it."""
    return name in OUR_METHODS and name not in _yielded


def kernel(name: str) -> Any:
    """Return the `mergekit.merge_methods.MergeMethod` called `name`."""
    from layerswap_method.mergekit_plugin.kernels import plain

    return getattr(plain, name)


def on_config(config: ModuleType) -> None:
    """Have `mergekit.config` say what is wrong with a recipe of this project's methods."""
    from layerswap_method.command_line import shown_errors
    from layerswap_method.mergekit_plugin.recipe_errors import check_own

    original = config.MergeConfiguration.model_validate
    if getattr(original, "_layerswap_patched", False):
        return

    @functools.wraps(original.__func__)
    def model_validate(cls: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(obj, dict):
            with shown_errors():
                check_own(obj, is_ours)
        return original.__func__(cls, obj, *args, **kwargs)

    model_validate._layerswap_patched = True  # type: ignore[attr-defined]
    config.MergeConfiguration.model_validate = classmethod(model_validate)


def on_registry(registry: ModuleType) -> None:
    """Register the methods with `mergekit.merge_methods.registry`, unless a name is taken."""
    registered = {method.spec.name: method for method in registry.registered_methods()}
    for name in OUR_METHODS:
        if name not in registered:
            _yielded.discard(name)
            registry.register(kernel(name))
        elif registered[name] is not kernel(name) and name not in _yielded:
            _yielded.add(name)
            LOG.warning(
                "this mergekit has a merge method `%s` of its own, so layerswap leaves it alone: "
                "recipes now mean what mergekit's documentation says. `pip uninstall layerswap` "
                "silences this.",
                name,
            )


def on_merge(merge: ModuleType) -> None:
    """Have `run_merge`, wherever it is bound, merge this project's recipes, and pass on others."""
    original = merge.run_merge
    if getattr(original, "_layerswap_patched", False):
        return

    @functools.wraps(original)
    def run_merge(
        merge_config: Any, out_path: str, options: Any, config_source: str | None = None
    ) -> None:
        if not is_ours(merge_config.merge_method):
            original(merge_config, out_path, options, config_source)
            return
        from layerswap_method.command_line import shown_errors

        with shown_errors():
            _merge_own(original, merge_config, out_path, options, config_source)

    run_merge._layerswap_patched = True  # type: ignore[attr-defined]
    for name, module in list(sys.modules.items()):
        if name.startswith("mergekit.") and getattr(module, "run_merge", None) is original:
            module.run_merge = run_merge  # type: ignore[attr-defined]


def _merge_own(
    original: Callable[..., None], merge_config: Any, out_path: str, options: Any, text: str | None
) -> None:
    """Merge a recipe of this project: from file to file, or by mergekit's `original` run_merge."""
    from layerswap_method.mergekit_plugin.run import merge_by_files, shown_log
    from layerswap_method.methods.read import RecipeFile
    from layerswap_method.recipe.strict_yaml import parse_yaml

    method = merge_config.merge_method
    text = text or merge_config.to_yaml()
    document = parse_yaml(text, f"{method} recipe")
    is_own = isinstance(document, dict) and is_ours(document.get("merge_method"))
    if not is_own or type(merge_config).model_validate(document) != merge_config:  # was changed
        text = merge_config.to_yaml()
        document = parse_yaml(text, f"{method} recipe")
    file = RecipeFile(f"{method} recipe", text, document)
    option_values = options.model_dump()
    if (reason := merge_by_files(file, out_path, option_values)) is not None:
        from layerswap_method.mergekit_plugin.executor import merge_by_mergekit

        shown_log(option_values)(f"mergekit's executor merges this recipe: {reason}")
        merge_by_mergekit(original, file, out_path, merge_config, options)


def withdraw() -> None:
    """Take the methods out of mergekit's registry again: a later step failed."""
    registry = sys.modules.get("mergekit.merge_methods.registry")
    methods = getattr(registry, "_OUR_METHODS", {})
    module = sys.modules.get("layerswap_method.mergekit_plugin.kernels.plain")
    for name in OUR_METHODS:
        _yielded.add(name)
        if module is not None and methods.get(name) is getattr(module, name, None):
            del methods[name]
