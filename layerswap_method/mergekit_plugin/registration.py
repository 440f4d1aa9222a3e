"""What mergekit's modules are completed with once they have run; see `layerswap_method.autoload`.

Nothing of mergekit is imported here before it is needed: it may be half imported itself.
"""

from __future__ import annotations

import logging
import sys
from types import ModuleType
from typing import Any

from layerswap_method.methods.delta_revert import NAME as DELTA_REVERT
from layerswap_method.methods.layer_swap import NAME as LAYER_SWAP

LOG = logging.getLogger("layerswap")

METHODS = (LAYER_SWAP, DELTA_REVERT)
"""The merge methods of this project."""

_yielded: set[str] = set()
"""Methods whose names this mergekit has given to methods of its own."""


def is_ours(name: object) -> bool:
    """Return whether `name` is a merge method of this project that mergekit takes from it."""
    return name in METHODS and name not in _yielded


def kernel(name: str) -> Any:
    """Return the `mergekit.merge_methods.MergeMethod` called `name`."""
    from layerswap_method.mergekit_plugin.kernels.delta_revert import delta_revert
    from layerswap_method.mergekit_plugin.kernels.layer_swap import layer_swap

    return {LAYER_SWAP: layer_swap, DELTA_REVERT: delta_revert}[name]


def on_config(config: ModuleType) -> None:
    """Complete `mergekit.config`: it says what is wrong with a recipe of this project's methods."""
    from layerswap_method.mergekit_plugin.recipe_errors import patch_config

    patch_config(config, applies=is_ours)


def on_registry(registry: ModuleType) -> None:
    """Register the methods with `mergekit.merge_methods.registry`, unless a name is taken."""
    taken = {method.spec.name: method for method in registry.registered_methods()}
    for name in METHODS:
        if name not in taken:
            _yielded.discard(name)
            registry.register(kernel(name))
        elif taken[name] is not kernel(name) and name not in _yielded:
            _yielded.add(name)
            LOG.warning(
                "this mergekit has a merge method `%s` of its own, so layerswap leaves it alone: "
                "recipes now mean what mergekit's documentation says. `pip uninstall layerswap` "
                "silences this.",
                name,
            )


def on_merge(merge: ModuleType) -> None:
    """Have `mergekit.merge` merge recipes of this project's methods from file to file."""
    from layerswap_method.mergekit_plugin.run import patch_merge

    patch_merge(merge, applies=is_ours)


def withdraw() -> None:
    """Take the methods out of mergekit's registry again.

    For a process in which a later step failed: a `layer_swap` without its checks is worse than
    mergekit's plain "Unimplemented merge method".
    """
    registry = sys.modules.get("mergekit.merge_methods.registry")
    methods = getattr(registry, "_METHODS", {})
    for name in METHODS:
        _yielded.add(name)
        module = sys.modules.get(f"layerswap_method.mergekit_plugin.kernels.{name}")
        if module is not None and methods.get(name) is getattr(module, name, None):
            del methods[name]
