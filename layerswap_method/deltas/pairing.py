"""Whether two checkpoints are an expert and its base, as far as headers and config.json say.

Knows the fields of ``config.json``; not transformers. Its config classes cost seconds and 200 MB
to import (transformers 5 imports half of itself for one of them), for a handful of fields.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from layerswap_method.checkpoints import Checkpoint, own_problems, pair_problems, read_checkpoint
from layerswap_method.errors import InputError
from layerswap_method.tensors import decoder_layer

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


def read_sides(
    expert: tuple[str, Path], base: tuple[str, Path]
) -> tuple[Checkpoint, Checkpoint, RawConfig]:
    """Return the headers of an expert and of its base, each a (name, folder), and base's config.

    Raises:
        InputError: for files that cannot be read.
    """
    configs = [read_config(*side) for side in (expert, base)]
    checkpoints = [
        read_checkpoint(*side, config) for side, config in zip((expert, base), configs, strict=True)
    ]
    # What holds where a config is silent depends on the model's class: the files tell.
    has_head = all(any(name.endswith(_HEADS) for name in c.shapes) for c in checkpoints)
    ours, theirs = (
        replace(
            checkpoint,
            num_layers=config.num_hidden_layers or _stored_layers(checkpoint),
            tied=not has_head if config.tie_word_embeddings is None else checkpoint.tied,
        )
        for checkpoint, config in zip(checkpoints, configs, strict=True)
    )
    return ours, theirs, configs[1]


def pairing_problems(expert: Checkpoint, base: Checkpoint) -> Iterator[str]:
    """Yield why a delta of the two cannot be had; nothing where it can."""
    for side in (base, expert):
        yield from own_problems(side)
    rows = [
        name
        for name, shape in base.shapes.items()
        if (other := expert.shapes.get(name, shape)) != shape
        and len(shape) == 2
        and other[1:] == shape[1:]
        and (shape[0] == base.vocab_size or other[0] == expert.vocab_size)
    ]
    for name in rows[:1]:
        yield (
            f"{expert.name} and {base.name} have different vocabularies: {name} has "
            f"{expert.shapes[name][0]} and {base.shapes[name][0]} rows; a delta needs the base "
            "with the expert's vocabulary (load the base, resize_token_embeddings, save it)"
        )
    copies = [name for name in (*base.shapes, *expert.shapes) if name.endswith(_HEADS)]
    for problem in pair_problems(base, expert, vocabulary=[*rows, *copies], aligned=True):
        yield problem.replace("layer swapping needs experts of", "an expert and its base are of")


def _stored_layers(checkpoint: Checkpoint) -> int | None:
    layers = map(decoder_layer, checkpoint.shapes)
    return max((layer + 1 for layer in layers if layer is not None), default=None)
