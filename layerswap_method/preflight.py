"""What happens around a `layer_swap` merge: every check before, plan file and rename after.

Knows the order of the checks and mergekit's `run_merge`; the checks themselves are in `recipe`,
`references` and `checkpoints`. Merges by other methods pass through untouched.
"""

from __future__ import annotations

import functools
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from layerswap_method import __version__
from layerswap_method.checkpoints import (
    Checkpoint,
    own_problems,
    pair_problems,
    read_checkpoint,
)
from layerswap_method.definitions import (
    definition_problems,
    find_architecture,
    module_problems,
    slice_problems,
    vocabulary_tensors,
)
from layerswap_method.errors import InputError, LayerSwapError, describe_error, nearest
from layerswap_method.mergekit_api import chat_templates, forget_loaders, recipe_fields
from layerswap_method.method import NAME
from layerswap_method.output import PLAN_FILE, check_output, output_folder, temporary_output
from layerswap_method.plan import LayerPlan
from layerswap_method.planner import decoder_module, layer_plan, planner_is_extended
from layerswap_method.recipe import Recipe, read_recipe
from layerswap_method.references import load_config, local_folder, reference_problems
from layerswap_method.tensors import layer_part, split_layer

LOG = logging.getLogger("layerswap")

PLAN_SCHEMA_VERSION = 1
_DTYPES = ("bfloat16", "float16", "float32", "float64")


def patch_merge(module: Any) -> None:
    """Wrap `run_merge` of the executed module `mergekit.merge`, wherever it is bound already."""
    original = module.run_merge
    if getattr(original, "_layerswap_patched", False):
        return

    @functools.wraps(original)
    def run_merge(
        merge_config: Any, out_path: str, options: Any, config_source: str | None = None
    ) -> None:
        if merge_config.merge_method != NAME:
            original(merge_config, out_path, options, config_source)
            return
        forget_loaders()
        out = output_folder(out_path)
        recipe, plan = check(merge_config, options, config_source, out)
        announce(recipe, plan, quiet=options.quiet)
        with temporary_output(out) as folder:
            with _failures_in_one_message(verbose=options.verbosity > 0):
                original(merge_config, str(folder), options, config_source)
            text = json.dumps(plan_record(recipe, plan), indent=2) + "\n"
            (folder / PLAN_FILE).write_text(text, encoding="utf-8")

    run_merge._layerswap_patched = True  # type: ignore[attr-defined]
    for name, loaded in list(sys.modules.items()):
        if name.startswith("mergekit.") and getattr(loaded, "run_merge", None) is original:
            loaded.run_merge = run_merge  # type: ignore[attr-defined]


@contextmanager
def _failures_in_one_message(*, verbose: bool) -> Iterator[None]:
    """Turn what fails inside mergekit into one message; with ``-v`` its traceback is kept.

    Raises:
        LayerSwapError: for any exception but this project's own and interrupts.
    """
    try:
        yield
    except LayerSwapError:
        raise
    except Exception as error:
        if verbose:
            raise
        raise LayerSwapError(
            f"mergekit failed, and nothing was written: {describe_error(error)} (add -v for the "
            "traceback)"
        ) from error


def check(
    merge_config: Any, options: Any, config_source: str | None = None, out: Path | None = None
) -> tuple[Recipe, LayerPlan]:
    """Return recipe and layer plan of a merge that mergekit can carry out.

    Raises:
        InputError: listing every problem of the first kind found (recipe, then references, then
            checkpoints), before any output exists.
    """
    document = yaml.safe_load(config_source) if config_source else None
    source = document if isinstance(document, dict) else None
    recipe = read_recipe(merge_config, source, known=recipe_fields())
    references = unique_references(recipe, merge_config)
    problems = [p for ref in references for p in reference_problems(ref, options)]
    if problems:
        raise InputError.from_problems("layer_swap recipe", problems)
    problems = list(_setting_problems(merge_config))
    if problems:
        raise InputError.from_problems("layer_swap recipe", problems)
    configs = {str(ref): load_config(ref, options) for ref in references}
    if out is not None:
        check_output(out, _inputs(references, options))
    if merge_config.models:  # slices are checked first, below
        plan_for_depth(recipe, merge_config, configs)
    # From here on checkpoints are fetched and adapters merged; the cheap checks come before.
    checkpoints = [
        read_checkpoint(str(ref), local_folder(ref, options), configs[str(ref)])
        for ref in references
    ]
    if out is not None:
        check_output(out, [checkpoint.path for checkpoint in checkpoints])
    _check_checkpoints(recipe, merge_config, options, configs, checkpoints)
    plan = plan_for_depth(recipe, merge_config, configs)
    if plan.num_layers != checkpoints[0].num_layers:
        _check_new_depth(plan.num_layers, configs[str(recipe.base_model)], checkpoints[0])
    return recipe, plan


