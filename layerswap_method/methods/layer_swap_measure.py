"""What a `layer_swap` recipe must know of the experts' changes: mean changes and shares."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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


class UnitShare(NamedTuple):
    """One layer (0-based), or its attention or MLP, with its shares of the experts' changes."""

    layer: int
    part: str
    task_share: float
    language_share: float
    source: Source


@dataclass(frozen=True)
class Measured:
    """What was measured of the experts' changes for one recipe."""

    mavs: tuple[float | None, ...]
    """Mean MAV of every expert's change, in the unit of the weights; None for experts of weight
    0. Empty unless ``weighting: magnitude``."""

    weights: tuple[float, ...]
    """Weights to merge with, one an expert, within its role."""

    side_weights: tuple[float, float]
    """Weights of (task, language) to merge with."""

    units: tuple[UnitShare, ...] = ()
    """Every unit from the embedding side on; empty unless ``placement: delta_share``."""

    plan: LayerPlan | None = None
    """The layer plan of ``placement: delta_share``."""


def measure(
    recipe: LayerSwapRecipe,
    models: Mapping[str, ModelFiles],
    num_layers: int,
    progress: Progress = lambda what, names: names,
) -> Measured:
    """Return what the recipe needs to know of the experts' changes from its base.

    Reads every expert and the base once for ``weighting: magnitude``, and the decoder layers once
    for ``placement: delta_share``; what was measured is cached in this process.
    """
    from layerswap_method.deltas.measure import mean_feature_mav
    from layerswap_method.deltas.pair import open_pair

    spec = recipe.parameters
    given = [entry.parameters for entry in recipe.experts]
    weights, sides = tuple(own.weight for own in given), spec.side_weights
    try:
        pairs = [
            open_pair(models[entry.model], models[str(recipe.base_model)])
            if entry.parameters.weight
            else None
            for entry in recipe.experts
        ]
    except InputError as error:
        raise InputError(
            f"{spec.delta_setting} needs the experts' base_model: {error.message}"
        ) from error
    mavs: tuple[float | None, ...] = ()
    if spec.weighting == "magnitude":
        mavs = tuple(
            None if pair is None else mean_feature_mav(pair, _with_title(progress, pair.expert))
            for pair in pairs
        )
        for pair, change in zip(pairs, mavs, strict=True):
            if pair is not None and change == 0:
                raise InputError(
                    f"{pair.expert} is equal to {pair.base}: its change is 0, which has no inverse "
                    f"to be a weight; {_ADVICE}"
                )
        weights, sides = magnitude_weights([str(own.role) for own in given], weights, mavs, sides)
    if spec.placement != "delta_share":
        return Measured(mavs, weights, sides)
    shares: dict[str, tuple[float, ...]] = {}
    units: Mapping[tuple[int, str], list[str]] = {}
    for role in ROLES:
        soup = [
            (pair, weight)
            for pair, own, weight in zip(pairs, given, weights, strict=True)
            if pair is not None and own.role == role
        ]
        if not soup:
            raise InputError(f"placement: delta_share: no {role} expert has a weight above 0")
        units = _units(soup[0][0], num_layers, spec)
        shares[role] = _unit_shares(soup, units, spec, progress)
    both = shares["task"], shares["language"]
    if spec.delta_dominance is None:
        sources = choose_sources(*both, spec.delta_threshold)
    else:
        sources = dominant_sources(*both, spec.delta_dominance)
    found = tuple(
        UnitShare(*unit, task, language, source)
        for unit, task, language, source in zip(units, *both, sources, strict=True)
    )
    plan = LayerPlan(sources)
    if spec.delta_unit == "module":
        # As published: what is neither attention nor MLP, the norms, is the language expert's.
        apart = {part: sources[i :: len(MODULES)] for i, part in enumerate(MODULES)}
        rest: Source = "language"
        plan = LayerPlan((rest,) * num_layers, apart)
    return Measured(mavs, weights, sides, found, plan)


def _with_title(progress: Progress, expert: str) -> Any:
    return lambda names: progress(f"change of {expert}", names)


def _unit_shares(
    soup: Sequence[tuple[Any, float]],
    units: Mapping[tuple[int, str], list[str]],
    spec: LayerSwapSpec,
    progress: Progress,
) -> tuple[float, ...]:
    """Return each unit's share of the whole change of one role's soup."""
    from layerswap_method.deltas.measure import relative_norms

    total = math.fsum(weight for _, weight in soup)
    pair = soup[0][0]
    norms = relative_norms(
        [(each, weight / total) for each, weight in soup],
        [name for names in units.values() for name in names],
        _with_title(progress, pair.expert),
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


def _units(pair: Any, num_layers: int, spec: LayerSwapSpec) -> dict[tuple[int, str], list[str]]:
    """Return (layer, part) -> its tensors, from the embedding side on, attention before MLP.

    The authors take the four projections of the attention and the three of the MLP; here it is
    every tensor of the two that is no norm, so that other architectures have units as well.
    """
    parts = MODULES if spec.delta_unit == "module" else ("layer",)
    units: dict[tuple[int, str], list[str]] = {
        (layer, part): [] for layer in range(num_layers) for part in parts
    }
    for name in pair.names:
        layer, part = decoder_layer(name), layer_part(name)
        if layer is None or part not in MODULES or is_norm(name):
            continue
        place = (layer, part if spec.delta_unit == "module" else "layer")
        if place in units:
            units[place].append(name)
    empty = [place for place, names in units.items() if not names]
    if empty:
        layer, lacking = empty[0]
        what = "attention or MLP" if lacking == "layer" else lacking
        raise InputError(
            f"placement: delta_share: layer {layer} of {pair.base} has no {what} tensors that are "
            "known by their names; delta_unit: layer takes either, placement: layers needs none"
        )
    return units
