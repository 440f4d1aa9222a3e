"""Registration: knows what mergekit must be told, and when to stand aside; not how it merges.

`layerswap_method._hook` calls the `on_*` functions right after the mergekit modules they
are named after have run. They may raise: the hook turns that into one warning. Nothing of mergekit
is imported here before it is asked for: it may be half imported itself.
"""

from __future__ import annotations

import logging
import sys
from types import ModuleType
from typing import Any

from layerswap_method.delta_revert.spec import NAME as DELTA_REVERT
from layerswap_method.layer_swap.spec import NAME as LAYER_SWAP

LOG = logging.getLogger("layerswap")

METHODS = (LAYER_SWAP, DELTA_REVERT)
"""The merge methods of this project."""

_made: dict[str, Any] = {}
_aside: set[str] = set()


def is_ours(name: object) -> bool:
    """Return whether `name` is a merge method of this project that mergekit takes from it."""
    return name in METHODS and name not in _aside


def merge_method(name: str) -> Any:
    """Return the one `mergekit.merge_methods.MergeMethod` called `name` of this process."""
    if name not in _made:
        from layerswap_method.mergekit_plugin.delta_revert_kernel import delta_revert
        from layerswap_method.mergekit_plugin.layer_swap_kernel import layer_swap
        from layerswap_method.mergekit_plugin.planned_method import PlannedMethod

        for kernel in (layer_swap, delta_revert):
            _made[kernel.spec.name] = PlannedMethod(kernel.spec, kernel.implementation)
    return _made[name]


def layer_swap_method() -> Any:
    """Return `layer_swap`; made on first use.

    Also the target of the entry point `mergekit.merge_methods`, which no mergekit reads yet: the
    day one does, it registers the same object, and `on_registry` knows it for its own.
    """
    return merge_method(LAYER_SWAP)


def delta_revert_method() -> Any:
    """Return `delta_revert`; as above."""
    return merge_method(DELTA_REVERT)


def on_config(config: ModuleType) -> None:
    """Have `mergekit.config` say in our words why a recipe of ours is none to it."""
    from layerswap_method.mergekit_plugin.recipe_errors import patch_config

    patch_config(config, applies=is_ours)


def on_registry(registry: ModuleType) -> None:
    """Register our methods with `mergekit.merge_methods.registry`, unless the name is taken."""
    taken = {method.spec.name: method for method in registry.registered_methods()}
    for name in METHODS:
        if name not in taken:
            _aside.discard(name)
            registry.register(merge_method(name))
        elif taken[name] is not _made.get(name):
            if name not in _aside:
                LOG.warning(
                    "this mergekit has a merge method `%s` of its own, so layerswap leaves it "
                    "alone: recipes now mean what mergekit's documentation says. `pip uninstall "
                    "layerswap` silences this.",
                    name,
                )
            _aside.add(name)


def on_merge(merge: ModuleType) -> None:
    """Have `mergekit.merge` check a recipe of ours before anything is written."""
    if not any(is_ours(name) for name in METHODS):
        return
    from layerswap_method.mergekit_plugin.run import patch_merge

    patch_merge(merge, applies=is_ours)


def withdraw() -> None:
    """Take our methods out of mergekit's registry again, where they are ours.

    For a process in which a later step failed: a `layer_swap` without its checks is worse than
    mergekit's plain "Unimplemented merge method".
    """
    registry = sys.modules.get("mergekit.merge_methods.registry")
    methods = getattr(registry, "_METHODS", {})
    for name in METHODS:
        _aside.add(name)
        if name in _made and methods.get(name) is _made[name]:
            del methods[name]
