"""Whether two checkpoints are an expert and its base, as far as headers and config.json say.

Knows the fields of ``config.json``; not transformers. Its config classes cost seconds and 200 MB
to import (transformers 5 imports half of itself for one of them), for a handful of fields.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layerswap_method.errors import InputError

_TEXT = ("text_config", "llm_config", "language_config")
_DEPTH = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HEADS = ("lm_head.weight", "embed_out.weight")


@dataclass(frozen=True)
class RawConfig:
    """What a ``config.json`` says, under the names of transformers."""

    model_type: str
    """Of the whole model."""

    text_type: str
    """Of its text model; `model_type` where there is no other."""

    architectures: tuple[str, ...]
    """Class names."""

    num_hidden_layers: int | None
    """Decoder layers."""

    vocab_size: int | None
    """Rows of the embedding."""

    tie_word_embeddings: bool | None
    """Whether input and output embeddings are one tensor; None where the default holds."""

    quantization_config: Mapping[str, Any] | None
    """None for plain weights."""


def read_config(name: str, folder: Path) -> RawConfig:
    """Return the config of the checkpoint in `folder`.

    Raises:
        InputError: where there is none, or one that is no config; starting with `name`.
    """
    try:
        document = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{name}: {folder}: no readable config: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("model_type"), str):
        raise InputError(f"{name}: {folder}: no readable config: config.json names no model_type")
    text = next((document[k] for k in _TEXT if isinstance(document.get(k), dict)), document)

    def first(kind: type, *keys: str) -> Any:
        values = (part.get(key) for key in keys for part in (text, document))
        return next((v for v in values if isinstance(v, kind)), None)

    return RawConfig(
        model_type=document["model_type"],
        text_type=first(str, "model_type"),
        architectures=tuple(document.get("architectures") or ()),
        num_hidden_layers=first(int, *_DEPTH),
        vocab_size=first(int, "vocab_size"),
        tie_word_embeddings=first(bool, "tie_word_embeddings"),
        quantization_config=first(dict, "quantization_config"),
    )
