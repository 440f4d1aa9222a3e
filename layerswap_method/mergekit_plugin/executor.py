"""A recipe of this project's methods in mergekit's own executor, with the plain kernel.

Files alone are not enough for aligned vocabularies, chat templates, adapters that are more than
low-rank changes, and options of mergekit's own. Changes are measured before, and handed to the
kernel as parameters.
"""

from __future__ import annotations

import logging
import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from mergekit.common import ModelPath, ModelReference
from mergekit.config import InputModelDefinition
from mergekit.io.tasks import LoaderCache
from pydantic import BaseModel

from layerswap_method.checkpoint.checkpoint import (
    Checkpoint,
    is_buffer,
    is_integer,
    read_checkpoint,
)
from layerswap_method.checkpoint.compatible import Checked
from layerswap_method.checkpoint.lora import (
    check_for_peft,
    is_lora,
    read_adapter_config,
    read_adapter_tensors,
    tie_problems,
)
from layerswap_method.checkpoint.settings import end_warning
from layerswap_method.checkpoint.stored import torch_dtype
from layerswap_method.checkpoint.tied_heads import ties
from layerswap_method.errors import InputError, LayerSwapError, describe_error
from layerswap_method.layer_plan import format_layers
from layerswap_method.mergekit_plugin.run import shown_log
from layerswap_method.methods import layer_swap_merge
from layerswap_method.methods.check import check_models
from layerswap_method.methods.delta_revert import DeltaRevertRecipe
from layerswap_method.methods.layer_swap import LayerSwapRecipe
from layerswap_method.methods.measured import measured_plan
from layerswap_method.methods.read import RecipeFile, read_recipe
from layerswap_method.methods.table import METHODS
from layerswap_method.output import check_output, claim_output, output_folder
from layerswap_method.recipe.document import Recipe
from layerswap_method.recipe.pinned import commits, pinned_text, with_commits
from layerswap_method.recipe.references import Model, find_model_files, map_texts
from layerswap_method.tensor_names import Decoder
from layerswap_method.tensors import OpenModel, further_layer_settings
from layerswap_method.write.card import card_text
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
    file: RecipeFile,
    out_path: str,
    merge_config: Any,
    options: Any,
) -> None:
    """Merge with mergekit's own `run_merge`; the output folder appears when it is whole."""
    recipe, out = read_recipe(file.document), output_folder(out_path)
    plan_file = str(METHODS[recipe.merge_method].plan_file)
    with claim_output(out) as folder:  # before anything is downloaded
        sources = {
            reference: find_model_files(reference, cache_dir=options.transformers_cache)
            for reference in recipe.references
        }
        # Where the models are is known only now.
        check_output(out, [path for model in sources.values() for path in model.folders])
        _check_files(recipe, sources, options)
        source_commits = commits(sources)
        text = pinned_text(file.text, source_commits) if source_commits else file.text
        donor = sources[str(recipe.base_model)].folder
        other_files = _other_files(recipe, donor, options)
        with _merged_adapters(sources, recipe.written_dtype, options) as models:
            opened = {
                reference: _opened(model, sources[reference].adapter)
                for reference, model in models.items()
            }
            checked = _check(recipe, opened, options)
            config, record, lines = _configuration(merge_config, recipe, opened, checked)
            log = shown_log(options.model_dump())
            for line in lines:
                log(line)
            with _failures_in_one_message(verbose=options.verbosity > 0):
                # Held for the life of a process by the reference alone: a folder that was written
                # anew between two merges would be read as it was.
                LoaderCache.loaders.clear()
                run_merge(config, str(folder), options, text)
        if options.safe_serialization:
            merged = read_checkpoint("the merge", folder)
            _check_layers(opened[recipe.references[0]].checkpoint, merged)
            dtypes = {
                tensor.torch_name for tensor in merged.tensors.values() if not is_integer(tensor)
            }
            is_one_dtype = recipe.written_dtype is None and len(dtypes) == 1
            write_config(
                merged.document,
                folder,
                dtypes.pop() if is_one_dtype else None,
                further_layer_settings(merged.decoder, merged.tensors),
            )
        lacking = (file for file in other_files if not (folder / file.relative_to(donor)).exists())
        copy_files(lacking, donor, folder)
        if recipe.aligns_tokens and (warning := end_warning(folder)) is not None:
            LOG.warning("%s", warning)
        write_json(folder / plan_file, with_commits(record, source_commits))
        if options.write_model_card:
            card = card_text(file.document, text, out.name, lines)
            write_synced_text(folder / "README.md", card)


