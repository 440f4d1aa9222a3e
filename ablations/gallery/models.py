"""What can be known of a recipe's model without its weights: config and headers. Merges nothing."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from ablations.models.find import find_model
from layerswap_method.checkpoint.checkpoint import Checkpoint, read_checkpoint
from layerswap_method.checkpoint.config import read_config
from layerswap_method.errors import InputError, first_line
from layerswap_method.recipe.references import is_folder, is_hub_id, is_there

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

    error: str | None = None
    """What a merge says of it; None where the hub may have it."""


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
        if not any(_is_on_hub(part) for part in reference.split("+")):
            return Known(reference, problem=_short(error, reference), error=error.message)
        model = reference.partition("+")[0]
        if not hub or not _is_on_hub(model):
            return Known(reference, problem="is not on this machine")
        return _from_hub(reference, model)
    weights = ("*.safetensors", "*.bin", "*.pt*")
    if not any(next(folder.glob(each), None) for each in weights):  # a cache with the config only
        return Known(reference, depth=read_config(reference, folder).num_hidden_layers)
    checkpoint = read_checkpoint(reference, folder)
    return Known(reference, depth=checkpoint.num_layers, checkpoint=checkpoint)


def _is_on_hub(path: str) -> bool:
    return is_hub_id(path) and not is_there(path) and not is_folder(Path(path).parent)


@functools.cache
def _hub_answers(endpoint: str) -> bool:
    """Return whether the hub can be reached, tried once: huggingface_hub tries five times."""
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
