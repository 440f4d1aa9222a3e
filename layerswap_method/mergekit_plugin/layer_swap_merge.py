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
from typing import Any

from tqdm import tqdm

from layerswap_method.algorithm.coefficients import Input
from layerswap_method.algorithm.plan import LayerPlan
from layerswap_method.checkpoints.compatible import same_vocabulary
from layerswap_method.checkpoints.headers import Checkpoint
from layerswap_method.checkpoints.model_files import StreamInput
from layerswap_method.errors import InputError
from layerswap_method.layer_swap.measure import Measured, measure
from layerswap_method.layer_swap.recipe import LayerSwapDocument
from layerswap_method.layer_swap.report import card, log_lines, most_swapped, plan_record
from layerswap_method.layer_swap.spec import LayerSwapSpec
from layerswap_method.layer_swap.stream import check_swap_modules
from layerswap_method.mergekit_plugin.checks import (
    aligns,
    check_checkpoints,
    read_checkpoints,
    read_configs,
)
from layerswap_method.mergekit_plugin.folders import local_folder, stream_input
from layerswap_method.mergekit_plugin.planner import SwapPlanner
from layerswap_method.output import Outcome, Prepared
from layerswap_method.stream.weight_stream import checkpoint_stream

LOG = logging.getLogger("layerswap")

ALIGNED = (
    "vocabulary rows are compared as they are stored, before the recipe aligns them: experts that "
    "number the same tokens otherwise than the base seem to have changed far"
)
"""Said where a recipe has ``tokenizer:`` and measures whole models."""


def prepare(
    merge_config: Any, options: Any, document: Mapping[str, Any] | None, out: Path
) -> Prepared:
    """Return a `layer_swap` merge that mergekit can carry out, its plan laid out.

    Changes are measured last, and only for recipes that go by them: it reads all weights.

    Args:
        merge_config: mergekit's `MergeConfiguration`.
        options: mergekit's `MergeOptions`.
        document: the recipe before mergekit parsed it; None where there is none.
        out: the output folder.

    Raises:
        InputError: listing every problem of the first kind found (recipe, then references, then
            checkpoints, then changes), before any output exists.
    """
    recipe = LayerSwapDocument.read(merge_config, document)
    spec, base = recipe.parameters, recipe.base_model
    references = _references(recipe, merge_config)
    configs = read_configs(references, merge_config, options, out)
    plan = None
    if spec.placement != "delta_share":
        plan = _plan(spec, references[0], configs)
    checkpoints = read_checkpoints(references, options, out)
    givers = recipe.vocabulary_givers
    others, donor = _other_vocabularies(checkpoints, givers), base
    if aligns(merge_config, options):
        others = set()
    elif str(base) in others:
        donor = givers[0]
    rows_from = {str(giver) for giver in givers}
    check_checkpoints(checkpoints, configs, merge_config, options, rows_from, donor)
    check_swap_modules(spec, checkpoints[0].name, checkpoints[0].shapes)
    weights = [entry.parameters.weight for entry in recipe.experts]
    measured, note = None, None
    if spec.needs_deltas:
        measured = _measure(recipe, options, checkpoints[0].depth())
        spec, weights = measured.weights.applied_to(spec), list(measured.weights.models)
        plan = plan or measured.plan
        if measured.mavs and aligns(merge_config, options):
            note = ALIGNED
    assert plan is not None  # laid out or measured
    if (warning := most_swapped(recipe.parameters, plan)) is not None:
        LOG.warning("%s", warning)
    inputs = {
        entry.model: Input(entry.parameters.role, weight, is_base=entry.model == base)
        for entry, weight in zip(recipe.experts, weights, strict=True)
    }
    inputs.setdefault(base, Input(is_base=True))
    record = plan_record(recipe, plan, measured, note, str(donor) if others else None)
    return Prepared(
        donor=donor,
        planner=functools.partial(SwapPlanner, spec=spec, plan=plan, inputs=inputs),
        lines=tuple(log_lines(record)),
        outcome=lambda: Outcome(record, card=card(record)),
    )


def _other_vocabularies(checkpoints: Sequence[Checkpoint], givers: Sequence[Any]) -> set[str]:
    """Return the names of the models with another number of rows than those that give them."""
    giver = next(each for each in checkpoints if each.name == str(givers[0]))
    return {each.name for each in checkpoints if not same_vocabulary(giver, each)}


def _measure(recipe: LayerSwapDocument, options: Any, num_layers: int) -> Measured:
    def watched(what: str, names: Sequence[str]) -> Iterable[str]:
        # The bar comes only where a user would begin to wonder.
        return tqdm(names, what, unit="tensor", delay=2, disable=options.quiet)

    experts = []
    for entry in recipe.experts:
        own, given = entry.parameters, _readable(entry.model, options)
        experts.append(replace(given, role=own.role, weight=own.weight))
    base = stream_input(recipe.base_model, options)
    try:
        return measure(recipe.parameters, experts, base, num_layers, watched)
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


def _references(recipe: LayerSwapDocument, merge_config: Any) -> list[Any]:
    """Return every model the merge reads, the first task expert first, each once."""
    experts = sorted(recipe.experts, key=lambda entry: entry.parameters.role != "task")
    others = sorted(merge_config.referenced_models(), key=str)
    found = (*(entry.model for entry in experts), recipe.base_model, *others)
    return list({str(reference): reference for reference in found}.values())


def _plan(spec: LayerSwapSpec, first: Any, configs: Mapping[str, Any]) -> LayerPlan:
    """Return the plan for the depth that the first model's config states."""
    num_layers = getattr(configs[str(first)].get_text_config(), "num_hidden_layers", None)
    if num_layers is None:
        raise InputError(f"{first}: its config does not say how many layers it has")
    try:
        return spec.plan(int(num_layers))
    except ValueError as error:
        raise InputError(f"layer_swap recipe: {error}") from error
