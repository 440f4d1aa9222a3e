"""A recipe's file merged from the files of its models to a folder.

Knows recipes, streams and the output folder; not mergekit, and not where models are found. The
plan, the tensors and what is said of them are those of the mergekit method.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from layerswap_method.checkpoints.compatible import mixed_dtypes
from layerswap_method.checkpoints.differences import mixed_settings
from layerswap_method.checkpoints.headers import read_checkpoint
from layerswap_method.checkpoints.model_files import ModelFiles
from layerswap_method.delta_revert import report as revert_report
from layerswap_method.delta_revert.recipe import RevertDocument
from layerswap_method.delta_revert.spec import NAME as DELTA_REVERT
from layerswap_method.delta_revert.stream import RevertStream
from layerswap_method.errors import InputError
from layerswap_method.layer_swap import report as swap_report
from layerswap_method.layer_swap.recipe import LayerSwapDocument
from layerswap_method.layer_swap.spec import NAME as LAYER_SWAP
from layerswap_method.layer_swap.stream import SwapStream
from layerswap_method.merge.card import card
from layerswap_method.merge.definitions import why_mergekit
from layerswap_method.merge_stream import KNOWN, can_stream, stream_of
from layerswap_method.output import (
    PLAN_FILE,
    REVERT_PLAN_FILE,
    Outcome,
    check_output,
    check_outside,
    output_folder,
    temporary_output,
)
from layerswap_method.recipe.document import dtype_problems
from layerswap_method.recipe.references import named_models
from layerswap_method.recipe.strict_yaml import read_text_and_yaml
from layerswap_method.stream.donor_files import copy_donor_files
from layerswap_method.stream.layout import SHARD_BYTES, lay_out
from layerswap_method.stream.mix import mixes_to_json
from layerswap_method.stream.pieces import check_device
from layerswap_method.stream.verify import verify_files
from layerswap_method.stream.weight_stream import WeightStream
from layerswap_method.stream.write import Bar, write_files, write_text

LOG = logging.getLogger("layerswap")

Find = Callable[[str], ModelFiles]
"""Returns where the model of a reference is; raises `InputError` where it is nowhere."""


@dataclass(frozen=True)
class WriteOptions:
    """How a merge is written. On the processor no value changes a tensor."""

    shard_bytes: int = SHARD_BYTES
    """Bytes of the tensors in one file, at most."""

    threads: int = 1
    """Tensors that are written at once."""

    verify: bool = False
    """Whether what is written is read again and compared with its sources."""

    device: str = "cpu"
    """Where tensors are computed: "cpu", or a GPU as torch calls it."""

    resume: bool = False
    """Whether finished files of an interrupted merge are used, and kept for another."""


@dataclass(frozen=True)
class FileMerge:
    """A recipe that can be merged from files; all forms are checked and all models found."""

    document: Mapping[str, Any]
    """The recipe."""

    text: str
    """The recipe as its author wrote it."""

    models: Mapping[str, ModelFiles]
    """Reference, as the recipe writes it -> where the model is."""


def read_merge(recipe: Path, find: Find) -> FileMerge | str:
    """Return what a recipe's file asks for, or why only mergekit can merge it.

    Args:
        recipe: a YAML file.
        find: finds a model.

    Raises:
        InputError: for a file, a recipe of ours or a model that is wrong, with every problem of
            the first kind found.
    """
    text, document = read_text_and_yaml(recipe)
    if not isinstance(document, dict):
        raise InputError(f"{recipe}: is not a recipe; write merge_method:, models: and base_model:")
    reason = _why_mergekit(document)
    if reason is not None:
        return reason
    models = {reference: find(reference) for reference in dict.fromkeys(named_models(document))}
    checkpoints = [read_checkpoint(name, model.folder) for name, model in models.items()]
    for checkpoint in checkpoints:
        reason = why_mergekit(checkpoint)
        if reason is not None:
            return reason
    keeps_dtypes = document["merge_method"] in (LAYER_SWAP, DELTA_REVERT)
    warning = mixed_dtypes(checkpoints) if keeps_dtypes else None
    if warning is not None and document.get("dtype") is None:
        LOG.warning("%s", warning)
    if (warning := mixed_settings(checkpoints)) is not None:
        LOG.warning("%s", warning)
    for key in ("dtype", "out_dtype"):
        if document.get(key) is not None:
            document[key] = document[key].removeprefix("torch.")
    return FileMerge(document, text, models)


def write_merge(
    merge: FileMerge,
    out_path: str,
    options: WriteOptions = WriteOptions(),
    bar: Bar = lambda what, size: nullcontext(lambda count: None),
) -> Iterator[str]:
    """Merge, and yield lines for the log; the output folder appears when it is whole.

    Args:
        merge: what `read_merge` returned.
        out_path: the output folder, as the user wrote it.
        options: how it is written.
        bar: shows progress.

    Raises:
        InputError: for an output folder that cannot be, a device that is not there, models that do
            not fit each other, or files that change meanwhile.
        LayerSwapError: where something cannot be written.
    """
    out = output_folder(out_path)
    inputs = [path for m in merge.models.values() for path in (m.folder, m.adapter) if path]
    check_output(out, inputs)
    check_outside(out, inputs)
    check_device(options.device)
    stream = stream_of(merge.document, merge.models)
    outcome = _outcome(merge.document, stream)
    key = hashlib.sha256(
        f"{out}\0{options.shard_bytes}\0{options.device}\0{mixes_to_json(stream.mixes)}".encode()
    ).hexdigest()[:16]
    how: Any = {"threads": options.threads, "device": options.device}
    yield from outcome.lines
    with temporary_output(out, key, resume=options.resume) as folder:
        files = lay_out(stream, folder, options.shard_bytes)
        size = sum(file.nbytes for file in files)
        with bar("writing", size) as advance:
            write_files(files, resume=options.resume, advance=advance, **how)
        if options.verify:
            with bar("verifying", size) as advance:
                verify_files(files, advance=advance, **how)
        written = merge.document.get("out_dtype") or merge.document.get("dtype")
        copy_donor_files(stream.donor, folder, written)
        if outcome.record:
            name = REVERT_PLAN_FILE if isinstance(stream, RevertStream) else PLAN_FILE
            write_text(folder / name, json.dumps(outcome.record, indent=2) + "\n")
        write_text(folder / "README.md", card(merge.document, merge.text, out.name, outcome.card))
        write_text(folder / "mergekit_config.yml", merge.text)
        _sync(folder)
    _sync(out.parent)
    checked = ", read again and compared" if options.verify else ""
    yield f"{out}: {len(stream.mixes)} tensors in {size / 1e9:.2f} GB{checked}"


def _why_mergekit(document: Mapping[str, Any]) -> str | None:
    """Return why a recipe needs mergekit by what it says; recipes of ours are checked first."""
    method = document.get("merge_method")
    if method == LAYER_SWAP:
        LayerSwapDocument.read(document)
    elif method == DELTA_REVERT:
        RevertDocument.read(document)
    elif method not in ("linear", "passthrough"):
        return f"its method is {method}"
    elif not _is_list_of_models(document):
        return f"what it says of {method} is more than a list of models"
    if can_stream(document):
        problems = list(dtype_problems(**{k: document.get(k) for k in ("dtype", "out_dtype")}))
        if problems:
            raise InputError.from_problems(f"{method} recipe", problems)
        return None
    keys = [key for key in document if key not in KNOWN]
    return f"it has {keys[0]}:" if keys else f"what it says of {method} is more than weights"


def _is_list_of_models(document: Mapping[str, Any]) -> bool:
    """Return whether a recipe has the form that `can_stream` takes for granted."""
    models, base = document.get("models"), document.get("base_model")
    if not isinstance(models, list) or not models or not isinstance(base, str | None):
        return False
    if not all(isinstance(entry, dict) and isinstance(entry.get("model"), str) for entry in models):
        return False
    if not all(isinstance(entry.get("parameters") or {}, dict) for entry in models):
        return False
    return base in (None, models[0]["model"])


def _outcome(document: Mapping[str, Any], stream: WeightStream) -> Outcome:
    """Return what plan file, card and log say."""
    if isinstance(stream, SwapStream):
        swap = LayerSwapDocument.read(document)
        if (warning := swap_report.most_swapped(swap.parameters, stream.plan)) is not None:
            LOG.warning("%s", warning)
        found = swap_report.plan_record(swap, stream.plan, tokenizer_from=stream.tokenizer_from)
        if stream.measured is not None:
            found["deltas"] = stream.measured
        return Outcome(found, tuple(swap_report.log_lines(found)), swap_report.card(found))
    if isinstance(stream, RevertStream):
        revert = RevertDocument.read(document)
        spec, layers = revert.parameters, stream.layers
        found = revert_report.plan_record(revert, layers, stream.num_layers, stream.threshold)
        kept = revert_report.outcome(spec, found, stream.tally)
        return replace(kept, lines=(*revert_report.log_lines(spec, found), *kept.lines))
    return Outcome({})


def _sync(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
