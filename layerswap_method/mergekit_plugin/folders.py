"""Where a recipe's model references lead on this machine. Knows paths, ids and the hub cache.

Every trap of mergekit 0.1.5 with paths is caught here, before anything is written.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from layerswap_method.checkpoints.lora import check_readable
from layerswap_method.checkpoints.model_files import StreamInput
from layerswap_method.errors import InputError, describe_error
from layerswap_method.mergekit_plugin.adapter_copies import cached_snapshot, with_adapter
from layerswap_method.recipe.references import is_folder, is_there, path_problem

_VOCABULARIES = ("tokenizer.json", "*.model", "vocab*", "*.tiktoken", "tekken.json", "token*.py")
"""Files in which tokenizers keep their tokens."""


def reference_problems(reference: Any, options: Any) -> list[str]:
    """Return the problems of one `ModelReference`, without reaching for the hub."""
    problems = []
    for part in (reference.model, reference.lora):
        if part is not None and (problem := path_problem(part.path)) is not None:
            problems.append(problem)
    if reference.lora is not None and not problems:
        if not options.lora_merge_cache:
            problems.append(
                f"{reference}: an adapter reference needs a folder for the merged copy; add "
                "--lora-merge-cache DIR to the command"
            )
        # Of a hub id peft reports when mergekit merges the adapter.
        if is_folder(reference.lora.path):
            try:
                check_readable(Path(reference.lora.path))
            except InputError as error:
                problems.append(error.message)
    return problems


def has_tokenizer(reference: Any) -> bool:
    """Return whether a reference to a folder has a vocabulary; True for what is not a folder.

    Asked by names, not by loading: where there is none, transformers makes a tokenizer of one to
    five tokens for some architectures (Qwen2, GPT-2, Gemma), and mergekit takes it.
    """
    folder = Path(reference.model.path)
    if not is_folder(folder):
        return True
    return any(next(folder.glob(pattern), None) is not None for pattern in _VOCABULARIES)


def load_config(reference: Any, options: Any) -> Any:
    """Return the transformers config of a reference.

    Raises:
        InputError: where it is not available.
    """
    try:
        return reference.config(trust_remote_code=options.trust_remote_code)
    except Exception as error:
        raise InputError(
            f"{reference}: its config cannot be loaded: {describe_error(error)}"
        ) from error


def local_folder(reference: Any, options: Any) -> Path:
    """Return the folder with the weights, downloading or merging an adapter as mergekit would.

    Raises:
        InputError: where mergekit would fail to get them.
    """
    try:
        merged = with_adapter(reference, options)
        return Path(merged.local_path(cache_dir=options.transformers_cache))
    except InputError:
        raise
    except Exception as error:
        hint = ""
        if os.environ.get("HF_HUB_OFFLINE") and not is_there(reference.model.path):
            found = cached_snapshot(reference.model, "config.json", options.transformers_cache)
            hint = (
                "; mergekit asks the hub for the list of files even when they are cached: offline, "
                f"write the snapshot's folder instead{'' if found is None else f': {found}'}"
            )
        raise InputError(
            f"{reference}: its weights are not available: {describe_error(error)}{hint}"
        ) from error


def stream_input(reference: Any, options: Any) -> StreamInput:
    """Return a reference as folders on this machine, its adapter apart; nothing is merged.

    Call it once the reference is known to be good (`local_folder`).
    """

    def local(part: Any) -> Path:
        alone = reference.model_copy(update={"model": part, "lora": None})
        return Path(alone.local_path(cache_dir=options.transformers_cache))

    adapter = None if reference.lora is None else local(reference.lora)
    return StreamInput(str(reference), local(reference.model), adapter=adapter)
