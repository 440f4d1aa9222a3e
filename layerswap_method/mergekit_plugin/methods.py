"""The one table of our merge methods."""

from __future__ import annotations

from collections.abc import Mapping

METHODS: Mapping[str, str] = {
    "layer_swap": "layerswap_method.mergekit_plugin.layer_swap_kernel",
    "delta_revert": "layerswap_method.mergekit_plugin.delta_revert_kernel",
}
"""Name in a recipe's ``merge_method`` -> the module whose `build_method` makes it."""
