"""The merge of a `delta_revert` recipe: each tensor from the expert, the base, or both.

Nothing is computed but which side a feature comes from, so a kept feature is bit-identical to the
expert's and a reverted one to the base's.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from layerswap_method import __version__
from layerswap_method.checkpoint.compatible import merge_problems, merge_warnings
from layerswap_method.deltas.features import feature_layout, input_axis
from layerswap_method.errors import InputError
from layerswap_method.layer_lists import format_layers
from layerswap_method.methods.delta_revert import NAME, DeltaRevertRecipe, RevertSpec
from layerswap_method.recipe.document import Merge
from layerswap_method.recipe.references import ModelFiles
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


def merge(recipe: DeltaRevertRecipe, models: Mapping[str, ModelFiles]) -> Merge:
    """Return the merge of a recipe; see `DeltaRevertRecipe.merge`."""
    import numpy as np

    spec = recipe.parameters
    ours, theirs = (LazyModel.read(models[reference]) for reference in recipe.references)
    checkpoints = [ours.checkpoint, theirs.checkpoint]
    problems = list(merge_problems(checkpoints, by_row=spec.by_feature))
    if problems:
        raise InputError.from_problems("delta_revert recipe", problems)
    num_layers = theirs.checkpoint.depth()
    try:
        layers = spec.layers(num_layers)
    except ValueError as error:
        raise InputError(f"delta_revert recipe: {error}") from error
    mavs: Mapping[str, torch.Tensor] = {}
    threshold = None
    if spec.by_feature:
        from layerswap_method.deltas.measure import feature_mavs
        from layerswap_method.deltas.pair import not_finite, open_pair

        pair = open_pair(*(models[reference] for reference in recipe.references))
        mavs = feature_mavs(pair)
        for name, mav in mavs.items():
            if not bool(mav.isfinite().all()):
                raise not_finite(pair, name)
        threshold = spec.threshold
        if spec.keep_fraction is not None:
            sizes = ((mav, pair.layout(name).width) for name, mav in mavs.items())
            threshold = keep_threshold(sizes, spec.keep_fraction)
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
        measured = next((mavs[place] for place in places if place in mavs), None)
        if rule != "features" or measured is None or threshold is None:
            stays = rule != "base"
            kept[name] = Kept(features, features * stays, weights, weights * stays)
            return (ours if stays else theirs).copy_mix(name, recipe.dtype, recipe.out_dtype)
        mask = ~(measured.double() < threshold)
        count = int(mask.sum())
        kept[name] = Kept(
            features, count, weights, count * (weights // features) if features else 0
        )
        if count in (0, features):
            whole = ours if count else theirs
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


def keep_threshold(features: Iterable[tuple[torch.Tensor, int]], keep_fraction: float) -> float:
    """Return a threshold at which the least that is at least `keep_fraction` of the weights stays.

    With the features f sorted by MAV, the largest first, and n_f weights in each, those up to the
    first one at which ``sum(n_f so far) >= keep_fraction * sum(n_f)`` stay, and all of its MAV. The
    threshold lies midway to the next smaller MAV, so that no feature stands on it; where there is
    none it is 0. For nothing to stay it is above every MAV.

    Args:
        features: of every tensor the MAV of its features (float32, any shape) and the number of
            weights in one.
        keep_fraction: 0 to 1.

    Raises:
        ValueError: for a fraction outside [0, 1], no feature, or a MAV that is not finite.
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
    groups = {"kept_by_layer": _layer_of, "kept_by_module": _module_of}
    return {
        "schema_version": 1,
        "merge_method": NAME,
        "layerswap_version": __version__,
        "expert": recipe.expert,
        "base_model": str(recipe.base_model),
        "num_layers": num_layers,
        "parameters": recipe.parameters.model_dump(),
        "threshold": threshold,
        "reverted_layers": sorted(layers),
        "kept": _sum(kept.values()).record(),
        **{key: _by_group(kept, group_of) for key, group_of in groups.items()},
        "kept_by_tensor": {name: part.record() for name, part in kept.items()},
    }


def log_lines(spec: RevertSpec, record: Mapping[str, Any]) -> Iterator[str]:
    """Yield what goes back and what stays, for log and card."""
    yield f"expert: {record['expert']}; reverts to: {record['base_model']}"
    if record["threshold"] is not None:
        why = "" if spec.keep_fraction is None else f" (keep_fraction {spec.keep_fraction:g})"
        yield (
            f"input features with a mean absolute change below {record['threshold']:.6g} go "
            f"back{why}"
        )
    layers = record["reverted_layers"]
    shown = f"{format_layers(layers)} of 0-{record['num_layers'] - 1}" if layers else "none"
    yield f"layers that go back whole: {shown}; modules: {', '.join(spec.modules()) or 'none'}"
    for name, part in (("all", record["kept"]), *record["kept_by_module"].items()):
        shares = [
            f"{part[f'kept_{what}']} of {part[what]} {what} "
            f"({_percent(part[f'kept_{what}'], part[what])})"
            for what in ("features", "weights")
        ]
        yield f"{name}: {' and '.join(shares)} stay the expert's"


def _sum(parts: Iterable[Kept]) -> Kept:
    return Kept(*map(sum, zip((0, 0, 0, 0), *parts, strict=True)))


def _by_group(kept: Mapping[str, Kept], group_of: Callable[[str], str]) -> dict[str, Any]:
    groups: dict[str, list[Kept]] = defaultdict(list)
    for name, part in kept.items():
        groups[group_of(name)].append(part)
    return {name: _sum(parts).record() for name, parts in groups.items()}


def _layer_of(name: str) -> str:
    layer = decoder_layer(name)
    return "non_layer" if layer is None else str(layer)


def _module_of(name: str) -> str:
    return "non_layer" if decoder_layer(name) is None else layer_part(name)


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f} %" if whole else "none"
