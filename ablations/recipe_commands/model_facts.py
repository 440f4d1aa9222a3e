"""The facts of a model that a check goes by, from this machine or from the hub."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import NamedTuple

from ablations.models.find import find_model
from ablations.recipe_commands.findings import UNCHECKED, Finding
from layerswap_method.checkpoint.checkpoint import Checkpoint, read_checkpoint
from layerswap_method.checkpoint.config import read_config
from layerswap_method.checkpoint.lora import (
    check_for_peft,
    is_lora,
    other_base,
    read_adapter_config,
    read_changes,
    unsupported_kind,
)
from layerswap_method.checkpoint.origin import adapter_faults
from layerswap_method.errors import InputError, LayerSwapError
from layerswap_method.hub.downloads import Downloads
from layerswap_method.hub.refusals import hub_answers, is_refusal
from layerswap_method.recipe.references import (
    PLACEHOLDER,
    Model,
    is_folder,
    is_hub_id,
    is_placeholder,
    is_there,
)


class ModelFacts(NamedTuple):
    """The facts of a model that this machine, or the hub, has."""

    depth: int | None = None
    """Decoder layers; None where no config states it."""

    checkpoint: Checkpoint | None = None
    """Its headers, without the adapter; None where they cannot be had."""

    files: Model | None = None
    """Where it is, with its `checkpoint`."""

    finding: Finding | None = None
    """Why there are no facts of it, or what is odd about its adapter."""

    adapter: Path | None = None


def look_up(
    reference: str, *, hub: bool, source: Downloads | None = None, recipe: Path | None = None
) -> ModelFacts:
    """Return the facts of a model: of its headers if they can be had, else, with `hub`, its config.

    With `source` the headers of a model on the hub are fetched where they can be: what is in the
    cache may be an older commit than the one that a merge takes. `recipe` is as in `find_model`.

    Raises:
        InputError: for a checkpoint that cannot be read.
    """
    model, _, adapter = reference.partition("+")
    placeholders = [part for part in (model, adapter) if is_placeholder(part)]
    is_remote = any(is_on_hub(part) for part in (model, adapter))
    if source is not None and is_remote and not placeholders:
        facts = _look_up_by_source(reference, source)
        if facts is not None:
            return facts
    try:
        files = find_model(reference, download=False, recipe=recipe)
    except InputError as error:
        placeholder = Finding("note", f"{', '.join(placeholders)}: {PLACEHOLDER}; {UNCHECKED}")
        if model in placeholders:
            return ModelFacts(finding=placeholder)
        if not is_remote:
            return ModelFacts(finding=Finding("error", error.message))
        facts = _look_up_config(reference, hub=hub)
        return facts._replace(finding=placeholder) if placeholders else facts
    weights = ("*.safetensors", "*.bin", "*.pt*")
    if not any(next(files.folder.glob(pattern), None) for pattern in weights):
        if is_on_hub(model):
            return _look_up_config(reference, files.folder, hub=hub)
        depth = read_config(reference, files.folder).num_hidden_layers
        missing = Finding("error", f"{reference}: has no weights; download or copy them there")
        return ModelFacts(depth, finding=missing)
    return _facts_of(reference, files)


def _facts_of(reference: str, files: Model) -> ModelFacts:
    """Return the facts of a model whose headers, and those of its adapter, are here."""
    checkpoint = read_checkpoint(reference, files.folder, files.adapter)
    warnings: list[str] = []
    if files.adapter is not None:
        warnings += filter(None, [other_base(files.adapter, checkpoint)])
        kind = unsupported_kind(read_adapter_config(files.adapter))
        if kind is None or not is_lora(files.adapter):  # raises for one that does not fit
            changes = read_changes(files.adapter, checkpoint)
            warnings += adapter_faults(reference, changes)
        else:  # mergekit merges it
            check_for_peft(files.adapter, checkpoint)
    finding = Finding("warning", "; ".join(warnings)) if warnings else None
    return ModelFacts(checkpoint.num_layers, checkpoint, files, finding, files.adapter)


def _look_up_by_source(reference: str, source: Downloads) -> ModelFacts | None:
    """Return the facts of a model on the hub as a merge finds it; None where this cannot be known.

    Without the network that is a model in the cache, or one of which a merge fetched the headers.
    """
    from huggingface_hub import constants

    if not constants.HF_HUB_OFFLINE and not hub_answers():
        return None
    try:
        files = find_model(reference, hub=source)
    except LayerSwapError as error:
        if constants.HF_HUB_OFFLINE:
            return None
        finding = Finding("note", f"{error.message}; {UNCHECKED}")
        if is_refusal(error):
            finding = Finding("error", error.message)
        return _look_up_config(reference, hub=True)._replace(finding=finding)
    return _facts_of(reference, files)


def _look_up_config(reference: str, cached: Path | None = None, *, hub: bool) -> ModelFacts:
    """Return the facts of a model of which something is not here; its config may be `cached`."""
    model = reference.partition("+")[0]
    why = "its weights are not on this machine" if cached is not None else "is not on this machine"
    if hub and is_on_hub(model) and not hub_answers():
        why += ", and the hub cannot be reached"
    finding = Finding("note", f"{reference}: {why}; {UNCHECKED}")
    if hub and is_on_hub(model):
        cached = cached or _config_from_hub(model)
    depth = None if cached is None else read_config(reference, cached).num_hidden_layers
    return ModelFacts(depth, finding=finding)


def is_on_hub(path: str) -> bool:
    """Return whether a part of a reference is a hub id, and nothing on this machine."""
    return is_hub_id(path) and not is_there(path) and not is_folder(Path(path).parent)


def _config_from_hub(model: str) -> Path | None:
    from huggingface_hub import hf_hub_download

    repository, _, revision = model.partition("@")
    with contextlib.suppress(Exception):  # gated, or no such model
        if hub_answers():
            file = hf_hub_download(repository, "config.json", revision=revision or None)
            return Path(file).parent
    return None
