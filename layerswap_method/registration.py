"""Registration: knows what mergekit must be told, and when to stand aside; not how it merges.

`layerswap_method._hook` calls the four `on_*` functions right after the mergekit modules they
are named after have run. They may raise: the hook turns that into one warning.
"""

from __future__ import annotations

import logging
import sys
from types import ModuleType
from typing import Any

METHOD_NAME = "layer_swap"
"""The name in a recipe's `merge_method`."""

LOG = logging.getLogger("layerswap")

_method: Any = None
_standing_aside = False


def layer_swap_method() -> Any:
    """Return the one `mergekit.merge_methods.MergeMethod` of this process (made on first use).

    Also the target of the entry point `mergekit.merge_methods`, which no mergekit reads yet: the
    day one does, it registers the same object, and `on_registry` knows it for its own.
    """
    global _method
    if _method is None:
        from layerswap_method.method import build_method

        _method = build_method()
    return _method


def on_config(config: ModuleType) -> None:
    """Have `mergekit.config` say in our words why a `layer_swap` recipe is none to it."""
    from layerswap_method.validation import patch_config

    patch_config(config, applies=lambda: not _standing_aside)


def on_registry(registry: ModuleType) -> None:
    """Register `layer_swap` with `mergekit.merge_methods.registry`, unless the name is taken."""
    global _standing_aside
    taken = {method.spec.name: method for method in registry.registered_methods()}
    if METHOD_NAME not in taken:
        _standing_aside = False
        registry.register(layer_swap_method())
    elif _method is None or taken[METHOD_NAME] is not _method:
        if not _standing_aside:
            LOG.warning(
                "this mergekit has a merge method `%s` of its own, so layerswap leaves it alone: "
                "recipes now mean what mergekit's documentation says. `pip uninstall layerswap` "
                "silences this.",
                METHOD_NAME,
            )
        _standing_aside = True


def on_plan(plan: ModuleType) -> None:
    """Teach the planner in `mergekit.plan` what each layer of a `layer_swap` recipe needs."""
    if _standing_aside:
        return
    from layerswap_method.planner import patch_planner

    patch_planner(plan)


def on_merge(merge: ModuleType) -> None:
    """Have `mergekit.merge` check a `layer_swap` recipe before anything is written."""
    if _standing_aside:
        return
    from layerswap_method.run import patch_merge

    patch_merge(merge, applies=lambda name: name == METHOD_NAME)


def withdraw() -> None:
    """Take `layer_swap` out of mergekit's registry again, where it is ours.

    For a process in which a later step failed: a `layer_swap` without its planner or its checks
    is worse than mergekit's plain "Unimplemented merge method".
    """
    global _standing_aside
    _standing_aside = True
    registry = sys.modules.get("mergekit.merge_methods.registry")
    methods = getattr(registry, "_METHODS", {})
    if _method is not None and methods.get(METHOD_NAME) is _method:
        del methods[METHOD_NAME]
