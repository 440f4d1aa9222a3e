"""The merge of a `delta_revert` recipe: each tensor from the expert, the base, or both.

Nothing is computed but which side a feature comes from, so a kept feature is bit-identical to the
expert's and a reverted one to the base's.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from layerswap_method import __version__
from layerswap_method.checkpoint.compatible import merge_problems, merge_warnings
from layerswap_method.deltas.features import feature_layout, input_axis
from layerswap_method.errors import InputError
from layerswap_method.plan import format_layers
from layerswap_method.recipe.document import Merge
from layerswap_method.recipe.references import Model
from layerswap_method.tensor_names import decoder_layer, layer_part
from layerswap_method.tensors import (
    FeatureMask,
    LazyModel,
    TensorMix,
    weight_names,
    without_tied_head,
)

if TYPE_CHECKING:
    import torch

    from layerswap_method.methods.delta_revert import DeltaRevertRecipe, RevertSpec


class Kept(NamedTuple):
    """How much of something stays the expert's, changed by fine-tuning or not."""

    features: int
    kept_features: int
    weights: int
    kept_weights: int

    def record(self) -> dict[str, int | float | None]:
        """Return it for plan files and records."""
        fraction = self.kept_weights / self.weights if self.weights else None
        return {**self._asdict(), "fraction": fraction}


