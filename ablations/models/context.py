"""Where a checkpoint is, and what context its config allows. Reads no weights, starts no engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from layerswap_method.errors import InputError, nearest
from layerswap_method.recipe.references import is_folder


def locate(model: Checkpoint) -> str:
    """Return the model as transformers takes it: a folder, or a hub id, which is not looked up.

    Raises:
        InputError: for a folder that is not there, or holds no checkpoint.
    """
    path = Path(model)
    if is_folder(path):
        if not (path / "config.json").is_file():
            raise InputError(f"{path}: no config.json in it, so it is no checkpoint")
        return str(path)
    text = str(model)
    is_hub_id = isinstance(model, str) and text.count("/") == 1 and not text.startswith((".", "/"))
    if is_hub_id and not is_folder(path.parent):
        return text
    siblings = [each.name for each in path.parent.iterdir()] if is_folder(path.parent) else []
    raise InputError(f"{text}: no such checkpoint folder{nearest(path.name, siblings)}")


def check_context(model: str, asked: int | None) -> None:
    """Check that the model has positions for `asked` tokens, prompt and answer; None is its own.

    vLLM refuses more by itself; transformers goes on, and what comes after the last position that
    was trained is noise.

    Raises:
        InputError: where it has fewer.
        OSError: where there is no config to be read.
    """
    if asked is None:
        return
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model).get_text_config()
    stated = (getattr(config, name, None) for name in ("max_position_embeddings", "n_positions"))
    positions = next((each for each in stated if each is not None), None)
    if positions is not None and asked > positions * _stretch(config):
        raise InputError(
            f"{model}: a context of {asked} tokens (--max-model-len) is more than it has "
            f"positions for ({int(positions * _stretch(config))})"
        )


def _stretch(config: Any) -> float:
    """Return by how much rotary positions are stretched beyond what the config states."""
    rotary = getattr(config, "rope_parameters", None) or {}
    kinds = [each for each in (rotary, *rotary.values()) if isinstance(each, dict)]
    # Others (yarn, llama3, longrope) state the stretched number.
    stretched = [kind for kind in kinds if kind.get("rope_type") in ("linear", "dynamic")]
    return max((float(kind.get("factor") or 1) for kind in stretched), default=1.0)


Checkpoint = str | Path
"""A folder with a checkpoint, or the hub id of one in the local cache."""
