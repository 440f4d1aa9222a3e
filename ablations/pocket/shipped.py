"""The base that ships with the package: its weights, and the note that proves them.

It saves a user the minutes of pretraining. `layerswap pocket build --retrain-base` trains the same
base again; on one machine the same bytes come out, on another one nearly the same.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablations.machine.fingerprint import hash_file
from layerswap_method.errors import InputError

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

FOLDER = Path(__file__).parent / "shipped"
WEIGHTS = FOLDER / "base.safetensors"

LOSS_INTERVAL = 20
"""Steps over which a recorded loss is averaged."""


def read_note() -> Any:
    """Return what ``base.json`` says of the shipped weights.

    Returns:
        ``key`` of the stage that trained them (version, shape, training, seed), ``seed``,
        ``sha256``, ``licence`` (SPDX), ``rebuild`` (a command), ``losses`` (means over 20 steps,
        nats per learned token) and ``scores``: task -> exact match (comprehension: accuracy) of
        its first 300 items.
    """
    return json.loads((FOLDER / "base.json").read_text(encoding="utf-8"))


def is_shipped(key: str) -> bool:
    """Return whether the shipped base is the one of `key`.

    Raises:
        InputError: the weights are missing, or are not those that the note names.
    """
    note = read_note()
    if note["key"] != key:
        return False
    sha256 = hash_file(WEIGHTS) if WEIGHTS.is_file() else "no file"
    if sha256 != note["sha256"]:
        raise InputError(
            f"{WEIGHTS}: the base that ships with layerswap should have SHA-256 "
            f"{note['sha256'][:12]}..., and has {sha256[:12]}; install layerswap again, or train "
            "the base with --retrain-base"
        )
    return True


def load_into(model: LlamaForCausalLM) -> None:
    """Replace all weights of `model` by the shipped ones (float32)."""
    from safetensors.torch import load_file

    state = load_file(WEIGHTS)
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state)
