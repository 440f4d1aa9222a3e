"""A recipe of this project's methods in mergekit's own executor, with the plain kernel.

For what files alone cannot do: aligned vocabularies, chat templates, adapters that are more than
low-rank changes, and options of mergekit's own. What must be measured is measured before, and
handed to the kernel as parameters.
"""

from __future__ import annotations

import importlib.resources
import json
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from layerswap_method.checkpoint.checkpoint import Checkpoint, name_list, read_checkpoint
from layerswap_method.checkpoint.compatible import (
    merge_problems,
    merge_warnings,
    own_problems,
    vocabulary_problems,
)
from layerswap_method.errors import InputError, LayerSwapError, describe_error, nearest
from layerswap_method.mergekit_plugin.run import log_lines, tensor_bar
from layerswap_method.methods.delta_revert import DeltaRevertRecipe
from layerswap_method.methods.layer_swap import LayerSwapRecipe
from layerswap_method.output import (
    PLAN_FILE,
    REVERT_PLAN_FILE,
    check_output,
    output_folder,
    temporary_output,
)
from layerswap_method.recipe.document import Recipe
from layerswap_method.recipe.references import Model, find_model_files
from layerswap_method.write.card import write_card

LOG = logging.getLogger("layerswap")

_VOCABULARIES = ("tokenizer.json", "*.model", "vocab*", "*.tiktoken", "tekken.json", "token*.py")
"""Files in which tokenizers keep their tokens."""

_ALIGNED = (
    "vocabulary rows are compared as they are stored, before the recipe aligns them: experts that "
    "number the same tokens otherwise than the base seem to have changed far"
)


def merge_by_mergekit(
    run_merge: Callable[..., None],
    recipe: Recipe,
    document: Mapping[str, Any],
    text: str,
    out_path: str,
    merge_config: Any,
    options: Any,
) -> None:
    """Merge with mergekit's own `run_merge`; the output folder appears when it is whole.

    Args:
        run_merge: mergekit's function.
        recipe: the recipe.
        document: the recipe, as YAML gives it.
        text: the recipe as its author wrote it.
        out_path: the output folder, as the user wrote it.
        merge_config: mergekit's `MergeConfiguration` of the recipe.
        options: mergekit's `MergeOptions`.

    Raises:
        InputError: for references, settings, checkpoints or an output folder that are wrong.
        LayerSwapError: where mergekit fails; nothing is written then.
    """
    out = output_folder(out_path)
    found = {r: find_model_files(r, options.transformers_cache) for r in recipe.references}
    check_output(out, [path for m in found.values() for path in (m.folder, m.adapter) if path])
    if problems := [*_template_problems(recipe), *_tokenizer_problems(recipe, found, options)]:
        raise InputError.from_problems(f"{recipe.method()} recipe", problems)
    with _merged_adapters(found, options) as models:
        checkpoints = [read_checkpoint(r, model.folder) for r, model in models.items()]
        _check(recipe, checkpoints, options)
        parameters, record, lines = _parameters(recipe, checkpoints, models, options.quiet)
        log_lines(lines, options.model_dump())
        config = _configuration(merge_config, recipe, models, parameters)
        with temporary_output(out) as folder:
            with _failures_in_one_message(verbose=options.verbosity > 0):
                _forget_loaders()
                run_merge(config, str(folder), options, text)
            _warn_of_lost_tensors(checkpoints[0], folder)
            name = PLAN_FILE if isinstance(recipe, LayerSwapRecipe) else REVERT_PLAN_FILE
            (folder / name).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
            if options.write_model_card:
                card = write_card(document, text, out.name, lines)
                (folder / "README.md").write_text(card, encoding="utf-8")


