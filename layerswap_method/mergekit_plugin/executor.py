"""A recipe of this project's methods in mergekit's own executor, with the plain kernel.

For what files alone cannot do: aligned vocabularies, chat templates, adapters that are more than
low-rank changes, and options of mergekit's own. What must be measured is measured before, and
handed to the kernel as parameters.
"""

from __future__ import annotations

import logging
import math
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mergekit.common import ModelPath, ModelReference
from mergekit.config import InputModelDefinition
from mergekit.io.tasks import LoaderCache
from pydantic import BaseModel

from layerswap_method.checkpoint.checkpoint import (
    Checkpoint,
    is_buffer,
    is_table,
    read_checkpoint,
)
from layerswap_method.checkpoint.compatible import (
    merge_problems,
    merge_warnings,
    own_problems,
    ties,
    vocabulary_problems,
)
from layerswap_method.checkpoint.config import FURTHER_LAYERS
from layerswap_method.checkpoint.lora import (
    read_adapter_config,
    read_adapter_tensors,
    tie_problems,
)
from layerswap_method.checkpoint.settings import generation_notes
from layerswap_method.errors import InputError, LayerSwapError, describe_error
from layerswap_method.mergekit_plugin.run import write_log
from layerswap_method.methods import layer_swap_merge
from layerswap_method.methods.delta_revert import DeltaRevertRecipe
from layerswap_method.methods.layer_swap import LayerSwapRecipe
from layerswap_method.methods.merges import merge_models
from layerswap_method.output import PLAN_FILES, check_output, output_folder, temporary_output
from layerswap_method.plan import format_layers
from layerswap_method.recipe.document import Recipe
from layerswap_method.recipe.pinned import commits, pinned_text, with_commits
from layerswap_method.recipe.references import Model, find_model_files, map_texts
from layerswap_method.write.card import write_card
from layerswap_method.write.donor_files import (
    copy_files,
    donor_files,
    tokenizer_problems,
    write_config,
)
from layerswap_method.write.files import write_json, write_synced_text

LOG = logging.getLogger("layerswap")

_ALIGNED = "vocabulary rows are compared as they are stored, before the recipe aligns them"


def merge_by_mergekit(
    run_merge: Callable[..., None],
    recipe: Recipe,
    document: Mapping[str, Any],
    text: str,
    out_path: str,
    merge_config: Any,
    options: Any,
) -> None:
    """Merge with mergekit's own `run_merge`; the output folder appears when it is whole."""
    out = output_folder(out_path)
    sources = {
        r: find_model_files(r, cache_dir=options.transformers_cache) for r in recipe.references
    }
    check_output(out, [path for model in sources.values() for path in model.folders])
    known = commits(sources)
    text = pinned_text(text, known) if known else text
    where = f"{recipe.method()} recipe"
    folders = {reference: model.folder for reference, model in sources.items()}
    InputError.raise_any(where, tokenizer_problems(recipe, folders, options.copy_tokenizer))
    if not options.allow_crimes:
        read = ((read_checkpoint(r, m.folder), m.adapter) for r, m in sources.items())
        InputError.raise_any(where, tie_problems(read))
    # mergekit writes the tokenizer, and not all of the other files.
    left = list(donor_files(sources[str(recipe.base_model)].folder, with_tokenizer=False))
    with _merged_adapters(sources, options) as models:
        checkpoints = [read_checkpoint(r, model.folder) for r, model in models.items()]
        _check(recipe, checkpoints, options)
        config, record, lines = _configuration(merge_config, recipe, checkpoints, models)
        write_log(lines, options.model_dump())
        with temporary_output(out) as folder:
            with _failures_in_one_message(verbose=options.verbosity > 0):
                # Held for the life of a process by the reference alone: a folder that was written
                # anew between two merges would be read as it was.
                LoaderCache.loaders.clear()
                run_merge(config, str(folder), options, text)
            if options.safe_serialization:
                merged = read_checkpoint("the merge", folder)
                _check_layers(checkpoints[0], merged)
                weights = [tensor for tensor in merged.tensors.values() if not is_table(tensor)]
                kinds = {tensor.torch_name for tensor in weights}
                is_plain = recipe.written_dtype is None and len(kinds) == 1
                has_further = any(map(merged.decoder.predicts_further, merged.tensors))
                changes = {} if has_further else dict.fromkeys(FURTHER_LAYERS, 0)
                write_config(folder, folder, kinds.pop() if is_plain else None, changes)
            for file in left:
                if not (folder / file.name).exists():
                    shutil.copyfile(file, folder / file.name)
            write_json(folder / PLAN_FILES[recipe.method()], with_commits(record, known))
            if options.write_model_card:
                write_synced_text(folder / "README.md", write_card(document, text, out.name, lines))


