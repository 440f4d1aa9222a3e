"""What mergekit's `run_merge` does with recipes of this project's methods: from file to file.

Where an option or the recipe needs mergekit itself, `executor.py` merges it there.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from layerswap_method.errors import InputError
from layerswap_method.merge import WriteOptions, merge_from_files
from layerswap_method.methods.read import RecipeFile
from layerswap_method.progress import Advance, Log
from layerswap_method.recipe.references import find_model_files

LOG = logging.getLogger("layerswap")

_SHARED_OPTIONS = (
    "out_shard_size",
    "copy_tokenizer",
    "write_model_card",
    "cuda",
    "device",
    "quiet",
    "verbosity",
    "transformers_cache",
    "num_threads",
    "safe_serialization",
    # The rest has no effect: adapters are added while they are read, nothing is unpickled, drawn or
    # run as code, and memory is low anyway.
    "lora_merge_cache",
    "lazy_unpickle",
    "random_seed",
    "trust_remote_code",
    "low_cpu_memory",
    "async_write",
    "write_threads",
)
"""Options of mergekit that mean the same where a merge is written from file to file."""


def merge_by_files(file: RecipeFile, out_path: str, options: Mapping[str, Any]) -> str | None:
    """Merge a recipe from file to file; return why only mergekit can, where nothing was written."""
    if (reason := mergekit_only_option(options)) is not None:
        return reason
    cache, threads = options.get("transformers_cache"), options.get("num_threads")
    if threads is not None and threads < 1:
        raise InputError(f"--num-threads {threads}: give 1 or more")
    return merge_from_files(
        file,
        out_path,
        functools.partial(find_model_files, cache_dir=cache),
        shown_log(options),
        WriteOptions(
            shard_bytes=options.get("out_shard_size") or WriteOptions.shard_bytes,
            threads=threads,
            device=str(options.get("device") or ("cuda" if options.get("cuda") else "cpu")),
            with_tokenizer=options.get("copy_tokenizer", True),
            with_card=options.get("write_model_card", True),
        ),
        bar=functools.partial(_byte_bar, quiet=bool(options.get("quiet"))),
        cache_dir=cache,
    )


def mergekit_yaml() -> list[str]:
    """Return the command of `mergekit-yaml` of this Python environment."""
    program = Path(sys.executable).parent / "mergekit-yaml"
    module = [sys.executable, "-m", "mergekit.scripts.run_yaml"]
    return [str(program)] if program.is_file() else module


def mergekit_command(
    recipe: Path, out_path: str, options: WriteOptions, more: Sequence[str], reason: str
) -> list[str]:
    """Return the command of `mergekit-yaml` that merges a recipe, with `more` options of its own.

    Raises `InputError` for options that it does not have.
    """
    if options.verify:
        raise InputError(f"--verify cannot be used: mergekit must merge this recipe ({reason})")
    size = ["--out-shard-size", str(options.shard_bytes)]
    device = [] if options.device == "cpu" else ["--device", options.device]
    return [*mergekit_yaml(), str(recipe), out_path, *size, *more, *device]


def mergekit_only_option(options: Mapping[str, Any]) -> str | None:
    """Return which of mergekit's options only mergekit knows; None where there is none."""
    if options.get("safe_serialization") is False:
        return "it was called with --no-safe-serialization"
    for name, value in options.items():
        if value and name not in _SHARED_OPTIONS:
            return f"it was called with --{name.replace('_', '-')}"
    device = str(options.get("device") or "cpu")
    if device.partition(":")[0] not in ("cpu", "cuda"):
        return f"it was called with --device {device}"
    return None


def shown_log(options: Mapping[str, Any]) -> Log:
    """Return what writes lines to the log, which is shown at mergekit's default verbosity."""
    if not options.get("quiet"):
        LOG.setLevel(logging.INFO)
    return functools.partial(LOG.info, "%s")


@contextmanager
def _byte_bar(title: str, size: int, *, quiet: bool) -> Iterator[Advance]:
    from tqdm import tqdm

    bar = tqdm(
        total=size,
        desc=title,
        unit="B",
        unit_scale=True,
        delay=1,
        mininterval=0.1 if sys.stderr.isatty() else 30,
        disable=quiet,
    )
    with bar:
        yield bar.update
