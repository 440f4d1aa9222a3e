"""The one reader of ``config.json``: the fields of transformers' configs that a merge needs.

transformers' own config classes cost seconds and 200 MB to import. A field that a config leaves out
is None here: its default depends on the model's class (see `compatible`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from layerswap_method.errors import InputError
from layerswap_method.file_names import ADAPTER_CONFIG
from layerswap_method.frozen import Frozen
from layerswap_method.hub.cache import file_roots
from layerswap_method.recipe.kinds import place_kind

_TEXT = ("text_config", "llm_config", "language_config", "thinker_config")
_SIZES = ("_layers", "n_layer", "_size", "_heads", "head_dim", "_experts")
"""Ends of the keys of sizes."""

_MOST_LAYERS, _LARGEST = 100_000, 1 << 31
"""No model has so many layers, or any size so large."""

LAYER_KEYS = (
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "layers",
    "decoder_layers",  # Kosmos-2, TrOCR
)
FURTHER_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")
"""Keys of the number of layers that predict further tokens (MTP)."""


class ModelConfig(Frozen):
    """The content of a ``config.json``, under the names of transformers.

    `architecture` is the first class name (or `unknown`), `quantization` the method (`?` where it
    has no name), `dtype` torch's. `further_layers` are the multi-token-prediction layers, stored
    after the decoder's.
    """

    model_type: str
    text_type: str
    """Model type of the text model; `model_type` where there is no other."""

    architecture: str
    num_hidden_layers: int | None
    further_layers: int
    vocab_size: int | None
    tie_word_embeddings: bool | None
    """None where nothing states it, and where the top level and the text model's part contradict
    each other: then transformers goes by the weights that are stored (see `compatible.ties`)."""

    quantization: str | None
    dtype: str | None


def own_file(name: str, folder: Path, file: Path) -> Path:
    """Return a file of a model folder; raise for a link that leads outside of the hub's cache.

    Weights may be such a link, as on clusters: they are only ever read as numbers. A file that is
    copied to an output folder may not: it could be any file of this user.
    """
    home, place = folder.resolve(), file.resolve()
    if place.is_file() and not any(root in place.parents for root in (home, *file_roots(home))):
        raise InputError(
            f"{name}: {file} is a link to {place}, outside of the model's folder; copy the file "
            "there in its place"
        )
    return file


def read_document(name: str, folder: Path) -> dict[str, Any]:
    """Return the ``config.json`` in `folder`, as it is.

    Raises `InputError`, which begins with `name`, where there is none or one that is no config.
    """
    try:
        file = own_file(name, folder, folder / "config.json")
        document = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(document, dict) or not isinstance(document.get("model_type"), str):
            raise ValueError("config.json names no model_type")
        for key, value in text_part(document).items():
            limit = _MOST_LAYERS if key in LAYER_KEYS else _LARGEST
            if type(value) is int and key.endswith(_SIZES) and not 0 <= value < limit:
                raise ValueError(f"config.json has {key} {value}, which no model has")
    except (OSError, ValueError, RecursionError) as error:
        fault = f"no readable config: {error}; correct config.json, or download it again"
        if isinstance(error, FileNotFoundError):
            is_adapter = (folder / ADAPTER_CONFIG).is_file()
            hint = f"; write BASE+{folder}" if is_adapter else place_kind(folder)
            fault = f"no config.json in it, so it is not a model's folder{hint}"
        raise InputError(f"{name}: {folder}: {fault}") from error
    return document


def text_part(document: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a config that is about the text model; the whole where it is all."""
    part = next((document[key] for key in _TEXT if isinstance(document.get(key), dict)), None)
    return document if part is None else text_part(part)  # Qwen's Omni models: thinker, then text


def read_config(name: str, folder: Path) -> ModelConfig:
    """Return the config of the checkpoint in `folder`. Raises as `read_document`."""
    return stated_config(read_document(name, folder))


def stated_config(document: dict[str, Any]) -> ModelConfig:
    """Return the fields of a ``config.json``, as `read_document` returns it, that a merge needs."""
    text = text_part(document)

    def stated(kind: type, *keys: str) -> list[Any]:
        values = (part.get(key) for key in keys for part in (text, document))
        return [value for value in values if type(value) is kind]

    ties = set(stated(bool, "tie_word_embeddings"))
    dtype = document.get("dtype") or document.get("torch_dtype")
    quantization = next(iter(stated(dict, "quantization_config")), None)
    return ModelConfig(
        model_type=document["model_type"],
        text_type=stated(str, "model_type")[0],
        architecture=architecture_of(document),
        num_hidden_layers=next(iter(stated(int, *LAYER_KEYS)), None),
        further_layers=next(iter(stated(int, "num_nextn_predict_layers")), 0),
        vocab_size=next(iter(stated(int, "vocab_size")), None),
        tie_word_embeddings=ties.pop() if len(ties) == 1 else None,
        quantization=None if quantization is None else str(quantization.get("quant_method", "?")),
        dtype=dtype.removeprefix("torch.") if isinstance(dtype, str) and dtype != "auto" else None,
    )


def stated_rope(text: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a text config says of RoPE, under the names of all versions of transformers."""
    rope: dict[str, Any] = {}
    for key in ("rope_scaling", "rope_parameters"):
        if isinstance(text.get(key), dict):
            rope |= text[key]
    return rope


def architecture_of(document: Mapping[str, Any]) -> str:
    """Return the first class name of a config, or `unknown`."""
    names = document.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else "unknown"
