"""Measurements of a merge on its experts: weights of averages, and layers (`delta_share`).

`inverse_mav` is the weight of ``weighting: magnitude``. Written weights are fields of the recipe
(`LayerSwapSpec.average_weights`, `ExpertParameters.weight`); `layerswap_method.average` has the
formula that all of them enter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from layerswap_method.errors import InputError, input_errors
from layerswap_method.layer_plan import ROLES, LayerPlan
from layerswap_method.methods.delta_share import UnitShare, share_units
from layerswap_method.methods.layer_swap import PARENT_ADVICE, LayerSwapRecipe

if TYPE_CHECKING:
    from layerswap_method.deltas.pair import DeltaPair
    from layerswap_method.tensors import OpenModel


class Measured(NamedTuple):
    """The layer plan of a merge, and what was measured on the experts for it.

    `scales` are those of the experts (`inverse_mav`; 1 unless ``weighting: magnitude``). `mavs` are
    the mean MAV of every expert's change, in the unit of the weights (None for weight 0); empty
    unless ``weighting: magnitude``. `units` are from the embedding side on; empty unless
    ``placement: delta_share``.
    """

    plan: LayerPlan
    scales: tuple[float, ...]
    mavs: tuple[float | None, ...] = ()
    units: tuple[UnitShare, ...] = ()


def measured_plan(recipe: LayerSwapRecipe, models: Mapping[str, OpenModel]) -> Measured:
    """Return plan and scales of a merge; changes are measured where the recipe goes by them.

    `deltas/pair.py` caches what it reads of the changes in this process; this is computed anew.
    """
    spec, experts = recipe.parameters, recipe.experts
    first, *_ = models.values()
    num_layers = first.checkpoint.depth()
    with input_errors("layer_swap recipe"):
        plan = recipe.layer_plan(num_layers)  # None with ``placement: delta_share``
    scales, mavs = (1.0,) * len(experts), tuple[float | None, ...]()
    if plan is not None and not recipe.needs_deltas:
        return Measured(plan, scales)
    from layerswap_method.deltas.pair import open_pair

    base = models[str(recipe.base_model)]
    try:
        pairs = [
            open_pair(models[entry.model], base) if entry.parameters.weight else None
            for entry in experts
        ]
    except InputError as error:
        raise InputError(
            f"{spec.delta_setting} needs the experts' base_model: {error.message}"
        ) from error
    if spec.weighting == "magnitude":
        mavs = tuple(None if pair is None else mean_change(pair) for pair in pairs)
        scales = tuple(1.0 if mav is None else inverse_mav(mav) for mav in mavs)
    if plan is not None:
        return Measured(plan, scales, mavs)
    task_soup, language_soup = (
        [
            (pair, entry.parameters.weight * scale)
            for pair, entry, scale in zip(pairs, experts, scales, strict=True)
            if pair is not None and entry.parameters.role == role
        ]
        for role in ROLES
    )
    plan, units = share_units(task_soup, language_soup, num_layers, spec)
    return Measured(plan, scales, mavs, units)


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
