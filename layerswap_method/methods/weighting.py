"""Weights of averages that are measured: ``weighting: magnitude``.

Written weights are fields of the recipe (`LayerSwapSpec.side_weights`, `ExpertParameters.weight`);
`layerswap_method.average` has the formula that all of them enter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layerswap_method.errors import InputError
from layerswap_method.methods.layer_swap import PARENT_ADVICE

if TYPE_CHECKING:
    from layerswap_method.deltas.pair import DeltaPair


def inverse_mav(mav: float) -> float:
    """Return ``1 / mav`` to six significant digits: what is printed is what is used.

    `mav` is the mean of the MAV of all features of one expert's change, in the unit of the weights.
    "The resulting weight of each expert is the inverse of the average MAV for all rows in all
    W_delta for that expert" (arXiv 2410.01335, section 5.1; offered for transition zones in section
    4.2). It is the `scale` of an `average.Input`, and multiplies a model's share of its role: so
    twelve language experts do not outvote one task expert by their number.
    """
    return float(f"{1 / mav:.5e}")


def mean_change(pair: DeltaPair) -> float:
    """Return the mean MAV of an expert's change from its base, which `inverse_mav` takes."""
    from layerswap_method.deltas.pair import mean_feature_mav

    change = mean_feature_mav(pair)
    if change == 0:
        raise InputError(
            f"{pair.expert} is equal to {pair.base}: its change is 0, which has no inverse to be a "
            f"weight; {PARENT_ADVICE}"
        )
    return change