@contextmanager
def _merged_adapters(found: Mapping[str, Model], options: Any) -> Iterator[dict[str, Model]]:
    """Yield the models as whole checkpoints, adapters merged into copies that vanish at the end.

    mergekit names its copies after the paths of model and adapter and never looks at them again: an
    adapter that was trained anew would be merged as it was. A copy for one merge cannot be stale.
    """
    from mergekit.common import ModelPath, ModelReference

    with tempfile.TemporaryDirectory(
        prefix="layerswap-", dir=options.lora_merge_cache, ignore_cleanup_errors=True
    ) as cache:
        models = {}
        for reference, model in found.items():
            if model.adapter is not None:
                whole = ModelReference(
                    model=ModelPath(path=str(model.folder)), lora=ModelPath(path=str(model.adapter))
                )
                with _failures_in_one_message(verbose=options.verbosity > 0):
                    merged = whole.merged(
                        cache_dir=cache,
                        trust_remote_code=options.trust_remote_code,
                        lora_merge_dtype=options.lora_merge_dtype,
                    )
                model = replace(model, folder=Path(merged.model.path), adapter=None)
            models[reference] = model
        yield models


def _check(recipe: Recipe, checkpoints: Sequence[Checkpoint], options: Any) -> None:
    """Check that the checkpoints can be merged, and log what a user should know."""
    aligned = recipe.aligns_tokens or bool(options.unsafe_truncate_embeddings)
    by_feature = isinstance(recipe, DeltaRevertRecipe) and recipe.parameters.by_feature
    rows_from = set(recipe.embedding_givers) if isinstance(recipe, LayerSwapRecipe) else None
    if options.allow_crimes:
        problems = [problem for each in checkpoints for problem in own_problems(each)]
    else:
        problems = list(
            merge_problems(checkpoints, rows_from=rows_from, aligned=aligned, by_row=by_feature)
        )
    if not problems and not aligned:  # mergekit reads the rows of every model
        problems = list(vocabulary_problems(checkpoints))
    if problems:
        raise InputError.from_problems(f"{recipe.method()} recipe", problems)
    for warning in merge_warnings(
        checkpoints, dtype=recipe.written_dtype, rows_from=rows_from, aligned=aligned
    ):
        LOG.warning("%s", warning)


def _parameters(
    recipe: Recipe, checkpoints: Sequence[Checkpoint], models: Mapping[str, Model], quiet: bool
) -> tuple[dict[str, Any], Mapping[str, Any], list[str]]:
    """Return parameters for the kernel, content of the plan file, and lines for log and card."""
    progress = partial(tensor_bar, quiet=quiet)
    if isinstance(recipe, DeltaRevertRecipe):
        merge = recipe.merge(models, progress)
        parameters = recipe.parameters.model_dump(exclude_none=True, exclude={"keep_fraction"})
        if (threshold := merge.record["threshold"]) is not None:
            parameters["threshold"] = threshold
        return parameters, merge.record, list(merge.lines)
    from layerswap_method.methods import layer_swap_merge

    assert isinstance(recipe, LayerSwapRecipe)
    spec = recipe.parameters
    plan, measured = layer_swap_merge.lay_out(recipe, checkpoints[0], models, progress)
    record = layer_swap_merge.plan_record(recipe, plan, measured)
    lines = list(layer_swap_merge.log_lines(record))
    sides = spec.side_weights if measured is None else measured.side_weights
    weights = [entry.parameters.weight for entry in recipe.experts]
    if measured is not None:
        weights = list(measured.weights)
        if recipe.aligns_tokens:
            lines.append(_ALIGNED)
            record["deltas"]["note"] = _ALIGNED
    for warning in layer_swap_merge.large_swap_warning(spec, plan):
        LOG.warning("%s", warning)
    parameters = {
        "plan": plan.to_text(),
        "task_weight": sides[0],
        "language_weight": sides[1],
        **spec.model_dump(include={"non_layer", "layer_norms", "swap_modules"}),
        "weights": weights,
    }
    return parameters, record, lines


