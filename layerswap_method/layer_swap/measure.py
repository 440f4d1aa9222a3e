"""What a recipe must know of the experts' changes: mean changes and shares. Knows files and roles.

Used before a merge by `preflight` and for a stream by `streams`, so both get the same numbers.
What was measured is kept in this process's memory only, under the files' names and dates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from layerswap_method.algorithm.plan import MODULES, ROLES, LayerPlan, Source
from layerswap_method.algorithm.tensor_names import decoder_layer, is_norm, layer_part
from layerswap_method.deltas.known import known
from layerswap_method.deltas.magnitudes import mean_row_mav
from layerswap_method.deltas.open_pair import open_pair
from layerswap_method.deltas.pair import DeltaPair, not_finite
from layerswap_method.deltas.passes import Segment, blocks_of, read_blocks, run_pass, segments_of
from layerswap_method.errors import InputError
from layerswap_method.layer_swap.delta_share import (
    DeltaUnit,
    choose_sources,
    delta_shares,
    dominant_sources,
    unit_norm,
)
from layerswap_method.layer_swap.magnitude import Weights, magnitude_weights
from layerswap_method.layer_swap.spec import LayerSwapSpec

if TYPE_CHECKING:
    from layerswap_method.checkpoints.model_files import StreamInput

Progress = Callable[[str, Sequence[str]], Iterable[str]]
"""(what is read, names of its tensors) -> the names, which it may count for a bar."""


_ADVICE = "base_model must be the parent of the experts, and an expert one that was trained from it"

Soup = Sequence[tuple[DeltaPair, float]]
"""The experts of one role, each with its share of the role's soup; the shares sum to 1."""


@dataclass(frozen=True)
class UnitShare:
    """One layer, or its attention or MLP, as the rule of `shares` saw it."""

    layer: int
    """0-based."""

    part: str
    """`layer`, `attention` or `mlp`."""

    task_share: float
    """Share of the task expert's whole change, 0 to 1."""

    language_share: float
    """Share of the language expert's whole change, 0 to 1."""

    source: Source
    """Where the unit comes from."""


@dataclass(frozen=True)
class Measured:
    """What was measured for one recipe."""

    spec: LayerSwapSpec
    """Its top-level parameters."""

    experts: tuple[StreamInput, ...]
    """Its inputs with a role, in its order."""

    base: StreamInput
    """What changes are measured from."""

    mavs: tuple[float | None, ...]
    """Mean row MAV of every expert's change, in the unit of the weights; None for experts of
    weight 0. Empty unless ``weighting: magnitude``."""

    weights: Weights
    """The weights to merge with."""

    units: tuple[UnitShare, ...] = ()
    """Every unit from the embedding side on; empty unless ``placement: delta_share``."""

    plan: LayerPlan | None = None
    """The layer plan of ``placement: delta_share``."""


def measure(
    spec: LayerSwapSpec,
    experts: Sequence[StreamInput],
    base: StreamInput,
    num_layers: int,
    progress: Progress = lambda what, names: names,
) -> Measured:
    """Return what the recipe needs to know of the experts' changes from `base`.

    Reads every expert and the base once for ``weighting: magnitude``, and the decoder layers once
    for ``placement: delta_share``.

    Args:
        spec: the recipe's top-level parameters.
        experts: the inputs with a role, in the recipe's order.
        base: the shared pretrained parent.
        num_layers: decoder layers of the models.
        progress: wraps what is gone through.

    Raises:
        InputError: for an expert that is not of this base or changed nothing, or files that
            cannot be read.
    """
    used = [expert for expert in experts if expert.weight != 0]
    pairs = {expert.files: _open(spec, expert, base) for expert in used}
    weights = Weights(
        tuple(expert.weight for expert in experts), spec.task_weight, spec.language_weight
    )
    mavs: tuple[float | None, ...] = ()
    if spec.weighting == "magnitude":
        found = {key: _mean_change(pair, progress) for key, pair in pairs.items()}
        mavs = tuple(found.get(expert.files) if expert.weight else None for expert in experts)
        weights = magnitude_weights(
            [str(expert.role) for expert in experts],
            weights.models,
            mavs,
            task_weight=spec.task_weight,
            language_weight=spec.language_weight,
        )
    if spec.placement != "delta_share":
        return Measured(spec, tuple(experts), base, mavs, weights)
    soups: dict[str, Soup] = {}
    for role in ROLES:
        listed = [
            (pairs[expert.files], weight)
            for expert, weight in zip(experts, weights.models, strict=True)
            if expert.role == role and weight
        ]
        total = math.fsum(weight for _, weight in listed)
        soups[role] = [(pair, weight / total) for pair, weight in listed]
    units, plan = _shared_out(spec, soups, num_layers, progress)
    return Measured(spec, tuple(experts), base, mavs, weights, units, plan)