@contextmanager
def _merged_adapters(sources: Mapping[str, Model], options: Any) -> Iterator[dict[str, Model]]:
    """Yield the models as whole checkpoints, adapters merged into copies that vanish at the end.

    mergekit never looks at its copies again, so an adapter that was trained anew would be stale.
    """
    parent = options.lora_merge_cache
    try:
        if parent:
            Path(parent).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"--lora-merge-cache {parent}: cannot be made: {error.strerror}"
        ) from error
    with tempfile.TemporaryDirectory(dir=parent, ignore_cleanup_errors=True) as cache:
        models = dict(sources)
        for reference, model in sources.items():
            if model.adapter is None:
                continue
            is_tying = read_adapter_config(model.adapter).get("ensure_weight_tying")
            if is_tying and ties(read_checkpoint(reference, model.folder)):
                names = (n for n in read_adapter_tensors(model.adapter) if "lora_embedding_A" in n)
                InputError.raise_any(reference, [f"ensure_weight_tying doubles {n}" for n in names])
            folder, adapter = (ModelPath(path=str(at)) for at in (model.folder, model.adapter))
            with _failures_in_one_message(verbose=options.verbosity > 0):
                merged = ModelReference(model=folder, lora=adapter).merged(
                    cache_dir=cache,
                    trust_remote_code=options.trust_remote_code,
                    lora_merge_dtype=options.lora_merge_dtype,
                )
            models[reference] = Model(model.name, Path(merged.model.path))
            copy_files(model.folder, models[reference].folder)  # its tokenizer
        yield models


def _check(recipe: Recipe, checkpoints: Sequence[Checkpoint], options: Any) -> None:
    is_revert = isinstance(recipe, DeltaRevertRecipe)
    by_feature = is_revert and recipe.needs_deltas
    aligned = recipe.aligns_tokens or bool(options.unsafe_truncate_embeddings and not by_feature)
    swap = recipe if isinstance(recipe, LayerSwapRecipe) else None
    # mergekit gives the merge the tokenizer of the base, whose tokens must be those of the rows.
    rows_from = swap and {*swap.embedding_givers, str(swap.base_model)}
    how: Any = {"rows_from": rows_from, "aligned": aligned}
    if options.allow_crimes:
        problems = [problem for checkpoint in checkpoints for problem in own_problems(checkpoint)]
    else:
        problems = list(merge_problems(checkpoints, is_revert=is_revert, **how))
    if not problems and not aligned:  # mergekit reads the rows of every model
        problems = list(vocabulary_problems(checkpoints))
    InputError.raise_any(f"{recipe.method()} recipe", problems)
    base = next(model for model in checkpoints if model.name == str(recipe.base_model))
    for warning in merge_warnings(checkpoints, dtype=recipe.written_dtype, base=base, **how):
        LOG.warning("%s", warning)


