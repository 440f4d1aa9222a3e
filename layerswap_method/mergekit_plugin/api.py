"""Small things asked of mergekit (0.1.5). Knows mergekit, not layer swapping.

Every import sits in the function that needs it: the registration hook runs while mergekit is
only half imported, so nothing here may be loaded before it is called for.
"""

from __future__ import annotations

from typing import Any


def method_names() -> tuple[str, ...]:
    """Return the names of the merge methods that mergekit knows; ours only where registered."""
    from mergekit.merge_methods.registry import registered_methods

    return tuple(method.spec.name for method in registered_methods())


def configuration_type() -> Any:
    """Return the class `MergeConfiguration`, as which mergekit reads every recipe."""
    from mergekit.config import MergeConfiguration

    return MergeConfiguration


def architecture_of(config: Any) -> Any:
    """Return mergekit's architecture for a transformers config; None where it has no definition."""
    from mergekit.architecture import arch_info_for_config

    return arch_info_for_config(config)


def forget_loaders() -> None:
    """Drop the checkpoints that mergekit keeps open for the life of a process.

    It keys them by the reference alone, so a folder written anew between two merges of one
    process, or an adapter merged into another cache, would be read as it was.
    """
    from mergekit.io.tasks import LoaderCache

    LoaderCache.loaders.clear()