def _other_files(recipe: Recipe, donor: Path, options: Any) -> list[Path]:
    """Return the files of the donor that the merge has, of which mergekit copies some.

    Where it aligns tokens, it writes the whole tokenizer; with ``chat_template:``, the template.
    """
    with_tokenizer = bool(options.copy_tokenizer) and not recipe.aligns_tokens
    files = donor_files(donor, with_tokenizer=with_tokenizer)
    if not recipe.chat_template:
        return files
    return [
        file
        for file in files
        if file.suffix != ".jinja" and not file.name.startswith("chat_template")
    ]


def _check_files(recipe: Recipe, sources: Mapping[str, Model], options: Any) -> None:
    """Raise for tokenizers that are missing, and for adapters that mergekit would merge wrongly."""
    where = f"{recipe.merge_method} recipe"
    folders = {reference: model.folder for reference, model in sources.items()}
    InputError.raise_any(where, tokenizer_problems(recipe, folders, options.copy_tokenizer))
    if not options.allow_crimes:
        with_adapters = (
            (read_checkpoint(reference, model.folder), model.adapter)
            for reference, model in sources.items()
        )
        InputError.raise_any(where, tie_problems(with_adapters))


@contextmanager
def _merged_adapters(
    sources: Mapping[str, Model], dtype: str | None, options: Any
) -> Iterator[dict[str, Model]]:
    """Yield the models as whole checkpoints, adapters merged into copies that vanish at the end.

    A copy is of the recipe's `dtype` where that is wider than the model's. mergekit never looks at
    its copies again, so an adapter that was trained anew would be stale.
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
            base = read_checkpoint(reference, model.folder)
            if is_lora(model.adapter):
                check_for_peft(model.adapter, base)
            is_tying = read_adapter_config(model.adapter).get("ensure_weight_tying")
            if is_tying and ties(base):
                problems = [
                    f"ensure_weight_tying doubles {name}"
                    for name in read_adapter_tensors(model.adapter)
                    if "lora_embedding_A" in name
                ]
                InputError.raise_any(reference, problems)
            with_adapter = ModelReference(
                model=ModelPath(path=str(model.folder)), lora=ModelPath(path=str(model.adapter))
            )
            with _failures_in_one_message(verbose=options.verbosity > 0):
                merged = with_adapter.merged(
                    cache_dir=cache,
                    trust_remote_code=options.trust_remote_code,
                    lora_merge_dtype=options.lora_merge_dtype or _wider(dtype, base.first_float),
                )
            models[reference] = Model(model.name, Path(merged.model.path))
            # Its tokenizer.
            copy_files(donor_files(model.folder), model.folder, models[reference].folder)
        yield models


def _opened(model: Model, adapter: Path | None) -> OpenModel:
    """Return a model that is open, with the folder of the `adapter` that is merged into it."""
    opened = OpenModel.read(model)
    checkpoint = replace(opened.checkpoint, adapter=adapter)
    return opened.model_copy(update={"checkpoint": checkpoint})


def _wider(dtype: str | None, stored: str | None) -> str | None:
    """Return a torch dtype that holds every value of `stored`; None where it is no wider."""
    import torch

    if dtype is None or stored is None or dtype == stored:
        return None
    promoted = torch.promote_types(torch_dtype(dtype), torch_dtype(stored))
    return dtype if promoted == torch_dtype(dtype) else None


def _check(recipe: Recipe, models: Mapping[str, OpenModel], options: Any) -> Checked:
    truncates = bool(options.unsafe_truncate_embeddings and not recipe.needs_deltas)
    checked = check_models(
        recipe,
        {reference: model.checkpoint for reference, model in models.items()},
        by_mergekit=True,
        aligned=recipe.aligns_tokens or truncates,
        allow_crimes=options.allow_crimes,
    )
    InputError.raise_any(f"{recipe.merge_method} recipe", checked.problems)
    for warning in checked.warnings:
        LOG.warning("%s", warning)
    return checked


def _check_layers(model: Checkpoint, merged: Checkpoint) -> None:
    """Raise where mergekit left out weights of the decoder's layers.

    It passes over what it does not find under the names that it knows of an architecture. Its own
    names may be others, so sizes are compared.
    """
    merged_sizes = _layer_sizes(merged, model.decoder)
    lost = [
        layer
        for layer, size in _layer_sizes(model, model.decoder).items()
        if merged_sizes[layer] != size
    ]
    if lost:
        raise LayerSwapError(
            f"mergekit lost weights of layers {format_layers(sorted(lost))}: it does not know the "
            f"names that {model.config.architecture} has in files. Nothing was written; drop what "
            "only mergekit can do (tokenizer:, chat_template:, --allow-crimes)"
        )


def _layer_sizes(model: Checkpoint, decoder: Decoder) -> Counter[int]:
    """Return how many values the weights of every layer of a decoder have in a checkpoint."""
    sizes = Counter[int]()
    for name, shape in model.shapes.items():
        layer = decoder.layer(name)
        if layer is not None and not is_buffer(name):
            sizes[layer] += math.prod(shape)
    return sizes


def _configuration(
    merge_config: Any,
    recipe: Recipe,
    models: Mapping[str, OpenModel],
    checked: Checked,
) -> tuple[Any, Mapping[str, Any], Sequence[str]]:
    """Return mergekit's configuration, content of the plan file, and lines for log and card."""
    first, *_ = checkpoints = [model.checkpoint for model in models.values()]
    folders = {
        reference: ModelReference(model=ModelPath(path=str(model.checkpoint.path)))
        for reference, model in models.items()
    }
    if isinstance(recipe, DeltaRevertRecipe):
        merge = METHODS[recipe.merge_method].build(recipe, models, checked)
        record, lines = merge.record, merge.lines
        inputs = [InputModelDefinition(model=folders[recipe.expert])]
        parameters = _written(recipe.parameters)
        if parameters.pop("keep_fraction", None) is not None:
            parameters["threshold"] = record["threshold"]
        parameters["num_layers"] = record["num_layers"]
    else:
        assert isinstance(recipe, LayerSwapRecipe)
        measured = measured_plan(recipe, models)
        record = layer_swap_merge.swap_record(recipe, measured.plan, measured)
        lines = list(layer_swap_merge.swap_lines(record))
        lines += checked.notes
        if recipe.aligns_tokens and "deltas" in record:
            lines.append(_ALIGNED)
            record["deltas"]["note"] = _ALIGNED
        for warning in recipe.plan_warnings(measured.plan):
            LOG.warning("%s", warning)
        inputs = [
            InputModelDefinition(
                model=folders[entry.model],
                parameters={**_written(entry.parameters), "scale": scale},
            )
            for entry, scale in zip(recipe.experts, measured.scales, strict=True)
        ]
        parameters = _written(recipe.parameters) | {"layer_sources": measured.plan.to_text()}
    parameters["decoder"] = first.decoder.prefix
    tokenizer, source = merge_config.tokenizer, merge_config.tokenizer_source
    if tokenizer is not None:
        with_folders = map_texts(tokenizer.model_dump(), lambda text: str(folders.get(text, text)))
        tokenizer = type(tokenizer).model_validate(with_folders)
    # Rounded once, when it is written: features are compared by the changes that were measured.
    written_dtype = recipe.written_dtype
    dtypes = {
        written_dtype,
        *(tensor.torch_name for model in checkpoints for tensor in model.tensors.values()),
    }
    wide_dtype = "float64" if "float64" in dtypes else "float32"
    config = merge_config.model_copy(
        update={
            "models": inputs,
            "base_model": folders[str(recipe.base_model)],
            "parameters": parameters,
            "dtype": wide_dtype if written_dtype and len(dtypes) > 1 else None,
            "out_dtype": written_dtype,
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
    """Turn a failure inside mergekit into one message; with ``-v`` its traceback is shown."""
    try:
        yield
    except Exception as error:
        if verbose or isinstance(error, LayerSwapError):
            raise
        raise LayerSwapError(
            f"mergekit failed, and nothing was written: {describe_error(error)} (add -v for the "
            "traceback)"
        ) from error