def merge(recipe: DeltaRevertRecipe, models: Mapping[str, Model]) -> Merge:
    """Return the merge of a recipe; see `DeltaRevertRecipe.merge`."""
    import numpy as np

    spec = recipe.parameters
    ours, theirs = (LazyModel.read(models[reference]) for reference in recipe.references)
    checkpoints = [ours.checkpoint, theirs.checkpoint]
    problems = merge_problems(checkpoints, by_feature=spec.by_feature)
    InputError.raise_any("delta_revert recipe", problems)
    num_layers = theirs.checkpoint.depth()
    try:
        layers = spec.layers(num_layers)
    except ValueError as error:
        raise InputError(f"delta_revert recipe: {error}") from error
    mavs, threshold = _measure(recipe, models) if spec.by_feature else ({}, None)
    kept: dict[str, Kept] = {}

    def mix(name: str) -> TensorMix:
        layer = decoder_layer(name)
        is_inside = layer is not None and layer < num_layers
        rule = spec.rule(name, layer if is_inside else None, layers)
        shape = ours.stored(name).shape
        axis = input_axis(name, len(shape), theirs.checkpoint.config.text_type)
        features, weights = feature_layout(shape, axis).features, math.prod(shape)
        # A tied head that only one of them stores has the embedding's features.
        places = (name, ours.stored(name).name, theirs.stored(name).name)
        mav = next((mavs[place] for place in places if place in mavs), None)
        count = 0 if rule == "base" else features
        if rule == "features" and mav is not None and threshold is not None:
            mask = ~(mav.double() < threshold)
            count = int(mask.sum())
        kept[name] = Kept(features, count, weights, count * weights // (features or 1))
        if count in (0, features):
            whole = theirs if rule == "base" or count < features else ours
            return whole.copy_mix(name, recipe.dtype, recipe.out_dtype)
        return TensorMix(
            terms=(ours.term(name), theirs.term(name)),
            mask=FeatureMask(first=np.packbits(mask.numpy()).tobytes().hex(), axis=axis),
            dtype=recipe.written_dtype,
        )

    tensors = without_tied_head({name: mix(name) for name in weight_names([ours, theirs])})
    record = plan_record(recipe, layers, num_layers, threshold, kept)
    return Merge(
        tensors,
        donor=theirs.checkpoint.path,
        dtype=recipe.written_dtype or theirs.checkpoint.dtype,
        record=record,
        lines=tuple(log_lines(spec, record)),
        warnings=(
            *merge_warnings(checkpoints, dtype=recipe.written_dtype),
            *ours.warnings,
            *theirs.warnings,
        ),
    )


def _measure(
    recipe: DeltaRevertRecipe, models: Mapping[str, Model]
) -> tuple[Mapping[str, torch.Tensor], float | None]:
    """Return the MAV of every feature by tensor, and the threshold that they are compared with."""
    from layerswap_method.deltas.measure import feature_mavs
    from layerswap_method.deltas.pair import not_finite, open_pair

    pair = open_pair(*(models[reference] for reference in recipe.references))
    mavs = feature_mavs(pair)
    for name, mav in mavs.items():
        if not bool(mav.isfinite().all()):
            raise not_finite(pair, name)
    if recipe.parameters.keep_fraction is None:
        return mavs, recipe.parameters.threshold
    sizes = ((mav, pair.layout(name).width) for name, mav in mavs.items())
    return mavs, keep_threshold(sizes, recipe.parameters.keep_fraction)


def keep_threshold(features: Iterable[tuple[torch.Tensor, int]], keep_fraction: float) -> float:
    """Return a threshold at which the least that is at least `keep_fraction` of the weights stays.

    `features` has of every tensor the MAV of its features and the number of weights in one. With
    the features f sorted by MAV, the largest first, and n_f weights in each, those up to the first
    one at which ``sum(n_f so far) >= keep_fraction * sum(n_f)`` stay, and all of its MAV. The
    threshold lies midway to the next smaller MAV, so that no feature stands on it; where there is
    none it is 0. For nothing to stay it is above every MAV.
    """
    import torch

    if not 0 <= keep_fraction <= 1:
        raise ValueError(f"keep_fraction is {keep_fraction}; it must lie between 0 and 1")
    parts = [(mav.reshape(-1).double().cpu(), size) for mav, size in features if mav.numel()]
    if not parts:
        raise ValueError("there is no feature to keep")
    mavs = torch.cat([mav for mav, _ in parts])
    if not bool(torch.isfinite(mavs).all()):
        raise ValueError("a feature's mean change is not finite")
    sizes = torch.cat([torch.full((mav.numel(),), size, dtype=torch.int64) for mav, size in parts])
    order = torch.argsort(mavs, descending=True)
    if keep_fraction == 0:
        return 2 * float(mavs[order[0]]) or 1.0
    kept = torch.cumsum(sizes[order], 0).double()
    needed = keep_fraction * float(sizes.sum())
    # A sum that falls short by rounding only is enough: 0.7 of ten equal features are seven.
    first = int(torch.searchsorted(kept, torch.tensor(needed * (1 - 1e-12), dtype=torch.float64)))
    last = mavs[order[min(first, len(order) - 1)]]
    smaller = mavs[mavs < last]
    return float((last + smaller.max()) / 2) if smaller.numel() else 0.0


def plan_record(
    recipe: DeltaRevertRecipe,
    layers: frozenset[int],
    num_layers: int,
    threshold: float | None,
    kept: Mapping[str, Kept],
) -> dict[str, Any]:
    """Return what `delta_revert_plan.json` holds."""
    by_layer, by_module = defaultdict[str, list[Kept]](list), defaultdict[str, list[Kept]](list)
    for name, part in kept.items():
        layer = decoder_layer(name)
        by_layer["non_layer" if layer is None else str(layer)].append(part)
        by_module["non_layer" if layer is None else layer_part(name)].append(part)
    return {
        "schema_version": 1,
        "merge_method": recipe.merge_method,
        "layerswap_version": __version__,
        "expert": recipe.expert,
        "base_model": str(recipe.base_model),
        "num_layers": num_layers,
        "parameters": recipe.parameters.model_dump(),
        "threshold": threshold,
        "reverted_layers": sorted(layers),
        "kept": _sum(kept.values()).record(),
        "kept_by_layer": {layer: _sum(parts).record() for layer, parts in by_layer.items()},
        "kept_by_module": {module: _sum(parts).record() for module, parts in by_module.items()},
        "kept_by_tensor": {name: part.record() for name, part in kept.items()},
    }


def log_lines(spec: RevertSpec, record: Mapping[str, Any]) -> Iterator[str]:
    """Yield what goes back and what stays, for log and card."""
    yield f"expert: {record['expert']}; reverts to: {record['base_model']}"
    if record["threshold"] is not None:
        line = f"input features with a mean absolute change below {record['threshold']:.6g} go back"
        kept = spec.keep_fraction
        yield line if kept is None else f"{line} (keep_fraction {kept:g})"
    layers = record["reverted_layers"]
    shown = f"{format_layers(layers)} of 0-{record['num_layers'] - 1}" if layers else "none"
    yield f"layers that go back whole: {shown}; modules: {', '.join(spec.modules()) or 'none'}"
    for name, part in (("all", record["kept"]), *record["kept_by_module"].items()):
        shares = []
        for what in ("features", "weights"):
            stays, whole = part[f"kept_{what}"], part[what]
            percent = f"{100 * stays / whole:.2f} %" if whole else "none"
            shares.append(f"{stays} of {whole} {what} ({percent})")
        yield f"{name}: {' and '.join(shares)} stay the expert's"


def _sum(parts: Iterable[Kept]) -> Kept:
    return Kept(*map(sum, zip((0, 0, 0, 0), *parts, strict=True)))
