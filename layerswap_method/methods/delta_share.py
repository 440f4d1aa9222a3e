"""Sources of layers, and weights, by how far the experts moved from their base.

`placement: delta_share` takes each layer or module from the expert that changed it most. Source:
Shin and Hwang, "Layer-wise Swapping for Generalizable Multilingual Safety" (EACL 2026, arXiv
2601.22620), as its authors' public code has it (github.com/00HS/layer-wise_swapping, commit
5a2a3ea); their safety expert is the task expert here. The rule with the base as a third choice
follows the model card of AraSwap (mariklolik228/AraSwap-Qwen3-8B-Adapters on the hub), which
compares Frobenius norms and asks for 15 %; its code was not open to us.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from layerswap_method.errors import InputError
from layerswap_method.layer_plan import (
    MODULES,
    ROLES,
    LayerPlan,
    Source,
)
from layerswap_method.methods.layer_swap import THRESHOLD, DeltaUnit, LayerSwapRecipe, LayerSwapSpec
from layerswap_method.tensor_names import is_norm, layer_part

if TYPE_CHECKING:
    from layerswap_method.deltas.pair import DeltaPair
    from layerswap_method.recipe.references import Model


def unit_norm(relative_norms: Sequence[float], unit: DeltaUnit) -> float:
    """Return how far one unit moved, from ``r = ||W_delta|| / ||W_base||`` of each of its tensors.

    Frobenius norms. For `layer` it is the sum of the r, for `module` the root of the sum of their
    squares: the authors' two programs differ in that, and both are followed.
    """
    return math.hypot(*relative_norms) if unit == "module" else math.fsum(relative_norms)


def delta_shares(norms: Sequence[float]) -> tuple[float, ...]:
    """Return each unit's share of one expert's whole change: ``norms[i] / sum(norms)``."""
    if not norms:
        raise ValueError("there is no unit to share a change among")
    total = math.fsum(norms)
    if total == 0:
        raise ValueError("every norm is 0: an expert that changed nothing has no shares")
    return tuple(norm / total for norm in norms)


def choose_source(
    task: float, language: float, threshold: float = THRESHOLD, dominance: float | None = None
) -> Source:
    """Return the source of a unit, from the two experts' `delta_shares` t and l of it.

    With tau = `threshold`; and in its place, where neither expert is to have what both changed
    alike, with D = `dominance` (shares take the place of AraSwap's norms, so that the expert that
    was trained longer does not get every unit)::

        task       if t - l > tau           task       if t > (1 + D) l
        language   if t - l < -tau          language   if l > (1 + D) t
        average    otherwise                base       otherwise
    """
    if dominance is None:
        lead = task - language
        return "task" if lead > threshold else "language" if lead < -threshold else "average"
    if task > (1 + dominance) * language:
        return "task"
    return "language" if language > (1 + dominance) * task else "base"


def inverse_mav(mav: float) -> float:
    """Return ``1 / mav`` to six significant digits: what is printed is what is used.

    `mav` is the mean of the MAV of all features of one expert's change, in the unit of the weights.
    "The resulting weight of each expert is the inverse of the average MAV for all rows in all
    W_delta for that expert" (arXiv 2410.01335, section 5.1; offered for transition zones in section
    4.2). It is the `scale` of an `average.Input`, and multiplies a model's share of its role: so
    twelve language experts do not outvote one task expert by their number.
    """
    return float(f"{1 / mav:.5e}")


_ADVICE = "base_model must be the parent of the experts, and an expert one that was trained from it"

Units = Mapping[tuple[int, str], list[str]]
"""(layer, part of it) -> names of its tensors."""


class UnitShare(NamedTuple):
    """One layer (0-based), or its attention or MLP, with its shares of the experts' changes."""

    layer: int
    part: str
    task_share: float
    language_share: float
    source: Source


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


