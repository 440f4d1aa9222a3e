"""Where a recipe's model references lead on this machine. Knows paths, ids and the hub cache.

Every trap of mergekit 0.1.5 with paths is caught here, before anything is written.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from layerswap_method.errors import InputError
from layerswap_method.mergekit_api import merged_reference


def path_problem(path: str) -> str | None:
    """Return what is wrong with a model path as a recipe writes it; None where nothing is.

    A relative path with at most one slash that exists is taken for a hub id when mergekit writes
    the model card, after the weights: offline that leaves half an output.
    """
    looks_local = path.startswith(("/", "~", ".")) or path.count("/") > 1
    if path.startswith("~"):
        return f"{path}: mergekit does not expand ~; write the whole path"
    if looks_local and not Path(path).exists():
        return f"{path}: no such folder (the current directory is {Path.cwd()})"
    if Path(path).exists() and path.count("/") <= 1 and not path.startswith("/"):
        return (
            f"{path}: mergekit takes a relative path with one slash or none for a hub id and fails "
            f"after writing the weights; write {_safe_path(path)}"
        )
    return None


def _safe_path(path: str) -> str:
    safe = f"./{path}" if not path.startswith(".") else path
    return safe if safe.count("/") > 1 else str(Path(path).resolve())


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
        problems += _adapter_problems(reference)
    return problems


def _adapter_problems(reference: Any) -> list[str]:
    folder = Path(reference.lora.path)
    if not folder.is_dir():
        return []  # a hub id; peft reports on it when mergekit merges the adapter
    if not (folder / "adapter_config.json").is_file():
        return [f"{reference}: {folder} holds no adapter_config.json, so it is no peft adapter"]
    if not (folder / "adapter_model.safetensors").is_file():
        return [
            f"{reference}: {folder} holds no adapter_model.safetensors (a pickled "
            "adapter_model.bin is not loaded: it can run code); save the adapter again with "
            "safe_serialization=True"
        ]
    return []


def load_config(reference: Any, options: Any) -> Any:
    """Return the transformers config of a reference.

    Raises:
        InputError: where it cannot be had.
    """
    try:
        return reference.config(trust_remote_code=options.trust_remote_code)
    except Exception as error:
        raise InputError(
            f"{reference}: its config cannot be loaded: {_first_line(error)}"
        ) from error


def local_folder(reference: Any, options: Any) -> Path:
    """Return the folder with the weights, downloading or merging an adapter as mergekit would.

    Raises:
        InputError: where mergekit would fail to get them.
    """
    try:
        merged = merged_reference(reference, options)
        return Path(merged.local_path(cache_dir=options.transformers_cache))
    except Exception as error:
        hint = ""
        if os.environ.get("HF_HUB_OFFLINE") and not Path(reference.model.path).exists():
            hint = (
                "; mergekit asks the hub for the list of files even when they are cached: offline, "
                f"write the snapshot's folder instead{_snapshot(reference, options)}"
            )
        raise InputError(
            f"{reference}: its weights cannot be had: {_first_line(error)}{hint}"
        ) from error


def _snapshot(reference: Any, options: Any) -> str:
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(
        reference.model.path,
        "config.json",
        cache_dir=options.transformers_cache,
        revision=reference.model.revision,
    )
    return f": {Path(found).parent}" if isinstance(found, str) else ""


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip() or '(no message)').splitlines()[0]}"
