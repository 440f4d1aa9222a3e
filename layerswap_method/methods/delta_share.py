"""`placement: delta_share`: each layer or module from the expert that changed it most.

Source:
Shin and Hwang, "Layer-wise Swapping for Generalizable Multilingual Safety" (EACL 2026, arXiv
2601.22620), as its authors' public code has it (github.com/00HS/layer-wise_swapping, commit
5a2a3ea); their safety expert is the task expert here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from layerswap_method.errors import InputError
from layerswap_method.layer_plan import MODULES, LayerPlan, Source
from layerswap_method.methods.layer_swap import (
    PARENT_ADVICE,
    THRESHOLD,
    DeltaUnit,
    LayerSwapSpec,
)
from layerswap_method.tensor_names import is_norm, layer_part

if TYPE_CHECKING:
    from layerswap_method.deltas.pair import DeltaPair


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


def choose_source(task: float, language: float, threshold: float = THRESHOLD) -> Source:
    """Return the source of a unit, from the two experts' `delta_shares` t and l of it.

    With tau = `threshold`::

        task       if t - l > tau
        language   if t - l < -tau
        average    otherwise
    """
    lead = task - language
    return "task" if lead > threshold else "language" if lead < -threshold else "average"


Soup = Sequence[tuple["DeltaPair", float]]
"""The experts of one role as changes from the base, with their weights."""

Units = Mapping[tuple[int, str], list[str]]
"""(layer, part of it) -> names of its tensors."""


class UnitShare(NamedTuple):
    """One layer (0-based), or its attention or MLP, with its shares of the experts' changes."""

    layer: int
    part: str
    task_share: float
    language_share: float
    source: Source


def share_units(
    task_soup: Soup, language_soup: Soup, num_layers: int, spec: LayerSwapSpec
) -> tuple[LayerPlan, tuple[UnitShare, ...]]:
    """Return the layer plan by the changes of both roles, and the shares that it goes by."""
    units = _units(task_soup[0][0], num_layers, spec)
    task = _unit_shares(task_soup, units, spec)
    language = _unit_shares(language_soup, units, spec)
    sources = tuple(
        choose_source(task_share, language_share, spec.delta_threshold)
        for task_share, language_share in zip(task, language, strict=True)
    )
    plan = LayerPlan(sources)
    if spec.delta_unit == "module":
        # The norms, which are in neither module, are the language expert's, as published.
        norms: list[Source] = ["language"] * num_layers
        # `_units` has the modules of every layer in the order of MODULES.
        modules = {part: sources[position :: len(MODULES)] for position, part in enumerate(MODULES)}
        plan = LayerPlan(tuple(norms), modules)
    shares = tuple(
        UnitShare(layer, part, task_share, language_share, source)
        for (layer, part), task_share, language_share, source in zip(
            units, task, language, sources, strict=True
        )
    )
    return plan, shares


def _unit_shares(soup: Soup, units: Units, spec: LayerSwapSpec) -> tuple[float, ...]:
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
            f"the layers of {pair.expert} are equal to those of {pair.base}: {error}; "
            f"{PARENT_ADVICE}"
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
