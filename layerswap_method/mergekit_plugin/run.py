"""A recipe of this project's methods, merged from file to file with mergekit's options."""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from layerswap_method.merge import WriteOptions, find_models, write_merge
from layerswap_method.recipe.document import Recipe
from layerswap_method.recipe.references import find_model_files
from layerswap_method.write.files import Advance

LOG = logging.getLogger("layerswap")

_KNOWN = (
    *("out_shard_size", "copy_tokenizer", "write_model_card", "cuda", "device", "quiet"),
    *("verbosity", "transformers_cache", "num_threads", "safe_serialization"),
    # Without effect: adapters are added while they are read, nothing is unpickled, drawn or run as
    # code, and memory is low anyway.
    *("lora_merge_cache", "lazy_unpickle", "random_seed", "trust_remote_code"),
    *("low_cpu_memory", "async_write", "write_threads"),
)
"""Options of mergekit that mean the same where a merge is written from file to file."""


def merge_by_files(
    recipe: Recipe,
    document: Mapping[str, Any],
    text: str,
    out_path: str,
    options: Mapping[str, Any],
) -> str | None:
    """Merge a recipe from file to file, or write nothing and return why only mergekit can."""
    reason = recipe.why_mergekit() or why_mergekit(options)
    if reason is not None:
        return reason
    cache = options.get("transformers_cache")
    models = find_models(recipe, lambda reference: find_model_files(reference, cache_dir=cache))
    if isinstance(models, str):
        return models
    quiet = bool(options.get("quiet"))
    lines = write_merge(
        recipe,
        models,
        out_path,
        document=document,
        text=text,
        options=WriteOptions(
            shard_bytes=options.get("out_shard_size") or WriteOptions.shard_bytes,
            threads=options.get("num_threads") or 2,
            device=str(options.get("device") or ("cuda" if options.get("cuda") else "cpu")),
            with_tokenizer=options.get("copy_tokenizer", True),
            with_card=options.get("write_model_card", True),
        ),
        bar=functools.partial(_byte_bar, quiet=quiet),
        progress=functools.partial(tensor_bar, quiet=quiet),
    )
    first = "merging from file to file; mergekit's executor is not needed"
    log_lines(itertools.chain([first], lines), options)
    return None


def why_mergekit(options: Mapping[str, Any]) -> str | None:
    """Return which of mergekit's options only mergekit knows; None where there is none."""
    if options.get("safe_serialization") is False:
        return "it was called with --no-safe-serialization"
    other = next((name for name, value in options.items() if value and name not in _KNOWN), None)
    return other and f"it was called with --{other.replace('_', '-')}"


def log_lines(lines: Iterable[str], options: Mapping[str, Any]) -> None:
    """Write lines to the log as they come; shown at mergekit's default verbosity."""
    if not options.get("quiet"):
        LOG.setLevel(logging.INFO)
    for line in lines:
        LOG.info("%s", line)


def tensor_bar(what: str, names: Sequence[str], *, quiet: bool) -> Iterable[str]:
    """Return names of tensors that a progress bar counts, on a terminal and where it takes long."""
    from tqdm import tqdm

    return tqdm(names, what, unit="tensor", delay=2, disable=quiet or None)


@contextmanager
def _byte_bar(what: str, size: int, *, quiet: bool) -> Iterator[Advance]:
    from tqdm import tqdm

    how: Any = {"unit": "B", "unit_scale": True, "delay": 1, "disable": quiet or None}
    with tqdm(total=size, desc=what, **how) as bar:
        yield bar.update