def _configuration(
    merge_config: Any, recipe: Recipe, models: Mapping[str, Model], parameters: dict[str, Any]
) -> Any:
    """Return mergekit's configuration with folders for references and the kernel's parameters."""
    from mergekit.common import ModelPath, ModelReference
    from mergekit.config import InputModelDefinition

    weights = parameters.pop("weights", None)
    folders = {
        reference: ModelReference(model=ModelPath(path=str(model.folder)))
        for reference, model in models.items()
    }
    if isinstance(recipe, LayerSwapRecipe):
        assert weights is not None
        inputs = [
            InputModelDefinition(
                model=folders[entry.model],
                parameters={"role": entry.parameters.role, "weight": weight},
            )
            for entry, weight in zip(recipe.experts, weights, strict=True)
        ]
    else:
        assert isinstance(recipe, DeltaRevertRecipe)
        inputs = [InputModelDefinition(model=folders[recipe.expert])]
    base = folders[str(recipe.base_model)]
    tokenizer, source = merge_config.tokenizer, merge_config.tokenizer_source
    if tokenizer is not None:
        tokenizer = type(tokenizer).model_validate(_placed(tokenizer.model_dump(), folders))
    return merge_config.model_copy(
        update={
            "models": inputs,
            "base_model": base,
            "parameters": parameters,
            "tokenizer": tokenizer,
            "tokenizer_source": folders.get(str(source), source),
        }
    )


def _placed(value: Any, folders: Mapping[str, Any]) -> Any:
    """Return a block of a recipe with the folders of the models that it names."""
    if isinstance(value, Mapping):
        return {key: _placed(item, folders) for key, item in value.items()}
    if isinstance(value, str) and value in folders:
        return str(folders[value])
    return value


def _warn_of_lost_tensors(first: Checkpoint, out: Path) -> None:
    """Log which tensors mergekit left out, by their names: it writes those that it knows."""
    written = read_checkpoint(str(out), out).tensors
    lost = [name for name in first.tensors if name not in written and "layers." in name]
    if lost:
        LOG.warning(
            "mergekit wrote %d tensors of %s under other names, or not at all: %s; load the model "
            "before you use it",
            len(lost),
            first.name,
            name_list(lost),
        )


def _template_problems(recipe: Recipe) -> Iterator[str]:
    """Yield a chat template that mergekit does not have; it would fail after the merge."""
    from mergekit._data import chat_templates

    template = recipe.chat_template
    if not template or "{" in template:
        return
    files = importlib.resources.files(chat_templates).iterdir()
    known = ["auto", *sorted(f.name[:-6] for f in files if f.name.endswith(".jinja"))]
    if template not in known:
        yield (
            f"chat_template is {template!r}; it must be one of {', '.join(known)}, or a template's "
            f"own text{nearest(template, known)}"
        )


def _tokenizer_problems(recipe: Recipe, found: Mapping[str, Model], options: Any) -> Iterator[str]:
    """Yield models without the tokenizer that a setting needs.

    Looked for by names: where there is none, transformers makes a tokenizer of a few tokens for
    some architectures (Qwen2, GPT-2, Gemma), and mergekit takes it.
    """
    key, needed = "", []
    if recipe.aligns_tokens:
        key, needed = "tokenizer", list(found)
    elif recipe.chat_template and options.copy_tokenizer:
        key, needed = "chat_template", [str(recipe.base_model)]
    for reference in needed:
        folder = found[reference].folder
        if not any(next(folder.glob(pattern), None) for pattern in _VOCABULARIES):
            yield (
                f"{reference} has no tokenizer (tokenizer.json, tokenizer.model or vocab.json), "
                f"which {key}: needs; copy its files there from the model it was trained from, or "
                f"drop {key}:"
            )


def _forget_loaders() -> None:
    """Drop the checkpoints that mergekit holds open for the life of a process.

    It keys them by the reference alone, so a folder written anew between two merges of one
    process would be read as it was.
    """
    from mergekit.io.tasks import LoaderCache

    LoaderCache.loaders.clear()


@contextmanager
def _failures_in_one_message(*, verbose: bool) -> Iterator[None]:
    """Turn what fails inside mergekit into one message; with ``-v`` its traceback is shown.

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
