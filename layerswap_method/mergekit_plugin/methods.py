"""The one table of our merge methods. Imports no mergekit: that may be half imported itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layerswap_method.delta_revert import spec as delta_revert
from layerswap_method.layer_swap import spec as layer_swap
from layerswap_method.output import Prepared

Prepare = Callable[[Any, Any, Mapping[str, Any] | None, Path], Prepared]
"""Checks a recipe and measures what it needs: (mergekit's configuration, its options, the document
before mergekit parsed it, the output folder) -> the merge."""


@dataclass(frozen=True)
class Method:
    """What the rest of the plug-in must know of a merge method."""

    parameters: tuple[str, ...]
    """Names that a recipe may write below ``parameters:``, of the recipe or of a model."""

    kernel: Callable[[], Any]
    """Returns mergekit's `FunctionalGroupMergeMethod` of it."""

    merge: Callable[[], Prepare]
    """Returns what prepares a merge by it."""


def _layer_swap_kernel() -> Any:
    from layerswap_method.mergekit_plugin.layer_swap_kernel import layer_swap

    return layer_swap


def _layer_swap_merge() -> Prepare:
    from layerswap_method.mergekit_plugin.layer_swap_merge import prepare

    return prepare


def _delta_revert_kernel() -> Any:
    from layerswap_method.mergekit_plugin.delta_revert_kernel import delta_revert

    return delta_revert


def _delta_revert_merge() -> Prepare:
    from layerswap_method.mergekit_plugin.delta_revert_merge import prepare

    return prepare


METHODS: Mapping[str, Method] = {
    layer_swap.NAME: Method(
        (*layer_swap.MODEL_PARAMETERS, *layer_swap.SHARED_PARAMETERS),
        _layer_swap_kernel,
        _layer_swap_merge,
    ),
    delta_revert.NAME: Method(
        delta_revert.SHARED_PARAMETERS, _delta_revert_kernel, _delta_revert_merge
    ),
}
"""Name in a recipe's ``merge_method`` -> the method."""
