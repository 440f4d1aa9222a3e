"""The base that ships with the package: its weights, and the note that proves them.

It saves a user the minutes of pretraining. `layerswap pocket build --retrain-base` trains the same
base again; on one machine the same bytes come out, on another one nearly the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ablations.machine.fingerprint import hash_file
from layerswap_method.errors import InputError
from layerswap_method.frozen import Frozen

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

FOLDER = Path(__file__).parent / "shipped"
WEIGHTS = FOLDER / "base.safetensors"

LOSS_INTERVAL = 20
"""Steps over which a recorded loss is averaged."""


class Note(Frozen):
    """What ``base.json`` says of the shipped weights."""

    key: str
    """Of the stage that trained them: version, shape, training and seed."""
    seed: int
    sha256: str
    """Of `WEIGHTS`."""
    licence: str
    """SPDX name."""
    rebuild: str
    """Command that trains the base again."""
    losses: tuple[float, ...]
    """Means over 20 steps each, nats per learned token: a rebuilt base follows them."""
    scores: dict[str, float]
    """Task -> exact match (comprehension: accuracy) of its first 300 items, when it was made."""


def read_note() -> Note:
    """Return the note beside the weights."""
    return Note.model_validate_json((FOLDER / "base.json").read_text(encoding="utf-8"))


def is_shipped(key: str) -> bool:
    """Return whether the shipped base is the one of `key`.

    Raises:
        InputError: the weights are missing, or are not those that the note names.
    """
    note = read_note()
    if note.key != key:
        return False
    found = hash_file(WEIGHTS) if WEIGHTS.is_file() else "no file"
    if found != note.sha256:
        raise InputError(
            f"{WEIGHTS}: the base that ships with layerswap should have SHA-256 "
            f"{note.sha256[:12]}..., found {found[:12]}; install layerswap again, or train the "
            "base with --retrain-base"
        )
    return True


def load_into(model: LlamaForCausalLM) -> None:
    """Replace all weights of `model` by the shipped ones (float32)."""
    from safetensors.torch import load_file

    state = load_file(WEIGHTS)
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state)
