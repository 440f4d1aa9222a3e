"""A `delta_revert` recipe, and its merge: which parts of an expert go back to its base.

What goes back is the union of three sets: features that hardly changed, layers, modules. Nothing is
computed but which side a feature comes from, so a kept feature is bit-identical to the expert's and
a reverted one to the base's. Source: arXiv 2410.01335, section 3.3.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import Field, StrictFloat, StrictStr, model_validator

from layerswap_method import __version__
from layerswap_method.checkpoint.compatible import Checked
from layerswap_method.deltas.features import feature_layout, input_axis
from layerswap_method.errors import input_errors, nearest
from layerswap_method.frozen import Described, Frozen
from layerswap_method.layer_plan import LayerPlan, check_counts, format_layers, parse_layers
from layerswap_method.recipe.document import Block, Count, Entry, Recipe
from layerswap_method.recipe.references import same_model_key
from layerswap_method.tensor_names import Decoder, layer_part
from layerswap_method.tensors import FeatureMask, Merge, OpenModel, TensorMix, build_merge

if TYPE_CHECKING:
    import torch

NAME = "delta_revert"
"""Name of the method in a recipe (``merge_method``)."""

Rule = Literal["expert", "base", "features"]
"""Source of one tensor: the expert, the base, or feature by feature."""

MODULES = ("attention", "mlp", "norm", "other", "non_layer")
"""The names for `revert_modules`: the parts of a layer (`tensor_names`), and all that
is in no decoder layer (embeddings, final norm, lm_head, vision towers)."""


class RevertSpec(Described):
    """The parameters of a recipe, under its top-level ``parameters:``."""

    threshold: Annotated[StrictFloat, Field(ge=0, allow_inf_nan=False)] | None = None
    """Input features (`layerswap_method.deltas.features`; the paper's rows) whose MAV is below this
    go back to the base; in the unit of the weights."""

    keep_fraction: Annotated[StrictFloat, Field(ge=0, le=1)] | None = None
    """In place of `threshold`: the share of all weights that stays the expert's, the features with
    the largest MAV first. Features of one MAV are kept together, so that more may stay."""

    revert_layers: StrictStr | None = Field(default=None, examples=["0-4,30,31"])
    """Layers that go back whole, as a string such as "0-4,30,31" (0-based, ends included)."""

    bottom_layers: Count = 0
    """Layers at the embedding side that go back whole; section 3.3: 5."""

    top_layers: Count = 0
    """Layers at the output side that go back whole; section 3.3: 2."""

    revert_modules: StrictStr | None = Field(default=None, examples=["attention,mlp"])
    """Modules that go back in every layer: names of `MODULES`, joined by commas."""

    @model_validator(mode="after")
    def _check_combinations(self) -> RevertSpec:
        if self.threshold is not None and self.keep_fraction is not None:
            raise ValueError("threshold and keep_fraction both say which features stay; drop one")
        if not self.model_fields_set & RevertSpec.model_fields.keys():
            names = ", ".join(RevertSpec.model_fields)
            raise ValueError(f"nothing says what to revert; write one of {names}")
        if self.revert_layers is not None:
            parse_layers(self.revert_layers, name="revert_layers")
        self.modules()
        return self

    @property
    def by_feature(self) -> bool:
        """Whether features are compared with the base's."""
        return self.threshold is not None or self.keep_fraction is not None

    def modules(self) -> tuple[str, ...]:
        """Return the names in `revert_modules`, each checked."""
        if self.revert_modules is None:
            return ()
        names = tuple(name.strip() for name in self.revert_modules.split(","))
        for name in names:
            if name not in MODULES:
                raise ValueError(
                    f"revert_modules {self.revert_modules!r}: {name!r} is none of "
                    f"{', '.join(MODULES)}{nearest(name, MODULES)}"
                )
            if names.count(name) > 1:
                raise ValueError(f"revert_modules {self.revert_modules!r}: {name} is named twice")
        return names

    def layers(self, num_layers: int) -> frozenset[int]:
        """Return the layers that go back whole in a model of `num_layers` layers."""
        check_counts(num_layers, self.model_dump(include={"bottom_layers", "top_layers"}))
        layers = {*range(self.bottom_layers), *range(num_layers - self.top_layers, num_layers)}
        if self.revert_layers is not None:
            layers.update(parse_layers(self.revert_layers, num_layers, "revert_layers"))
        return frozenset(layers)

    def rule(self, name: str, layer: int | None, layers: frozenset[int]) -> Rule:
        """Return where the tensor `name` comes from."""
        part = "non_layer" if layer is None else layer_part(name)
        if layer in layers or part in self.modules():
            return "base"
        return "features" if self.by_feature else "expert"


class ExpertPart(NamedTuple):
    """The part of a tensor that stays the expert's, whether fine-tuning changed it or not."""

    features: int
    kept_features: int
    weights: int
    kept_weights: int


class RevertEntry(Entry):
    """One of the models of a recipe."""

    parameters: Annotated[Frozen, Block] = Frozen()
    """None: the base is named by base_model."""


class DeltaRevertRecipe(Recipe):
    """A `delta_revert` recipe as its author writes it."""

    merge_method: Literal["delta_revert"]
    models: tuple[RevertEntry, ...] = Field(default=(), json_schema_extra={"minItems": 1})
    """The expert; the base may be listed too."""

    parameters: Annotated[RevertSpec, Block] = Field(default=None, validate_default=True)
    """The choice of what goes back to the base."""

    @property
    def expert(self) -> str:
        """Return the reference of the fine-tuned model; base_model is what it was made from."""
        return self._experts[0]

    @property
    def _experts(self) -> list[str]:
        base = None if self.base_model is None else same_model_key(self.base_model)
        return [entry.model for entry in self.models if same_model_key(entry.model) != base]

    @property
    def references(self) -> tuple[str, ...]:
        """Return the expert and the base."""
        return self.expert, str(self.base_model)

    @property
    def names_parent(self) -> bool:
        """Whether `base_model` is what the expert was trained from."""
        return True

    @property
    def is_one_vocabulary(self) -> bool:
        """Whether the models must share a vocabulary: features are compared one by one."""
        return True

    @property
    def needs_deltas(self) -> bool:
        """Whether features are compared: all weights are read."""
        return self.parameters.by_feature

    def without_idle_parameters(self) -> DeltaRevertRecipe:
        """Return the recipe without a rule by which every feature stays the expert's.

        Where `dtype` is not stated the rule counts: compared tensors get the wider of two dtypes.
        """
        idle, stated = (("keep_fraction", 1), ("threshold", 0)), self.document["parameters"]
        if self.dtype is None or not any(entry in idle for entry in stated.items()):
            return self
        active = {name: value for name, value in stated.items() if (name, value) not in idle}
        return DeltaRevertRecipe.read(
            {**self.document, "parameters": active or {"bottom_layers": 0}}
        )

    @classmethod
    def layer_counts(cls, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return the layers that go back whole, as far as they are written."""
        names = ("bottom_layers", "top_layers", "revert_layers")
        return {name: parameters[name] for name in names if name in parameters}

    def layer_plan(self, num_layers: int) -> LayerPlan | None:
        """Return the source of every layer; None where features are compared."""
        back = self.parameters.layers(num_layers)
        if self.needs_deltas:
            return None
        return LayerPlan(tuple("base" if n in back else "task" for n in range(num_layers)))

    @property
    def roles(self) -> Mapping[str, str]:
        """Model -> its role; the expert is the task expert."""
        return {self.expert: "task", str(self.base_model): "base"}

    def contradictions(self) -> Iterator[str]:
        """Yield what is wrong beyond the form of single values."""
        base, experts = self.base_model, self._experts
        for key in ("tokenizer", "tokenizer_source"):
            if getattr(self, key) is not None:
                yield (
                    f"{key} cannot be used here: features are compared one by one, so expert and "
                    "base must share a vocabulary; drop the line"
                )
        for position, entry in enumerate(self.models):
            if entry.model not in (*experts, base):
                yield (
                    f"models[{position}] ({entry.model}) is the base_model; write it in the same "
                    f"way ({base}), or leave it out"
                )
        if base is None:
            yield (
                "base_model is missing: write base_model: with the checkpoint that the expert was "
                "fine-tuned from"
            )
        elif len(experts) != 1:
            yield (
                f"models: lists {len(experts)} models besides the base_model "
                f"({', '.join(experts) or 'none'}); delta_revert takes one expert"
            )


def merge_by_features(
    recipe: DeltaRevertRecipe, models: Mapping[str, OpenModel], checked: Checked
) -> Merge:
    """Return the merge; see `merge_models`. The base is the donor of config and tokenizer."""
    import numpy as np

    spec = recipe.parameters
    expert, base = (models[reference] for reference in recipe.references)
    num_layers, decoder = base.checkpoint.depth(), base.checkpoint.decoder
    with input_errors("delta_revert recipe"):
        layers = spec.layers(num_layers)
    mavs, threshold = _measure(recipe, models) if spec.by_feature else ({}, None)
    parts: dict[str, ExpertPart] = {}

    def mix(name: str) -> TensorMix:
        rule = spec.rule(name, decoder.layer(name), layers)
        shape = expert.stored(name).shape
        axis = input_axis(name, len(shape), base.checkpoint.config.text_type)
        features, weights = feature_layout(shape, axis).features, math.prod(shape)
        # A tied head that only one of them stores has the embedding's features.
        stored_names = (name, expert.stored(name).name, base.stored(name).name)
        mav = next((mavs[stored] for stored in stored_names if stored in mavs), None)
        kept_features = 0 if rule == "base" else features
        if rule == "features" and mav is not None and threshold is not None:
            mask = ~(mav.double() < threshold)
            kept_features = int(mask.sum())
        parts[name] = ExpertPart(
            features=features,
            kept_features=kept_features,
            weights=weights,
            kept_weights=kept_features * weights // (features or 1),
        )
        if kept_features in (0, features):
            source = base if rule == "base" or kept_features < features else expert
            return source.copy_mix(name, recipe.written_dtype)
        return TensorMix(
            terms=(expert.term(name), base.term(name)),
            mask=FeatureMask(first=np.packbits(mask.numpy()).tobytes().hex(), axis=axis),
            dtype=recipe.written_dtype,
        )

    merge = build_merge([expert, base], mix, recipe.written_dtype, checked, base.checkpoint)
    record = revert_record(recipe, layers, decoder, threshold, parts)
    return replace(merge, record=record, lines=(*revert_lines(spec, record), *merge.lines))


def _measure(
    recipe: DeltaRevertRecipe, models: Mapping[str, OpenModel]
) -> tuple[Mapping[str, torch.Tensor], float | None]:
    """Return the MAV of every feature by tensor, and the threshold that they are compared with."""
    from layerswap_method.deltas.pair import feature_mavs, open_pair

    pair = open_pair(*(models[reference] for reference in recipe.references))
    mavs = feature_mavs(pair)
    if recipe.parameters.keep_fraction is None:
        return mavs, recipe.parameters.threshold
    sizes = ((mav, pair.layout(name).width) for name, mav in mavs.items())
    return mavs, keep_threshold(sizes, recipe.parameters.keep_fraction)


def keep_threshold(features: Iterable[tuple[torch.Tensor, int]], keep_fraction: float) -> float:
    """Return a threshold that leaves the smallest share of the weights from `keep_fraction` on.

    `features` has of every tensor the MAV of its features and the number of weights in one. Sorted
    by MAV, the largest first, all stay up to the one that reaches the share, and all others with
    its MAV. The threshold lies midway to the next smaller MAV, so that no feature is exactly on it
    (0 where there is none). If nothing is to stay, it is above every MAV.
    """
    import torch

    parts = [(mav.reshape(-1).double().cpu(), size) for mav, size in features if mav.numel()]
    if not parts:
        raise ValueError("there is no feature to keep")
    mavs = torch.cat([mav for mav, _ in parts])
    sizes = torch.cat([torch.full((mav.numel(),), size, dtype=torch.int64) for mav, size in parts])
    order = torch.argsort(mavs, descending=True)
    if keep_fraction == 0:
        return 2 * float(mavs[order[0]]) or 1.0
    sums = torch.cumsum(sizes[order], 0).double()
    needed = keep_fraction * float(sizes.sum())
    # A sum that falls short by rounding only is enough: 0.7 of ten equal features are seven.
    first = int(torch.searchsorted(sums, torch.tensor(needed * (1 - 1e-12), dtype=torch.float64)))
    last = mavs[order[min(first, len(order) - 1)]]
    smaller = mavs[mavs < last]
    return float((last + smaller.max()) / 2) if smaller.numel() else 0.0


def revert_record(
    recipe: DeltaRevertRecipe,
    layers: frozenset[int],
    decoder: Decoder,
    threshold: float | None,
    parts: Mapping[str, ExpertPart],
) -> dict[str, Any]:
    """Return what `delta_revert_plan.json` holds."""
    by_module = defaultdict[str, list[ExpertPart]](list)
    for name, part in parts.items():
        by_module["non_layer" if decoder.layer(name) is None else layer_part(name)].append(part)
    return {
        "schema_version": 1,
        "merge_method": recipe.merge_method,
        "layerswap_version": __version__,
        "expert": recipe.expert,
        "base_model": str(recipe.base_model),
        "num_layers": decoder.num_layers,
        "parameters": recipe.parameters.model_dump(),
        "threshold": threshold,
        "reverted_layers": sorted(layers),
        "kept": _total(parts.values()),
        "kept_by_module": {module: _total(members) for module, members in by_module.items()},
    }


def revert_lines(spec: RevertSpec, record: Mapping[str, Any]) -> Iterator[str]:
    """Yield what goes back and what stays, for log and card."""
    yield f"expert: {record['expert']}; reverts to: {record['base_model']}"
    if record["threshold"] is not None:
        line = f"input features with a mean absolute change below {record['threshold']:.6g} go back"
        if spec.keep_fraction is not None:
            line += f" (keep_fraction {spec.keep_fraction:g})"
        yield line
    layers = "none"
    if record["reverted_layers"]:
        layers = f"{format_layers(record['reverted_layers'])} of 0-{record['num_layers'] - 1}"
    yield f"layers that go back whole: {layers}; modules: {', '.join(spec.modules()) or 'none'}"
    for name, part in (("all", record["kept"]), *record["kept_by_module"].items()):
        yield (
            f"{name}: {part['kept_weights']} of {part['weights']} weights "
            f"({100 * (part['fraction'] or 0):.2f} %) stay the expert's"
        )


def revert_outline(recipe: DeltaRevertRecipe, plan: LayerPlan) -> Iterator[str]:
    """Yield what is known of a merge before it, in lines."""
    layers = frozenset(plan.layers_from("base"))
    record = revert_record(recipe, layers, Decoder("", plan.num_layers), None, {})
    yield from itertools.islice(revert_lines(recipe.parameters, record), 2)


def revert_measured(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a plan file says of the expert's changes."""
    return {key: record[key] for key in ("base_model", "threshold", "kept")}


def _total(parts: Iterable[ExpertPart]) -> dict[str, int | float | None]:
    total = ExpertPart(0, 0, 0, 0)
    for part in parts:
        total = ExpertPart(
            features=total.features + part.features,
            kept_features=total.kept_features + part.kept_features,
            weights=total.weights + part.weights,
            kept_weights=total.kept_weights + part.kept_weights,
        )
    fraction = total.kept_weights / total.weights if total.weights else None
    return {**total._asdict(), "fraction": fraction}