def measure_deltas(
    recipe: LayerSwapRecipe, models: Mapping[str, Model], num_layers: int, plan: LayerPlan
) -> Measured:
    """Return plan and scales of a merge by the experts' changes, cached in this process.

    ``placement: delta_share`` replaces `plan`.
    """
    spec, experts = recipe.parameters, recipe.experts
    measured = Measured(plan, scales=(1.0,) * len(experts))
    if not spec.needs_deltas:
        return measured
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
        mavs = tuple(None if pair is None else _mean_change(pair) for pair in pairs)
        scales = tuple(1.0 if mav is None else inverse_mav(mav) for mav in mavs)
        measured = Measured(plan, scales, mavs)
    if spec.placement != "delta_share":
        return measured
    units: Units = {}
    shares = []
    for role in ROLES:
        soup = [
            (pair, entry.parameters.weight * scale)
            for pair, entry, scale in zip(pairs, experts, measured.scales, strict=True)
            if pair is not None and entry.parameters.role == role
        ]
        units = _units(soup[0][0], num_layers, spec)
        shares.append(_unit_shares(soup, units, spec))
    task, language = shares
    sources = tuple(
        choose_source(task_share, language_share, spec.delta_threshold, spec.delta_dominance)
        for task_share, language_share in zip(task, language, strict=True)
    )
    plan = LayerPlan(sources)
    if spec.delta_unit == "module":
        # As published: the norms, which are in neither module, are the language expert's.
        norms: list[Source] = ["language"] * num_layers
        # Of every layer `_units` has the modules in the order of MODULES.
        modules = {part: sources[position :: len(MODULES)] for position, part in enumerate(MODULES)}
        plan = LayerPlan(tuple(norms), modules)
    unit_shares = tuple(
        UnitShare(layer, part, task_share, language_share, source)
        for (layer, part), task_share, language_share, source in zip(
            units, task, language, sources, strict=True
        )
    )
    return measured._replace(plan=plan, units=unit_shares)


def _mean_change(pair: DeltaPair) -> float:
    from layerswap_method.deltas.pair import mean_feature_mav

    change = mean_feature_mav(pair)
    if change == 0:
        raise InputError(
            f"{pair.expert} is equal to {pair.base}: its change is 0, which has no inverse to be a "
            f"weight; {_ADVICE}"
        )
    return change


def _unit_shares(
    soup: Sequence[tuple[DeltaPair, float]], units: Units, spec: LayerSwapSpec
) -> tuple[float, ...]:
    """Return each unit's share of the whole change of one role's soup."""
    from layerswap_method.deltas.pair import relative_norms

    total, pair = math.fsum(weight for _, weight in soup), soup[0][0]
    norms = relative_norms(
        tuple((pair, weight / total) for pair, weight in soup),
        tuple(name for names in units.values() for name in names),
    )
    unit_norms = [
        unit_norm([norms[name] for name in names], spec.delta_unit) for names in units.values()
    ]
    try:
        return delta_shares(unit_norms)
    except ValueError as error:
        raise InputError(
            f"the layers of {pair.expert} are equal to those of {pair.base}: {error}; {_ADVICE}"
        ) from error


def _units(pair: DeltaPair, num_layers: int, spec: LayerSwapSpec) -> Units:
    """Return the units from the embedding side on, attention before MLP; norms are in none."""
    by_module = spec.delta_unit == "module"
    parts = MODULES if by_module else ("layer",)
    units: Units = {(layer, part): [] for layer in range(num_layers) for part in parts}
    for name in pair.names:
        place, module = pair.decoder.layer(name), layer_part(name)
        if place is not None and module in MODULES and not is_norm(name):
            units[place, module if by_module else "layer"].append(name)
    for (layer, part), names in units.items():
        if not names:
            raise InputError(
                f"placement: delta_share: layer {layer} of {pair.base} has no known "
                f"{part if by_module else 'attention or MLP'} tensors; choose another placement"
            )
    return units
