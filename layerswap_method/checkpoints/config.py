"""The one reader of ``config.json``. Knows the fields of transformers' configs; not transformers.

Its config classes cost seconds and 200 MB to import (transformers 5 imports half of itself for one
of them), for a handful of fields. What a config leaves out is None here: what holds then depends on
the model's class, and the files tell (`compatible`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from layerswap_method.errors import InputError
from layerswap_method.frozen import Frozen

_TEXT = ("text_config", "llm_config", "language_config")
_DEPTH = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")


class ModelConfig(Frozen):
    """What a ``config.json`` says, under the names of transformers."""

    model_type: str
    """Of the whole model."""

    text_type: str
    """Of its text model; `model_type` where there is no other."""

    architecture: str
    """The first class name, such as `LlamaForCausalLM`; `unknown` where there is none."""

    num_hidden_layers: int | None
    """Decoder layers."""

    vocab_size: int | None
    """Rows of the embedding."""

    tie_word_embeddings: bool | None
    """Whether input and output embeddings are one tensor."""

    quantization: str | None
    """The quantisation method (`?` where it has no name); None for plain weights."""

    dtype: str | None
    """torch dtype that engines compute in, such as `bfloat16`."""


def read_config(name: str, folder: Path) -> ModelConfig:
    """Return the config of the checkpoint in `folder`.

    Raises:
        InputError: where there is none, or one that is no config; starting with `name`.
    """
    document = read_document(name, folder)
    text = text_part(document)

    def stated(kind: type, *keys: str) -> list[Any]:
        values = (part.get(key) for key in keys for part in (text, document))
        return [value for value in values if type(value) is kind]

    ties = stated(bool, "tie_word_embeddings")
    names = document.get("architectures")
    dtype = document.get("dtype") or document.get("torch_dtype")
    quantization = next(iter(stated(dict, "quantization_config")), None)
    return ModelConfig(
        model_type=document["model_type"],
        text_type=stated(str, "model_type")[0],
        architecture=str(names[0]) if isinstance(names, list) and names else "unknown",
        num_hidden_layers=next(iter(stated(int, *_DEPTH)), None),
        vocab_size=next(iter(stated(int, "vocab_size")), None),
        tie_word_embeddings=any(ties) if ties else None,
        quantization=None if quantization is None else str(quantization.get("quant_method", "?")),
        dtype=dtype.removeprefix("torch.") if isinstance(dtype, str) and dtype != "auto" else None,
    )


def read_document(name: str, folder: Path) -> dict[str, Any]:
    """Return the ``config.json`` in `folder`, as it is.

    Raises:
        InputError: where there is none, or one that is no config; starting with `name`.
    """
    try:
        document = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if not isinstance(document, dict) or not isinstance(document.get("model_type"), str):
            raise ValueError("config.json names no model_type")
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{name}: {folder}: no readable config: {error}") from error
    return document


def text_part(document: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a config that is about the text model; the whole where it is all."""
    return next((document[k] for k in _TEXT if isinstance(document.get(k), dict)), document)
