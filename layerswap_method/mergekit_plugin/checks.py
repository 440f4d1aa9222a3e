"""Checks that any method's merge needs before it starts: references, settings, checkpoints.

Knows mergekit's configuration and what two checkpoints must share; not a method's parameters.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from layerswap_method.checkpoints.compatible import mixed_dtypes, own_problems, pair_problems
from layerswap_method.checkpoints.differences import mixed_settings
from layerswap_method.checkpoints.headers import Checkpoint, read_checkpoint
from layerswap_method.delta_revert.spec import NAME as DELTA_REVERT
from layerswap_method.errors import InputError, nearest
from layerswap_method.mergekit_plugin.definitions import (
    decoder_module,
    definition_problems,
    find_architecture,
)
from layerswap_method.mergekit_plugin.folders import (
    has_tokenizer,
    load_config,
    local_folder,
    reference_problems,
)
from layerswap_method.output import check_output
from layerswap_method.recipe.document import dtype_problems
from layerswap_method.recipe.references import is_there

LOG = logging.getLogger("layerswap")


def read_configs(
    references: Sequence[Any], merge_config: Any, options: Any, out: Path
) -> dict[str, Any]:
    """Return reference, as the recipe writes it -> transformers config; fetches no checkpoint.

    Args:
        references: mergekit's `ModelReference` of every model, each once.
        merge_config: mergekit's `MergeConfiguration`.
        options: mergekit's `MergeOptions`.
        out: the output folder.

    Raises:
        InputError: listing every problem of the first kind found.
    """
    method = merge_config.merge_method
    problems = [p for ref in references for p in reference_problems(ref, options)]
    if not problems:
        problems = [*_setting_problems(merge_config), *_tokenizer_problems(merge_config, options)]
    if problems:
        raise InputError.from_problems(f"{method} recipe", problems)
    configs = {str(ref): load_config(ref, options) for ref in references}
    check_output(out, input_paths(references, options))
    return configs


def read_checkpoints(references: Sequence[Any], options: Any, out: Path) -> tuple[Checkpoint, ...]:
    """Return the headers of every model; fetches checkpoints and merges adapters.

    Raises:
        InputError: where one is not available or readable, or lies where the output is to be.
    """
    checkpoints = tuple(read_checkpoint(str(ref), local_folder(ref, options)) for ref in references)
    check_output(out, [checkpoint.path for checkpoint in checkpoints])
    return checkpoints


def check_checkpoints(
    checkpoints: Sequence[Checkpoint],
    configs: Mapping[str, Any],
    merge_config: Any,
    options: Any,
) -> None:
    """Check that mergekit can merge the checkpoints tensor by tensor.

    Raises:
        InputError: with every problem.
    """
    problems = [problem for checkpoint in checkpoints for problem in own_problems(checkpoint)]
    method, first = merge_config.merge_method, checkpoints[0]
    arch = None
    if options.allow_crimes or len({c.config.architecture for c in checkpoints}) == 1:
        arch = find_architecture(merge_config, options, configs[first.name], first.name)
    for other in checkpoints[1:]:
        problems += pair_problems(
            first,
            other,
            by_row=method == DELTA_REVERT,
            aligned=aligns(merge_config, options),
            allow_architectures=options.allow_crimes,
        )
    if not problems and arch is not None:
        decoder_module(arch)  # refuses what has no one text decoder
        for checkpoint in checkpoints:
            if checkpoint is first or checkpoint.shapes.keys() != first.shapes.keys():
                problems += definition_problems(arch, configs[checkpoint.name], checkpoint)
    problems += _untied_donor(merge_config.base_model, configs, checkpoints)
    if problems:
        raise InputError.from_problems(f"{method} recipe", problems)
    if merge_config.dtype is None and (warning := mixed_dtypes(checkpoints)) is not None:
        LOG.warning("%s", warning)
    if (warning := mixed_settings(checkpoints)) is not None:
        LOG.warning("%s", warning)


def _untied_donor(
    donor: Any, configs: Mapping[str, Any], checkpoints: Sequence[Checkpoint]
) -> Iterator[str]:
    """Yield a donor whose adapter unties the embeddings: the merge gets the config without it."""
    config = configs[str(donor)]
    says_tied = any(
        getattr(part, "tie_word_embeddings", None) for part in (config, config.get_text_config())
    )
    copies = (c for c in checkpoints if c.name == str(donor) and donor.lora is not None)
    if says_tied and any(copy.config.tie_word_embeddings is False for copy in copies):
        yield (
            f"{donor}: the adapter unties the output embedding from the input embedding (such as "
            "by modules_to_save), but the merge gets the config of the model without the adapter, "
            "which ties them; merge the adapter into its model first (peft: merge_and_unload, "
            "save_pretrained) and give that folder"
        )


def aligns(merge_config: Any, options: Any) -> bool:
    """Return whether mergekit will move rows of the vocabulary tensors."""
    sources = (merge_config.tokenizer, merge_config.tokenizer_source)
    return bool(options.unsafe_truncate_embeddings) or any(s is not None for s in sources)


def _setting_problems(merge_config: Any) -> Iterator[str]:
    """Yield what mergekit would only notice while it merges, or after."""
    yield from dtype_problems(dtype=merge_config.dtype, out_dtype=merge_config.out_dtype)
    template = merge_config.chat_template
    known = ("auto", *_chat_templates())
    if template and "{" not in template and template not in known:
        yield (
            f"chat_template is {template!r}; it must be one of {', '.join(known)}, or a template's "
            f"own text{nearest(template, known)}"
        )


def _tokenizer_problems(merge_config: Any, options: Any) -> Iterator[str]:
    """Yield models without the tokenizer that a setting needs; mergekit guesses one, or fails."""
    keys = ("tokenizer", "tokenizer_source")
    key = next((key for key in keys if getattr(merge_config, key) is not None), None)
    models: list[Any] = []
    if key is not None:
        source = merge_config.tokenizer_source or merge_config.tokenizer.source
        models = sorted(merge_config.referenced_models(), key=str)
        models += [] if isinstance(source, str) else [source]
    elif merge_config.chat_template and options.copy_tokenizer:
        key = "chat_template"
    models = [] if key is None else [merge_config.base_model, *models]
    for reference in {str(model): model for model in models}.values():
        if not has_tokenizer(reference):
            yield (
                f"{reference} has no tokenizer (tokenizer.json, tokenizer.model or vocab.json), "
                f"which {key}: needs; copy its files there from the model it was trained from, or "
                f"drop {key}:"
            )


def input_paths(references: Sequence[Any], options: Any) -> list[Path]:
    """Return every path on this machine that the merge reads from."""
    parts = [part for ref in references for part in (ref.model, ref.lora) if part is not None]
    found = [Path(part.path) for part in parts]
    if options.lora_merge_cache:
        found.append(Path(options.lora_merge_cache))
    return [path for path in found if is_there(path)]


def _chat_templates() -> tuple[str, ...]:
    """Return the names of the chat templates that mergekit ships."""
    import importlib.resources

    from mergekit._data import chat_templates as folder

    files = importlib.resources.files(folder).iterdir()
    return tuple(sorted(f.name[:-6] for f in files if f.name.endswith(".jinja")))
