"""Prefix-tuning adapters as keys and values by layer, read from peft's files.

peft saves what its encoder gives, also of an encoder with a projection: one row per prefix token,
and in it for each layer a key and a value of all heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from layerswap_method.checkpoint.lora import read_adapter_config, read_adapter_tensors
from layerswap_method.checkpoint.stored import FLOATS, StoredTensor
from layerswap_method.errors import InputError

PREFIX_TENSOR = "prompt_embeddings"
"""The one tensor of such an adapter: tokens x (layers * 2 * width)."""

_NUMBERS = ("num_virtual_tokens", "num_layers", "token_dim", "num_attention_heads")


@dataclass(frozen=True)
class Prefix:
    """One prefix-tuning adapter."""

    config: Mapping[str, Any] = field(repr=False)
    """Its ``adapter_config.json``."""

    stored: StoredTensor
    """Its keys and values: `length` x (`layers` * 2 * `width`)."""

    length: int
    """Number of prefix tokens."""

    layers: int
    """Number of decoder layers."""

    width: int
    """Values of one key, all heads together."""

    heads: int
    """Number of key-value heads."""


def read_prefix(adapter: Path) -> Prefix:
    """Return a prefix-tuning adapter; only headers are read.

    Raises:
        InputError: where it is damaged, or its tensor is not what the config says.
    """
    config = read_adapter_config(adapter)
    stored = read_adapter_tensors(adapter)
    values: list[Any] = [config.get(name) for name in _NUMBERS]
    length, layers, width, heads = values
    problems = [
        f"{name} is {config.get(name)!r}"
        for name in _NUMBERS
        if type(config.get(name)) is not int or config[name] < 1
    ]
    if config.get("num_transformer_submodules", 1) not in (None, 1):
        problems.append("it is of an encoder and a decoder (num_transformer_submodules)")
    if set(stored) != {PREFIX_TENSOR}:
        problems.append(f"it holds {', '.join(sorted(stored)[:3])} and not {PREFIX_TENSOR} alone")
    elif not problems:
        found = stored[PREFIX_TENSOR]
        if found.shape != (length, layers * 2 * width) or found.dtype not in FLOATS:
            problems.append(
                f"{PREFIX_TENSOR} is {list(found.shape)} in {found.dtype}, and the config says "
                f"[{length}, {layers} * 2 * {width}] of floats"
            )
    if problems:
        raise InputError(f"{adapter}: cannot be read as a prefix: {'; '.join(problems)}")
    return Prefix(config, stored[PREFIX_TENSOR], length, layers, width, heads)
