"""Facts of checkpoints on disk and whether two of them can be merged layer by layer.

Knows safetensors headers and config fields; reads no tensor data. Not mergekit, not recipes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from layerswap_method.errors import InputError, first_line

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_FLOATS = ("BF16", "F16", "F32", "F64")
"""What weights may be stored as; integers and smaller floats are quantised."""

_SHOWN = 3
"""Tensors named in one message."""


@dataclass(frozen=True)
class Checkpoint:
    """What the headers and the config of one checkpoint say."""

    name: str
    """As the recipe writes it."""

    path: Path
    """The folder on this machine."""

    architecture: str
    """The class in the config, such as `LlamaForCausalLM`."""

    num_layers: int | None
    """Decoder layers; None where the config has no such field."""

    vocab_size: int | None
    """Rows of the embedding, as the config says."""

    tied: bool
    """Whether input and output embeddings are one tensor."""

    quantization: str | None
    """The quantisation method in the config; None for plain weights."""

    shapes: Mapping[str, tuple[int, ...]] = field(repr=False)
    """Tensor name -> shape."""

    dtypes: Mapping[str, str] = field(repr=False)
    """Tensor name -> dtype as safetensors writes it, such as `BF16`."""

    files: Mapping[str, Path] = field(default_factory=dict, repr=False)
    """Tensor name -> the file that holds it."""

    def depth(self) -> int:
        """Return `num_layers`.

        Raises:
            InputError: where the config does not say it.
        """
        if self.num_layers is None:
            raise InputError(f"{self.name}: its config does not say how many layers it has")
        return self.num_layers


def read_config(name: str, folder: Path) -> Any:
    """Return the transformers config of the checkpoint in `folder`.

    Raises:
        InputError: with `name`, where there is none that transformers can read.
    """
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(folder)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{name}: {folder}: no readable config: {first_line(error)}") from error


def read_checkpoint(name: str, path: Path, config: Any) -> Checkpoint:
    """Return the facts of the checkpoint in folder `path`.

    Args:
        name: how the recipe names it, for messages.
        path: the folder with `model.safetensors` or its index.
        config: its transformers config.

    Raises:
        InputError: for a folder without safetensors (pickle-only or empty), or a shard that the
            index names but that is missing, damaged, or lacks a tensor that the index places
            there.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    dtypes: dict[str, str] = {}
    files: dict[str, Path] = {}
    for shard, listed in _shards(name, path):
        header = {key: (dtype, shape) for key, dtype, shape in _header(name, shard)}
        absent = [key for key in listed or () if key not in header]
        if absent:
            raise InputError(
                f"{name}: {_INDEX} names {len(absent)} tensors that {shard.name} does not hold: "
                f"{name_list(absent)}; download the checkpoint again"
            )
        for key, (dtype, shape) in header.items():
            if listed is None or key in listed:  # mergekit sees no others
                shapes[key], dtypes[key], files[key] = shape, dtype, shard
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    quantization = getattr(config, "quantization_config", None)
    if quantization is not None and not isinstance(quantization, dict):
        quantization = quantization.to_dict()
    return Checkpoint(
        name=name,
        path=path,
        architecture=(getattr(config, "architectures", None) or ["unknown"])[0],
        num_layers=getattr(text, "num_hidden_layers", None),
        vocab_size=getattr(text, "vocab_size", None),
        tied=bool(
            getattr(config, "tie_word_embeddings", None)
            or getattr(text, "tie_word_embeddings", False)
        ),
        quantization=None if quantization is None else str(quantization.get("quant_method", "?")),
        shapes=shapes,
        dtypes=dtypes,
        files=files,
    )


def is_buffer(name: str) -> bool:
    """Return whether `name` is a constant that older checkpoints stored, not a weight."""
    return name.endswith(
        ("inv_freq", "masked_bias", ".attn.bias", ".attention.bias", "position_ids")
    )


def name_list(names: list[str]) -> str:
    """Return the first few names and how many more there are."""
    return ", ".join(names[:_SHOWN]) + _more(names)


def _more(names: list[str]) -> str:
    return f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""


def _shards(name: str, path: Path) -> list[tuple[Path, set[str] | None]]:
    """Return each file of weights, with the tensors the index places in it (None: no index).

    As in mergekit, an index goes before a single file; transformers does it the other way round.
    """
    if not path.is_dir():
        raise InputError(f"{name}: {path} is no folder")
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
                f"{name}: {index} places {key} in {file!r}, which is no file name; download it "
                "again"
            )
    return found


def _header(name: str, shard: Path) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(shard), framework="pt") as opened:
            for key in opened.keys():  # noqa: SIM118 - safe_open is no mapping
                part = opened.get_slice(key)
                yield key, part.get_dtype(), tuple(part.get_shape())
    except (OSError, SafetensorError) as error:
        raise InputError(f"{name}: {shard.name} is damaged ({error}); get it again") from error
