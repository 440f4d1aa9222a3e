"""What can be known of a recipe's model without its weights: config and headers."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from ablations.models.find import find_model
from layerswap_method.checkpoint.checkpoint import Checkpoint, read_checkpoint
from layerswap_method.checkpoint.config import read_config
from layerswap_method.checkpoint.lora import other_base
from layerswap_method.errors import InputError
from layerswap_method.recipe.references import is_folder, is_hub_id, is_there

_PATIENCE_S = 5.0


@dataclass(frozen=True)
class Known:
    """A model as far as it can be known here."""

    depth: int | None = None
    """Decoder layers; None where no config states it."""

    checkpoint: Checkpoint | None = None
    """Its headers, without the adapter; None where the weights are not on this machine."""

    warnings: tuple[str, ...] = ()
    """What a merge says of the model alone."""

    problem: str | None = None
    """Why nothing is known of it; None where something is."""

    is_missing: bool = False
    """Whether it is neither here nor, by its name, on the hub."""


def look_up(reference: str, *, hub: bool) -> Known:
    """Return what is known of a model: its headers if it is here, else its config from the hub.

    Args:
        reference: as a recipe writes it.
        hub: whether the config may be fetched from the hub.

    Raises:
        InputError: for a checkpoint that is here and cannot be read.
    """
    try:
        found = find_model(reference, download=False)
    except InputError as error:
        if not any(_is_on_hub(part) for part in reference.split("+")):
            return Known(problem=error.message, is_missing=True)
        model = reference.partition("+")[0]
        away = f"{reference}: is not on this machine"
        if not hub or not _is_on_hub(model):
            return Known(problem=away)
        folder = _config_from_hub(model)
        if folder is None:
            return Known(problem=f"{away}, and the hub gave no config")
        return Known(depth=read_config(reference, folder).num_hidden_layers)
    weights = ("*.safetensors", "*.bin", "*.pt*")
    if not any(next(found.folder.glob(each), None) for each in weights):  # a cached config only
        return Known(depth=read_config(reference, found.folder).num_hidden_layers)
    checkpoint = read_checkpoint(reference, found.folder)
    other = None if found.adapter is None else other_base(found.adapter, checkpoint)
    warnings = () if other is None else (other,)
    return Known(depth=checkpoint.num_layers, checkpoint=checkpoint, warnings=warnings)


def _is_on_hub(path: str) -> bool:
    return is_hub_id(path) and not is_there(path) and not is_folder(Path(path).parent)


def _config_from_hub(model: str) -> Path | None:
    """Return the folder of a model's config; None where the hub gives none."""
    from huggingface_hub import constants, hf_hub_download

    repository, _, revision = model.partition("@")
    if not _hub_answers(constants.ENDPOINT):
        return None
    try:
        return Path(hf_hub_download(repository, "config.json", revision=revision or None)).parent
    except Exception:  # gated, or no such model
        return None


@functools.cache
def _hub_answers(endpoint: str) -> bool:
    """Return whether the hub can be reached, tried once: huggingface_hub tries five times."""
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

    try:
        get_session().head(endpoint, timeout=_PATIENCE_S)
    except Exception:  # no network, or downloads are switched off
        return False
    return True