def _check_layers(model: Checkpoint, merged: Checkpoint) -> None:
    """Raise where mergekit left out weights of the decoder's layers.

    It passes over what it does not find under the names that it knows of an architecture. Its own
    names may be others, so sizes are compared.
    """
    wanted, written = Counter[int](), Counter[int]()
    for sizes, shapes in ((wanted, model.shapes), (written, merged.shapes)):
        for name, shape in shapes.items():
            layer = model.decoder.layer(name)
            if layer is not None and not is_buffer(name):
                sizes[layer] += math.prod(shape)
    if lost := [layer for layer, size in wanted.items() if written[layer] != size]:
        raise LayerSwapError(
            f"mergekit lost weights of layers {format_layers(sorted(lost))}: it does not know the "
            f"names that {model.config.architecture} has in files. Nothing was written; drop what "
            "only mergekit can do (tokenizer:, chat_template:, --allow-crimes)"
        )


def _configuration(
    merge_config: Any,
    recipe: Recipe,
    checkpoints: Sequence[Checkpoint],
    models: Mapping[str, Model],
) -> tuple[Any, Mapping[str, Any], Sequence[str]]:
    """Return mergekit's configuration, content of the plan file, and lines for log and card."""
    folders = {
        reference: ModelReference(model=ModelPath(path=str(model.folder)))
        for reference, model in models.items()
    }
    if isinstance(recipe, DeltaRevertRecipe):
        merge = merge_models(recipe, models)
        record, lines = merge.record, merge.lines
        inputs = [InputModelDefinition(model=folders[recipe.expert])]
        parameters = _written(recipe.parameters)
        if parameters.pop("keep_fraction", None) is not None:
            parameters["threshold"] = record["threshold"]
        parameters["num_layers"] = record["num_layers"]
    else:
        assert isinstance(recipe, LayerSwapRecipe)
        measured = layer_swap_merge.lay_out(recipe, checkpoints[0], models)
        record = layer_swap_merge.swap_record(recipe, measured.plan, measured)
        lines = list(layer_swap_merge.swap_lines(record))
        base = next(model for model in checkpoints if model.name == str(recipe.base_model))
        lines += generation_notes(checkpoints, base)
        if recipe.aligns_tokens and "deltas" in record:
            lines.append(_ALIGNED)
            record["deltas"]["note"] = _ALIGNED
        for warning in layer_swap_merge.large_swap_warning(recipe.parameters, measured.plan):
            LOG.warning("%s", warning)
        inputs = [
            InputModelDefinition(
                model=folders[entry.model],
                parameters={**_written(entry.parameters), "scale": scale},
            )
            for entry, scale in zip(recipe.experts, measured.scales, strict=True)
        ]
        parameters = _written(recipe.parameters) | {"layer_sources": measured.plan.to_text()}
    parameters["decoder"] = checkpoints[0].decoder.prefix
    tokenizer, source = merge_config.tokenizer, merge_config.tokenizer_source
    if tokenizer is not None:
        placed = map_texts(tokenizer.model_dump(), lambda text: str(folders.get(text, text)))
        tokenizer = type(tokenizer).model_validate(placed)
    # Rounded once, when it is written: what is compared is then what was measured.
    written = recipe.written_dtype
    kinds = {t.torch_name for c in checkpoints for t in c.tensors.values()} | {written}
    wide = "float64" if "float64" in kinds else "float32"
    config = merge_config.model_copy(
        update={
            "models": inputs,
            "base_model": folders[str(recipe.base_model)],
            "parameters": parameters,
            "dtype": wide if written and len(kinds) > 1 else None,
            "out_dtype": written,
            "tokenizer": tokenizer,
            "tokenizer_source": folders.get(str(source), source),
        }
    )
    return config, record, lines


def _written(parameters: BaseModel) -> dict[str, Any]:
    """Return the parameters that a recipe has, whatever fields there are."""
    return parameters.model_dump(exclude_unset=True, exclude_none=True)


@contextmanager
def _failures_in_one_message(*, verbose: bool) -> Iterator[None]:
    """Turn what fails inside mergekit into one message; with ``-v`` its traceback is shown."""
    try:
        yield
    except Exception as error:
        if verbose or isinstance(error, LayerSwapError):
            raise
        raise LayerSwapError(
            f"mergekit failed, and nothing was written: {describe_error(error)} (add -v for the "
            "traceback)"
        ) from error