def _open(spec: LayerSwapSpec, expert: StreamInput, base: StreamInput) -> DeltaPair:
    what = "placement: delta_share" if spec.placement == "delta_share" else "weighting: magnitude"
    try:
        return open_pair(expert, base)
    except InputError as error:
        raise InputError(f"{what} needs the experts' base_model: {error.message}") from error


def _mean_change(pair: DeltaPair, progress: Progress) -> float:
    def measured() -> float:
        return mean_row_mav(pair, lambda names: progress(f"change of {pair.expert}", names))

    change = known(("mean change", pair.identity), measured)
    if change == 0:
        raise InputError(
            f"{pair.expert} is equal to {pair.base}: its change is 0, which has no inverse to be a "
            f"weight; {_ADVICE}"
        )
    return change


def _shared_out(
    spec: LayerSwapSpec, soups: Mapping[str, Soup], num_layers: int, progress: Progress
) -> tuple[tuple[UnitShare, ...], LayerPlan]:
    """Return the shares of every unit in each role's change, and the plan they give."""
    for role, soup in soups.items():
        if not soup:
            raise InputError(f"placement: delta_share: no {role} expert has a weight above 0")
    units = _units(soups["task"][0][0], num_layers, spec.delta_unit)
    names = [name for members in units.values() for name in members]
    soups_key = tuple(
        (role, tuple((pair.identity, share) for pair, share in soup))
        for role, soup in soups.items()
    )
    measured = known(("norms", soups_key), lambda: _relative_norms(soups, names, progress))
    shares = {}
    for role, soup in soups.items():
        norms = measured[role]
        moved = [
            unit_norm([norms[name] for name in each], spec.delta_unit) for each in units.values()
        ]
        try:
            shares[role] = delta_shares(moved)
        except ValueError as error:
            pair = soup[0][0]
            raise InputError(
                f"the layers of {pair.expert} are equal to those of {pair.base}: {error}; {_ADVICE}"
            ) from error
    both = shares["task"], shares["language"]
    if spec.delta_dominance is None:
        sources = choose_sources(*both, spec.delta_threshold)
    else:
        sources = dominant_sources(*both, spec.delta_dominance)
    rows = zip(units, *both, sources, strict=True)
    found = tuple(UnitShare(*unit, task, language, source) for unit, task, language, source in rows)
    if spec.delta_unit == "layer":
        return found, LayerPlan(sources)
    # As published: what is neither attention nor MLP, the norms, is the language expert's.
    rest: Source = "language"
    apart = {part: sources[i :: len(MODULES)] for i, part in enumerate(MODULES)}
    return found, LayerPlan((rest,) * num_layers, apart)


def _units(pair: DeltaPair, num_layers: int, unit: DeltaUnit) -> dict[tuple[int, str], list[str]]:
    """Return (layer, part) -> its tensors, from the embedding side on, attention before MLP.

    The authors take the four projections of the attention and the three of the MLP; here it is
    every tensor of the two that is no norm, so that other architectures have units as well.
    """
    parts = MODULES if unit == "module" else ("layer",)
    units: dict[tuple[int, str], list[str]] = {
        (layer, part): [] for layer in range(num_layers) for part in parts
    }
    for name in pair.names:
        layer, part = decoder_layer(name), layer_part(name)
        if layer is None or part not in MODULES or is_norm(name):
            continue
        place = (layer, part if unit == "module" else "layer")
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


def _relative_norms(
    soups: Mapping[str, Soup], names: Sequence[str], progress: Progress
) -> dict[str, dict[str, float]]:
    """Return role -> tensor -> ``||W_delta|| / ||W_base||``, summed in float64."""
    pairs = [pair for soup in soups.values() for pair, _ in soup]

    def squares(segment: Segment) -> list[float]:
        sums = [0.0] * (1 + len(soups))
        for blocks in read_blocks(pairs, segment):
            ours = iter(blocks)
            sums[0] += float(blocks[0].base.double().square().sum())
            for i, soup in enumerate(soups.values(), start=1):
                delta = torch.zeros(1, dtype=torch.float64)
                for _, share in soup:
                    delta = delta + share * next(ours).delta.double()
                sums[i] += float(delta.square().sum())
        return sums

    totals = {name: [0.0] * (1 + len(soups)) for name in names}
    for segment, sums in run_pass(pairs, progress("change of the layers", names), squares):
        if not math.isfinite(math.fsum(sums)):
            raise _not_finite(pairs, segment.name)
        for i, value in enumerate(sums):
            totals[segment.name][i] += value
    return {
        role: {
            name: math.sqrt(found[i]) / (math.sqrt(found[0]) if found[0] > 0 else 1.0)
            for name, found in totals.items()
        }
        for i, role in enumerate(soups, start=1)
    }


def _not_finite(pairs: Sequence[DeltaPair], name: str) -> InputError:
    faulty = (
        pair
        for pair in pairs
        for segment in segments_of(pair, name)
        for block in blocks_of(pair, segment)
        if not bool(block.delta.isfinite().all())
    )
    return not_finite(next(faulty, pairs[0]), name)
