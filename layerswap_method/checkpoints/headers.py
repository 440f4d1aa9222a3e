"""One checkpoint: its config and every stored tensor. Knows files; reads no tensor data.

Not mergekit, not recipes, not adapters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from layerswap_method.algorithm.tensor_names import decoder_layer
from layerswap_method.checkpoints.config import ModelConfig, read_config
from layerswap_method.checkpoints.stored import StoredTensor, read_header
from layerswap_method.errors import InputError

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_HEADS = ("lm_head.weight", "embed_out.weight")
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight")
"""How the names of output and input embeddings end."""

_SHOWN = 3
"""Tensors named in one message."""


@dataclass(frozen=True)
class Checkpoint:
    """What the headers and the config of one checkpoint say."""

    name: str
    """As the recipe writes it."""

    path: Path
    """The folder on this machine."""

    config: ModelConfig
    """What its ``config.json`` says."""

    tensors: Mapping[str, StoredTensor] = field(repr=False)
    """Tensor name -> place, in the order of the files."""

    @cached_property
    def num_layers(self) -> int | None:
        """Return the decoder layers: as the config says, else as the tensors' names say."""
        stored = (decoder_layer(name) for name in self.tensors)
        counted = max((layer + 1 for layer in stored if layer is not None), default=None)
        return self.config.num_hidden_layers or counted

    @cached_property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return tensor name -> shape."""
        return {name: tensor.shape for name, tensor in self.tensors.items()}

    @cached_property
    def head(self) -> str | None:
        """Return the name of the stored output embedding; None where none is stored."""
        return next((name for name in self.tensors if name.endswith(_HEADS)), None)

    @cached_property
    def embedding(self) -> str | None:
        """Return the name of the stored input embedding; None where its name is not known."""
        return next((name for name in self.tensors if name.endswith(_EMBEDDINGS)), None)

    def depth(self) -> int:
        """Return `num_layers`.

        Raises:
            InputError: where neither config nor names say it.
        """
        if self.num_layers is None:
            raise InputError(f"{self.name}: its config does not say how many layers it has")
        return self.num_layers


def read_checkpoint(name: str, path: Path) -> Checkpoint:
    """Return the facts of the checkpoint in folder `path`.

    Args:
        name: how the recipe names it, for messages.
        path: the folder with ``config.json`` and `model.safetensors` or its index.

    Raises:
        InputError: for a folder without a config or without safetensors (pickle-only or empty), or
            a shard that the index names but that is missing, damaged, or lacks a tensor that the
            index places there.
    """
    config = read_config(name, path)
    tensors: dict[str, StoredTensor] = {}
    for shard, listed in _shards(name, path):
        header = read_header(shard, f"{name}: {shard.name}")
        absent = [key for key in listed or () if key not in header]
        if absent:
            raise InputError(
                f"{name}: {_INDEX} names {len(absent)} tensors that {shard.name} does not hold: "
                f"{name_list(absent)}; download the checkpoint again"
            )
        # mergekit sees no tensors that the index does not list
        tensors |= {key: at for key, at in header.items() if listed is None or key in listed}
    return Checkpoint(name, path, config, tensors)


def is_head(name: str) -> bool:
    """Return whether a tensor is the output embedding, which may be tied to the input's."""
    return name.endswith(_HEADS)


def is_buffer(name: str) -> bool:
    """Return whether `name` is a constant that older checkpoints stored, not a weight."""
    return name.endswith(
        ("inv_freq", "masked_bias", ".attn.bias", ".attention.bias", "position_ids")
    )


def name_list(names: Sequence[str], shown: int = _SHOWN) -> str:
    """Return the first few names and how many more there are."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def _shards(name: str, path: Path) -> list[tuple[Path, set[str] | None]]:
    """Return each file of weights, with the tensors the index places in it (None: no index).

    As in mergekit, an index goes before a single file; transformers does it the other way round.
    """
    if not path.is_dir():
        raise InputError(f"{name}: {path} is not a folder")
    index = path / _INDEX
    if not index.is_file():
        return [(_single(name, path), None)]
    shards: dict[str, set[str]] = {}
    for key, file in _weight_map(name, index).items():
        shards.setdefault(file, set()).add(key)
    absent = [file for file in sorted(shards) if not (path / file).is_file()]
    if absent:
        raise InputError(
            f"{name}: {len(absent)} of {len(shards)} shards are missing in {path}: "
            f"{name_list(absent)}; download the checkpoint again"
        )
    return [(path / file, shards[file]) for file in sorted(shards)]


def _single(name: str, path: Path) -> Path:
    if (path / _SINGLE).is_file():
        return path / _SINGLE
    pickles = sorted(path.glob("*.bin")) + sorted(path.glob("*.pt*"))
    if pickles:
        raise InputError(
            f"{name}: only pickled weights ({pickles[0].name}); loading a pickle can run code. "
            "Convert it: AutoModelForCausalLM.from_pretrained(...).save_pretrained(DIR)"
        )
    raise InputError(f"{name}: no {_SINGLE} and no {_INDEX} in {path}")


def _weight_map(name: str, index: Path) -> dict[str, str]:
    try:
        document = json.loads(index.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{name}: {index} cannot be read ({error}); download it again") from error
    found = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(found, dict) or not found:
        raise InputError(f"{name}: {index} has no weight_map with tensors; download it again")
    for key, file in found.items():
        if not isinstance(file, str) or not file:
            raise InputError(
                f"{name}: {index} places {key} in {file!r}, which is not a file name; download it "
                "again"
            )
    return found
