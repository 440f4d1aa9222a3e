"""What a `layer_swap` recipe must know of the experts' changes: mean changes and shares."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from layerswap_method.errors import InputError
from layerswap_method.methods.delta_share import (
    choose_sources,
    delta_shares,
    dominant_sources,
    magnitude_weights,
    unit_norm,
)
from layerswap_method.methods.layer_swap import LayerSwapRecipe, LayerSwapSpec
from layerswap_method.plan import MODULES, ROLES, LayerPlan, Source
from layerswap_method.recipe.document import Progress
from layerswap_method.recipe.references import ModelFiles
from layerswap_method.tensor_names import decoder_layer, is_norm, layer_part

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
    """The layer plan and the weights of a merge, and what was measured for them."""

    plan: LayerPlan
    weights: tuple[float, ...]
    """Weights to merge with, one an expert, within its role."""

    side_weights: tuple[float, float]
    """Weights of (task, language) to merge with."""

    mavs: tuple[float | None, ...] = ()
    """Mean MAV of every expert's change, in the unit of the weights; None for experts of weight
    0. Empty unless ``weighting: magnitude``."""

    units: tuple[UnitShare, ...] = ()
    """Every unit from the embedding side on; empty unless ``placement: delta_share``."""


def measure(
    recipe: LayerSwapRecipe,
    models: Mapping[str, ModelFiles],
    num_layers: int,
    plan: LayerPlan,
    progress: Progress,
) -> Measured:
    """Return plan and weights of a merge by the experts' changes from the base.

    Reads every expert and the base once for ``weighting: magnitude``, and the decoder layers once
    for ``placement: delta_share``, which replaces `plan`; cached in this process.
    """
    spec = recipe.parameters
    given = [entry.parameters for entry in recipe.experts]
    measured = Measured(plan, tuple(own.weight for own in given), spec.side_weights)
    if not spec.needs_deltas:
        return measured
    from layerswap_method.deltas.measure import mean_feature_mav
    from layerswap_method.deltas.pair import open_pair

    base = models[str(recipe.base_model)]
    try:
        pairs = [
            open_pair(models[entry.model], base) if entry.parameters.weight else None
            for entry in recipe.experts
        ]
    except InputError as error:
        raise InputError(
            f"{spec.delta_setting} needs the experts' base_model: {error.message}"
        ) from error
    if spec.weighting == "magnitude":
        mavs: list[float | None] = []
        for pair in pairs:
            if pair is None:
                mavs.append(None)
                continue
            mavs.append(mean_feature_mav(pair, partial(progress, f"change of {pair.expert}")))
            if mavs[-1] == 0:
                raise InputError(
                    f"{pair.expert} is equal to {pair.base}: its change is 0, which has no inverse "
                    f"to be a weight; {_ADVICE}"
                )
        roles = [str(own.role) for own in given]
        weights, sides = magnitude_weights(roles, measured.weights, mavs, spec.side_weights)
        measured = Measured(plan, weights, sides, tuple(mavs))
    if spec.placement != "delta_share":
        return measured
    units: Units = {}
    shares = []
    for role in ROLES:
        soup = [
            (pair, weight)
            for pair, own, weight in zip(pairs, given, measured.weights, strict=True)
            if pair is not None and own.role == role
        ]
        if not soup:
            raise InputError(f"placement: delta_share: no {role} expert has a weight above 0")
        units = _units(soup[0][0], num_layers, spec)
        shares.append(_unit_shares(soup, units, spec, progress))
    task, language = shares
    if spec.delta_dominance is None:
        sources = choose_sources(task, language, spec.delta_threshold)
    else:
        sources = dominant_sources(task, language, spec.delta_dominance)
    plan = LayerPlan(sources)
    if spec.delta_unit == "module":
        # As published: what is neither attention nor MLP, the norms, is the language expert's.
        rest: list[Source] = ["language"] * num_layers
        plan = LayerPlan(tuple(rest), {part: sources[i::2] for i, part in enumerate(MODULES)})
    rows = zip(units, task, language, sources, strict=True)
    found = tuple(
        UnitShare(*unit, of_task, of_other, source) for unit, of_task, of_other, source in rows
    )
    return measured._replace(plan=plan, units=found)


def _unit_shares(
    soup: Sequence[tuple[Any, float]], units: Units, spec: LayerSwapSpec, progress: Progress
) -> tuple[float, ...]:
    """Return each unit's share of the whole change of one role's soup."""
    from layerswap_method.deltas.measure import relative_norms

    total = math.fsum(weight for _, weight in soup)
    pair = soup[0][0]
    norms = relative_norms(
        [(each, weight / total) for each, weight in soup],
        [name for names in units.values() for name in names],
        partial(progress, f"change of {pair.expert}"),
    )
    moved = [
        unit_norm([norms[name] for name in names], spec.delta_unit) for names in units.values()
    ]
    try:
        return delta_shares(moved)
    except ValueError as error:
        raise InputError(
            f"the layers of {pair.expert} are equal to those of {pair.base}: {error}; {_ADVICE}"
        ) from error


def _units(pair: Any, num_layers: int, spec: LayerSwapSpec) -> Units:
    """Return the units from the embedding side on, attention before MLP.

    The authors take the four projections of the attention and the three of the MLP; here it is
    every tensor of the two that is no norm, so that other architectures have units as well.
    """
    by_module = spec.delta_unit == "module"
    parts = MODULES if by_module else ("layer",)
    units: Units = {(layer, part): [] for layer in range(num_layers) for part in parts}
    for name in pair.names:
        layer, part = decoder_layer(name), str(layer_part(name))
        if layer is not None and layer < num_layers and part in MODULES and not is_norm(name):
            units[layer, part if by_module else "layer"].append(name)
    for (layer, part), names in units.items():
        if not names:
            what = part if by_module else "attention or MLP"
            raise InputError(
                f"placement: delta_share: layer {layer} of {pair.base} has no {what} tensors that "
                "are known by their names; delta_unit: layer takes either, placement: layers needs "
                "none"
            )
    return units
