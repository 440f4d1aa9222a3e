"""What comes before a `layer_swap` merge: its checks in order, what is measured, its plan.

The checks themselves are in `layer_swap.recipe`, `checks` and `checkpoints`; what happens around
the merge is in `run`.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerswap_method.algorithm.coefficients import Input
from layerswap_method.algorithm.plan import LayerPlan
from layerswap_method.algorithm.tensor_names import layer_part, split_layer
from layerswap_method.checkpoints.headers import Checkpoint
from layerswap_method.checkpoints.model_files import StreamInput
from layerswap_method.errors import InputError
from layerswap_method.layer_swap.recipe import Recipe, read_recipe
from layerswap_method.layer_swap.report import card, log_lines, most_swapped, plan_record
from layerswap_method.layer_swap.spec import NAME
from layerswap_method.mergekit_plugin.checks import (
    check_checkpoints,
    read_checkpoints,
    read_configs,
)
from layerswap_method.mergekit_plugin.folders import local_folder, stream_input
from layerswap_method.mergekit_plugin.planner import SwapJob, SwapPlanner
from layerswap_method.output import PLAN_FILE, Outcome, Prepared
from layerswap_method.stream.weight_stream import checkpoint_stream

if TYPE_CHECKING:
    from layerswap_method.layer_swap.measure import Measured

LOG = logging.getLogger("layerswap")

ALIGNED = (
    "vocabulary rows are compared as they are stored, before the recipe aligns them: experts that "
    "number the same tokens otherwise than the base seem to have changed far"
)
"""Said where a recipe has ``tokenizer:`` and measures whole models."""


def prepare(
    merge_config: Any, options: Any, document: Mapping[str, Any] | None, out: Path
) -> Prepared:
    """Return a `layer_swap` merge that mergekit can carry out; see `check` for what it raises."""
    recipe, plan, measured = check(merge_config, options, document, out)
    if (warning := most_swapped(recipe, plan)) is not None:
        LOG.warning("%s", warning)
    spec, weights = recipe.spec, [model.weight for model in recipe.models]
    note = None
    if measured is not None:
        spec, weights = measured.weights.applied_to(spec), list(measured.weights.models)
        if measured.mavs and _aligns(merge_config, options):
            note = ALIGNED
    base = recipe.base_model
    inputs = {
        model.reference: Input(model.role, weight, is_base=model.reference == base)
        for model, weight in zip(recipe.models, weights, strict=True)
    }
    inputs.setdefault(base, Input(is_base=True))
    record = plan_record(recipe, plan, measured, note)
    return Prepared(
        planner=functools.partial(SwapPlanner, job=SwapJob(spec, plan, inputs)),
        lines=tuple(log_lines(record)),
        plan_file=PLAN_FILE,
        outcome=lambda: Outcome(record, card=card(record)),
    )


def check(
    merge_config: Any,
    options: Any,
    document: Mapping[str, Any] | None = None,
    out: Path | None = None,
) -> tuple[Recipe, LayerPlan, Measured | None]:
    """Return recipe, layer plan and measured changes of a merge that mergekit can carry out.

    Changes are measured last, and only for recipes that go by them: it reads all weights.

    Args:
        merge_config: mergekit's `MergeConfiguration`.
        options: mergekit's `MergeOptions`.
        document: the recipe before mergekit parsed it; None where there is none.
        out: the output folder; None where nothing is to be written.

    Raises:
        InputError: listing every problem of the first kind found (recipe, then references, then
            checkpoints, then changes), before any output exists.
    """
    recipe = read_recipe(merge_config, document)
    spec = recipe.spec
    references = _references(recipe, merge_config)
    configs = read_configs(NAME, references, merge_config, options, out)
    plan = None if spec.placement == "delta_share" else _plan(recipe, references[0], configs)
    checkpoints = read_checkpoints(references, options, out)
    check_checkpoints(NAME, checkpoints, configs, merge_config, options)
    _check_swap_modules(recipe, checkpoints[0])
    measured = _measure(recipe, options, checkpoints[0]) if spec.needs_deltas else None
    if measured is not None and measured.plan is not None:
        plan = measured.plan
    return recipe, plan or LayerPlan(()), measured


def _aligns(merge_config: Any, options: Any) -> bool:
    """Return whether mergekit will move rows of the vocabulary tensors."""
    sources = (merge_config.tokenizer, merge_config.tokenizer_source)
    return bool(options.unsafe_truncate_embeddings) or any(s is not None for s in sources)


def _measure(recipe: Recipe, options: Any, first: Checkpoint) -> Measured:
    from tqdm import tqdm

    from layerswap_method.layer_swap.measure import measure

    def watched(what: str, names: Sequence[str]) -> Iterable[str]:
        # The bar comes only where a user would begin to wonder.
        return tqdm(names, what, unit="tensor", delay=2, disable=options.quiet)

    num_layers = first.depth()
    experts = [
        replace(_readable(model.reference, options), role=model.role, weight=model.weight)
        for model in recipe.models
    ]
    base = stream_input(recipe.base_model, options)
    try:
        return measure(recipe.spec, experts, base, num_layers, watched)
    except InputError as error:
        raise InputError(f"layer_swap recipe: {error.message}") from error


def _readable(reference: Any, options: Any) -> StreamInput:
    """Return an expert as it is measured.

    A low-rank adapter is measured as it was trained. Of every other kind it is the merged copy,
    which is rounded to the checkpoint's dtype.
    """
    given = stream_input(reference, options)
    if given.adapter is not None:
        try:
            checkpoint_stream(given.folder, given.adapter)
        except InputError:
            return StreamInput(given.name, local_folder(reference, options))
    return given


def _references(recipe: Recipe, merge_config: Any) -> list[Any]:
    """Return every model the merge reads, the first task expert first, each once."""
    found: dict[str, Any] = {}
    for model in (*recipe.by_role("task"), *recipe.by_role("language")):
        found.setdefault(str(model.reference), model.reference)
    found.setdefault(str(recipe.base_model), recipe.base_model)
    for reference in sorted(merge_config.referenced_models(), key=str):
        found.setdefault(str(reference), reference)
    return list(found.values())


def _check_swap_modules(recipe: Recipe, first: Checkpoint) -> None:
    parts = {layer_part(name) for name in first.shapes if split_layer(name)[0] is not None}
    if recipe.spec.swap_modules not in ("all", *parts):
        raise InputError(
            f"layer_swap recipe: swap_modules is {recipe.spec.swap_modules}, but the layers of "
            f"{first.name} have no such tensors (found: {', '.join(sorted(parts)) or 'no layers'})"
        )


def _plan(recipe: Recipe, first: Any, configs: Mapping[str, Any]) -> LayerPlan:
    """Return the plan for the depth that the first model's config states."""
    num_layers = getattr(configs[str(first)].get_text_config(), "num_hidden_layers", None)
    if num_layers is None:
        raise InputError(f"{first}: its config does not say how many layers it has")
    try:
        return recipe.spec.plan(int(num_layers))
    except ValueError as error:
        raise InputError(f"layer_swap recipe: {error}") from error