def unique_references(recipe: Recipe, merge_config: Any) -> list[Any]:
    """Return every model the merge reads, the first task expert first, each once."""
    found: dict[str, Any] = {}
    for model in (*recipe.by_role("task"), *recipe.by_role("language")):
        found.setdefault(str(model.reference), model.reference)
    found.setdefault(str(recipe.base_model), recipe.base_model)
    for reference in sorted(merge_config.referenced_models(), key=str):
        found.setdefault(str(reference), reference)
    return list(found.values())


def _check_checkpoints(
    recipe: Recipe,
    merge_config: Any,
    options: Any,
    configs: dict[str, Any],
    checkpoints: list[Checkpoint],
) -> None:
    problems = [problem for checkpoint in checkpoints for problem in own_problems(checkpoint)]
    first = checkpoints[0]
    arch = None
    if options.allow_crimes or len({c.architecture for c in checkpoints}) == 1:
        arch = find_architecture(merge_config, options, configs[first.name], first.name)
    vocabulary = () if arch is None else vocabulary_tensors(arch, configs[first.name])
    aligned = merge_config.tokenizer is not None or merge_config.tokenizer_source is not None
    for other in checkpoints[1:]:
        problems += pair_problems(
            first,
            other,
            vocabulary=vocabulary,
            aligned=aligned or options.unsafe_truncate_embeddings,
            allow_architectures=options.allow_crimes,
        )
    if not problems and arch is not None:
        problems += module_problems(merge_config, tuple(arch.modules))
        problems += slice_problems(merge_config, arch, configs, default_module=decoder_module(arch))
        for checkpoint in checkpoints:
            if checkpoint is first or checkpoint.shapes.keys() != first.shapes.keys():
                problems += definition_problems(arch, configs[checkpoint.name], checkpoint)
    if problems:
        raise InputError.from_problems("layer_swap recipe", problems)
    parts = {layer_part(name) for name in first.shapes if split_layer(name)[0] is not None}
    if recipe.spec.swap_modules not in ("all", *parts):
        raise InputError(
            f"layer_swap recipe: swap_modules is {recipe.spec.swap_modules}, but the layers of "
            f"{first.name} have no such tensors (found: {', '.join(sorted(parts)) or 'no layers'})"
        )
    dtypes = {c.name: sorted(set(c.dtypes.values())) for c in checkpoints}
    if len({tuple(found) for found in dtypes.values()}) > 1 and merge_config.dtype is None:
        LOG.warning(
            "the checkpoints have different dtypes (%s): each swapped tensor keeps its own; "
            "write dtype: in the recipe for one dtype throughout",
            "; ".join(f"{name} {'/'.join(found)}" for name, found in dtypes.items()),
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


def _setting_problems(merge_config: Any) -> Iterator[str]:
    """Yield what mergekit would only notice while it merges, or after."""
    for key in ("dtype", "out_dtype"):
        name = getattr(merge_config, key)
        if name is not None and name.removeprefix("torch.") not in _DTYPES:
            hint = nearest(name, _DTYPES)
            yield f"{key} is {name!r}; it must be one of {', '.join(_DTYPES)}{hint}"
    template = merge_config.chat_template
    known = ("auto", *chat_templates())
    if template and "{" not in template and template not in known:
        yield (
            f"chat_template is {template!r}; it must be one of {', '.join(known)}, or a template's "
            f"own text{nearest(template, known)}"
        )


def _inputs(references: list[Any], options: Any) -> list[Path]:
    """Return every path on this machine that the merge reads from."""
    parts = [part for ref in references for part in (ref.model, ref.lora) if part is not None]
    found = [Path(part.path) for part in parts]
    if options.lora_merge_cache:
        found.append(Path(options.lora_merge_cache))
    return [path for path in found if path.exists()]


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


def announce(recipe: Recipe, plan: LayerPlan, *, quiet: bool) -> None:
    """Write the plan to the log in a few lines; shown at mergekit's default verbosity."""
    if quiet:
        return
    LOG.setLevel(logging.INFO)
    for role in ("task", "language"):
        soup = ", ".join(
            str(m.reference) + (f" (weight {m.weight:g})" if m.weight != 1 else "")
            for m in recipe.by_role(role)
        )
        LOG.info("%s expert: %s", role, soup)
    LOG.info("%s", plan.describe())
    spec = recipe.spec
    LOG.info(
        "embeddings, final norm, lm_head: %s; swapped modules: %s; in-layer norms: %s",
        spec.non_layer,
        spec.swap_modules,
        spec.layer_norms,
    )


def plan_record(recipe: Recipe, plan: LayerPlan) -> dict[str, Any]:
    """Return what `layer_swap_plan.json` holds: layers, parameters, models."""
    return {
        "schema_version": PLAN_SCHEMA_VERSION,
        "merge_method": NAME,
        "layerswap_version": __version__,
        "num_layers": plan.num_layers,
        "layers": list(plan.sources),
        "parameters": recipe.spec.model_dump(),
        "models": [
            {"model": str(m.reference), "role": m.role, "weight": m.weight} for m in recipe.models
        ],
        "base_model": str(recipe.base_model),
    }
