"""What can be known of a recipe's model without its weights: config and headers. Merges nothing."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from ablations.models.find import build_hint, find_model
from layerswap_method.checkpoints.config import read_config
from layerswap_method.checkpoints.headers import Checkpoint, read_checkpoint
from layerswap_method.errors import InputError, first_line

_PATIENCE_S = 5.0


@dataclass(frozen=True)
class Known:
    """A model as far as it can be known here."""

    reference: str
    """As the recipe writes it."""

    depth: int | None = None
    """Decoder layers; None where no config states it."""

    checkpoint: Checkpoint | None = None
    """Its headers; None where the weights are not on this machine. Without the adapter."""

    problem: str | None = None
    """Why nothing is known of it; None where something is."""

    is_missing: bool = False
    """Whether it is a folder that is not there, and that no build of ours makes."""


def look_up(reference: str, *, hub: bool) -> Known:
    """Return what is known of a model: its headers if it is here, else its config from the hub.

    Args:
        reference: as a recipe writes it.
        hub: whether the hub may be asked for the config.

    Raises:
        InputError: for a checkpoint that is here and cannot be read.
    """
    try:
        folder = find_model(reference, download=False).folder
    except InputError as error:
        model = reference.partition("+")[0]
        if model.count("/") != 1 or not may_be_hub_id(model):
            is_missing = not may_be_hub_id(model) and not build_hint(model)
            return Known(reference, problem=_short(error, reference), is_missing=is_missing)
        if not hub:
            return Known(reference, problem="is not on this machine")
        return _from_hub(reference, model)
    if not any(folder.glob("*.safetensors")):  # a cache that holds the config only
        return Known(reference, depth=read_config(reference, folder).num_hidden_layers)
    checkpoint = read_checkpoint(reference, folder)
    return Known(reference, depth=checkpoint.num_layers, checkpoint=checkpoint)


def may_be_hub_id(model: str) -> bool:
    """Return whether a model's name is no path: ``name``, or ``owner/name`` of no folder here."""
    owner, slash, _ = model.partition("/")
    is_path = model.startswith((".", "/", "~")) or model.count("/") > 1
    return not is_path and not (slash and Path(owner).is_dir())


@functools.cache
def _hub_answers(endpoint: str) -> bool:
    """Return whether the hub can be reached: asked once, for huggingface_hub tries five times."""
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

    try:
        get_session().head(endpoint, timeout=_PATIENCE_S)
    except Exception:  # no network, or downloads are switched off
        return False
    return True


def _from_hub(reference: str, model: str) -> Known:
    from huggingface_hub import constants, hf_hub_download

    if not _hub_answers(constants.ENDPOINT):
        return Known(reference, problem="is not on this machine, and the hub cannot be reached")
    repository, _, revision = model.partition("@")
    try:
        config = Path(hf_hub_download(repository, "config.json", revision=revision or None))
    except Exception:  # offline, gated, or no such model
        return Known(reference, problem="is not on this machine, and the hub gave no config")
    return Known(reference, depth=read_config(reference, config.parent).num_hidden_layers)


def _short(error: InputError, reference: str) -> str:
    """Return an error without the name that it begins with."""
    return first_line(error).removeprefix(f"{reference}: ").removeprefix(f"{reference} ")
