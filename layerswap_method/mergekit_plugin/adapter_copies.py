"""The copies that mergekit merges adapters into. Knows its cache; not recipes, not tensors.

mergekit 0.1.5 names a copy after the paths of model and adapter and never looks at it again: an
adapter that was trained anew under its old name would be merged as it was. So a copy that is made
here gets a record of what it was made from, and a copy that does not fit any more is refused.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from layerswap_method.errors import InputError
from layerswap_method.recipe.references import is_folder

RECORD = "layerswap_made_from.json"
"""Stands in the copy's folder, so that it goes when the folder is deleted."""

_DTYPE = "--lora-merge-dtype"
_FILES = ("config.json", "adapter_config.json", "*.index.json", "*.safetensors", "*.bin")
"""What the weights of a copy follow from."""


def with_adapter(reference: Any, options: Any) -> Any:
    """Return `reference` with its adapter, if any, merged into the LoRA cache.

    A merge of the adapter that fails leaves no folder in the cache: mergekit would take it for a
    finished copy next time.

    Args:
        reference: mergekit's `ModelReference`.
        options: mergekit's `MergeOptions`.

    Raises:
        InputError: where the cache holds a copy that was made from something else.
        Exception: what transformers or peft raise where there is none and it cannot be made.
    """
    if reference.lora is None:
        return reference
    names = (reference.model._unique_id(), reference.lora._unique_id())
    copy = Path(options.lora_merge_cache) / "_".join(names)
    made_here, given = not copy.exists(), _made_from(reference, options)
    if not made_here:
        _check(reference, copy, given)
    try:
        merged = reference.merged(
            cache_dir=options.lora_merge_cache,
            trust_remote_code=options.trust_remote_code,
            lora_merge_dtype=options.lora_merge_dtype,
        )
        if made_here:  # what was downloaded for it is there only now
            record = {**_made_from(reference, options), **given}
            (copy / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    except BaseException:
        if made_here:
            shutil.rmtree(copy, ignore_errors=True)
        raise
    return merged


def _check(reference: Any, copy: Path, given: Mapping[str, Any]) -> None:
    """Raise where a copy was made from something else than what is given now.

    Of a copy that mergekit made on its own there is no record; that one must not be older than any
    of the files.
    """
    why = None
    record = copy / RECORD
    if record.is_file():
        made_from = json.loads(record.read_text(encoding="utf-8"))
        changed = [key for key in sorted({*given, *made_from}) if _differ(key, given, made_from)]
        if _DTYPE in changed:
            was, now = (each[_DTYPE] or "none" for each in (made_from, given))
            why = f"it was made with {_DTYPE} {was}, and this command has {now}"
        elif changed:
            why = f"{changed[0]} has changed since it was made"
    else:
        made = min((file.stat().st_mtime_ns for file in copy.glob("*.safetensors")), default=0)
        files = {key: stamp for key, stamp in given.items() if key != _DTYPE}
        newer = [key for key in sorted(files) if files[key][1] > made]
        if newer and made:
            why = f"{newer[0]} was written after it was made"
        elif not made:
            why = "it has no weights"
    if why is not None:
        raise InputError(
            f"{reference}: the copy with the merged adapter in {copy} is out of date: {why}; "
            "delete that folder and run the command again"
        )


def _differ(key: str, *records: Mapping[str, Any]) -> bool:
    one, other = (record.get(key) for record in records)
    return bool(one != other)


def _made_from(reference: Any, options: Any) -> dict[str, Any]:
    """Return what a copy follows from: the dtype, and each file's bytes and time of writing (ns).

    Of a hub id these are the files in the cache; there are none before the first download.
    """
    found: dict[str, Any] = {_DTYPE: options.lora_merge_dtype}
    for part, config in ((reference.model, "config.json"), (reference.lora, "adapter_config.json")):
        for file in _files(part, config):
            state = file.stat()
            found[f"{part}/{file.name}"] = [state.st_size, state.st_mtime_ns]
    return found


def _files(part: Any, config: str) -> Iterator[Path]:
    folder = Path(part.path) if is_folder(part.path) else cached_snapshot(part, config)
    if folder is not None:
        for pattern in _FILES:
            yield from sorted(folder.glob(pattern))


def cached_snapshot(part: Any, file: str, cache_dir: str | None = None) -> Path | None:
    """Return the folder of a hub id in the local cache; None where `file` of it is not there.

    Args:
        part: mergekit's `ModelPath`.
        file: a file that the repository holds.
        cache_dir: huggingface_hub's own unless given.
    """
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(part.path, file, cache_dir=cache_dir, revision=part.revision)
    return Path(found).parent if isinstance(found, str) else None
