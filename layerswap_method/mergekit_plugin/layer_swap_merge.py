"""The checks of a `layer_swap` merge, and what it says about itself.

Knows the order of the checks; the checks themselves are in `recipe`, `checking`, `references` and
`checkpoints`. What happens around the merge is in `run`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerswap_method.algorithm.plan import LayerPlan
from layerswap_method.algorithm.tensor_names import layer_part, split_layer
from layerswap_method.checkpoints.headers import Checkpoint
from layerswap_method.checkpoints.model_files import StreamInput
from layerswap_method.errors import InputError
from layerswap_method.layer_swap.recipe import Recipe, read_recipe
from layerswap_method.layer_swap.report import announcement, plan_record
from layerswap_method.layer_swap.spec import NAME, PLAN_PARAMETER
from layerswap_method.mergekit_plugin.checks import check_checkpoints, read_inputs
from layerswap_method.mergekit_plugin.definitions import decoder_module
from layerswap_method.mergekit_plugin.folders import local_folder, stream_input
from layerswap_method.mergekit_plugin.planner import layer_plan, planner_is_extended
from layerswap_method.mergekit_plugin.run import Prepared
from layerswap_method.output import PLAN_FILE, Outcome
from layerswap_method.stream.weight_stream import checkpoint_stream

if TYPE_CHECKING:
    from layerswap_method.layer_swap.measure import Measured


def prepare(
    merge_config: Any, options: Any, document: Mapping[str, Any] | None, out: Path
) -> Prepared:
    """Return a `layer_swap` merge that mergekit can carry out; see `check` for what it raises."""
    recipe, plan, measured = check(merge_config, options, document, out)
    lines, record, card = [*announcement(recipe, plan)], plan_record(recipe, plan), ""
    if measured is not None:
        from layerswap_method.layer_swap import report as of

        lines += of.measured_lines(measured)
        record["deltas"] = of.measured_record(measured)
        card = of.measured_card(measured)
        if measured.mavs and _aligns(merge_config, options):
            lines.append(ALIGNED)
            record["deltas"]["note"] = ALIGNED
            card += f"\n{ALIGNED[0].upper()}{ALIGNED[1:]}.\n"
        merge_config = measured_config(merge_config, measured)
    return Prepared(
        merge_config=merge_config,
        lines=tuple(lines),
        plan_file=PLAN_FILE,
        outcome=lambda: Outcome(record, card=card),
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
    if spec.placement == "delta_share" and not merge_config.models:
        raise InputError(
            "layer_swap recipe: placement: delta_share compares the layers of whole models; write "
            "models: in place of slices: or modules:"
        )
    references = unique_references(recipe, merge_config)
    inputs = read_inputs(
        NAME,
        references,
        merge_config,
        options,
        out,
        # slices are checked first, with the checkpoints
        before_weights=lambda configs: (
            plan_for_depth(recipe, merge_config, configs)
            if merge_config.models and spec.placement != "delta_share"
            else None
        ),
    )
    check_checkpoints(NAME, inputs, merge_config, options)
    first, configs = inputs.checkpoints[0], inputs.configs
    _check_swap_modules(recipe, first)
    if spec.placement == "delta_share":
        measured = _measure(recipe, options, first)
        return recipe, measured.plan or LayerPlan(()), measured
    plan = plan_for_depth(recipe, merge_config, configs)
    if plan.num_layers != first.num_layers:
        _check_new_depth(plan.num_layers, configs[str(recipe.base_model)], first)
    return recipe, plan, _measure(recipe, options, first) if spec.needs_deltas else None


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


def unique_references(recipe: Recipe, merge_config: Any) -> list[Any]:
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


def _check_new_depth(num_layers: int, config: Any, first: Checkpoint) -> None:
    problem = None
    if not planner_is_extended():
        problem = "with this version of mergekit, whose planner layer_swap could not extend"
    elif getattr(config.get_text_config(), "layer_types", None) is not None:
        problem = "its config lists a layer_type for each layer, which mergekit does not renew"
    if problem is not None:
        raise InputError(
            f"layer_swap recipe: the slices give {num_layers} layers and {first.name} has "
            f"{first.num_layers}; the depth cannot change: {problem}"
        )


def plan_for_depth(recipe: Recipe, merge_config: Any, configs: dict[str, Any]) -> LayerPlan:
    """Return the plan for the depth of the recipe's slices, or of the first model's config."""
    slices = merge_config.slices
    if merge_config.modules:
        slices = merge_config.modules[decoder_module(merge_config)].slices
    if slices:
        ranges = [out.sources[0].layer_range for out in slices]
        return layer_plan(recipe, sum(end - start for start, end in ranges))
    name, config = next(iter(configs.items()))
    num_layers = getattr(config.get_text_config(), "num_hidden_layers", None)
    if num_layers is None:
        raise InputError(f"{name}: its config does not say how many layers it has")
    return layer_plan(recipe, int(num_layers))


ALIGNED = (
    "vocabulary rows are compared as they are stored, before the recipe aligns them: experts that "
    "number the same tokens otherwise than the base seem to have changed far"
)
"""Said where a recipe has ``tokenizer:`` and measures whole models."""


def measured_config(merge_config: Any, measured: Measured) -> Any:
    """Return mergekit's configuration with the measured weights and plan written into it.

    Args:
        merge_config: the recipe's own; not changed.
        measured: for that recipe.
    """
    config = merge_config.model_copy(deep=True)
    parameters = {k: v for k, v in (config.parameters or {}).items() if k != "weighting"}
    weights = measured.weights
    parameters |= {"task_weight": weights.task, "language_weight": weights.language}
    if measured.plan is not None:
        parameters[PLAN_PARAMETER] = measured.plan.to_text()
    config.parameters = parameters
    of_model = {
        expert.name: weight for expert, weight in zip(measured.experts, weights.models, strict=True)
    }
    for entry in _entries(config):
        if str(entry.model) in of_model and (entry.parameters or {}).get("role") is not None:
            entry.parameters = {**entry.parameters, "weight": of_model[str(entry.model)]}
    return config


def _entries(config: Any) -> Iterator[Any]:
    """Yield every input of a configuration, wherever it stands."""
    for holder in (config, *(config.modules or {}).values()):
        yield from holder.models or ()
        for out in holder.slices or ():
            yield from out.sources
