"""The one reader of ``config.json``: the fields of transformers' configs that a merge needs.

transformers' own config classes cost seconds and 200 MB to import. A field that a config leaves out
is None here: its default depends on the model's class (see `compatible`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

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

Remedy = Literal["none needed", "harmonize", "force", "recipe", "impossible"]
"""`harmonize`: layerswap harmonize keeps the function. `force`: it does with --force, which changes
the function. `recipe`: the recipe of the merge does it."""

NOTHING = "nothing reconciles it"
COMMANDS = {"harmonize": "layerswap harmonize: ", "force": "layerswap harmonize --force: "}
"""Begin of the advice for a remedy."""


class Field(NamedTuple):
    """One field that configs of different families state under different names.

    Of its `keys` in ``config.json`` the first one that is stated counts, and where none is, the
    `default` of the classes in `DECODERS`. `effect` is what the remedy does.
    """

    label: str
    keys: tuple[str, ...]
    remedy: Remedy = "impossible"
    effect: str = NOTHING
    default: Any = None


_LAYERS = (
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "layers",
    "decoder_layers",  # Kosmos-2, TrOCR
)
FURTHER_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")
"""Keys of the number of layers that predict further tokens (MTP)."""

_POSITIONS = ("max_position_embeddings",)
_EPS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon")
_ACTIVATION = ("hidden_act", "hidden_activation", "activation_function")
_SCALED = "the residual stream is scaled"
_CHANGES, FROM_BASE = "changes the function", "the merge has that of its base_model"

FIELDS: Mapping[str, Field] = {
    "hidden": Field("hidden size", ("hidden_size",), "harmonize", "copies, or zeros"),
    "layers": Field("layers", _LAYERS, "harmonize", "layers that add nothing"),
    "heads": Field("query heads", ("num_attention_heads",), "harmonize", "copies, or zero heads"),
    "kv_heads": Field("key-value heads", ("num_key_value_heads",), "harmonize", "repeats heads"),
    "head_dim": Field("head size", ("head_dim",)),
    "intermediate": Field("MLP neurons", ("intermediate_size",), "harmonize", "zero neurons"),
    "rope_base": Field("RoPE base", ("rope_theta",), "force", _CHANGES, 10000.0),
    "rope_scaling": Field("RoPE scaling", ("rope_scaling",), "force", _CHANGES),
    "sliding_window": Field(
        "sliding window", ("sliding_window",), "harmonize", "Llama, within the window"
    ),
    "active_experts": Field("experts used", ("num_experts_per_tok",), "recipe", FROM_BASE),
    "positions": Field("longest sequence", _POSITIONS, "recipe", FROM_BASE),
    "eps": Field("norm eps", _EPS, "harmonize", _SCALED, 1e-6),
    "activation": Field("activation", _ACTIVATION, default="silu"),
}
"""Name in a `ModelShape` -> the field. One table to read, compare and write configs by."""

DECODERS = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
"""Class names that `harmonize` knows -> the `model_type` of each. Llama's and Mistral's layers are
alike, tensor for tensor; Qwen2's have biases on q, k and v, Qwen3's norms of each head."""


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
            limit = _MOST_LAYERS if key in _LAYERS else _LARGEST
            if type(value) is int and key.endswith(_SIZES) and not 0 <= value < limit:
                raise ValueError(f"config.json has {key} {value}, which no model has")
    except (OSError, ValueError, RecursionError) as error:
        is_adapter = (folder / ADAPTER_CONFIG).is_file()
        hint = f"; write BASE+{folder}" if is_adapter else place_kind(folder)
        fault = f"no readable config: {error}"
        if isinstance(error, FileNotFoundError):
            fault = "no config.json in it, so it is not a model's folder"
        raise InputError(f"{name}: {folder}: {fault}{hint}") from error
    return document


def text_part(document: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a config that is about the text model; the whole where it is all."""
    part = next((document[key] for key in _TEXT if isinstance(document.get(key), dict)), None)
    return document if part is None else text_part(part)  # Qwen's Omni models: thinker, then text


def read_config(name: str, folder: Path) -> ModelConfig:
    """Return the config of the checkpoint in `folder`. Raises as `read_document`."""
    document = read_document(name, folder)
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
        architecture=_architecture(document),
        num_hidden_layers=next(iter(stated(int, *_LAYERS)), None),
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


def _architecture(document: Mapping[str, Any]) -> str:
    names = document.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else "unknown"


def stated_fields(document: Mapping[str, Any], *, defaults: bool = True) -> dict[str, Any]:
    """Return the fields of a `ModelShape` that a config states; else the default, or None."""
    fields: dict[str, Any] = {}
    for name, field in FIELDS.items():
        values = (document[key] for key in field.keys if document.get(key) is not None)
        fields[name] = next(values, field.default if defaults else None)
    is_mistral = document.get("model_type") == "mistral"
    heads, hidden = fields["heads"], fields["hidden"]
    if fields["head_dim"] is None and type(heads) is int and type(hidden) is int and heads:
        fields["head_dim"] = hidden // heads
    rope = stated_rope(document)
    fields["rope_base"] = rope.pop("rope_theta", None) or fields["rope_base"]
    kind = rope.pop("rope_type", None) or rope.get("type") or "default"
    rope.pop("type", None)
    fields["rope_scaling"] = None if kind == "default" else {"rope_type": kind, **rope}
    if document.get("use_sliding_window") is False:  # Qwen's configs state a window all the same
        fields["sliding_window"] = None
    elif is_mistral and "sliding_window" not in document:
        fields["sliding_window"] = 4096
    return {
        **fields,
        "kv_heads": fields["kv_heads"] or (8 if is_mistral else heads),
        "architecture": _architecture(document),
        "vocab": document.get("vocab_size"),
        "tied": bool(document.get("tie_word_embeddings", False)),
        "attention_bias": bool(document.get("attention_bias", False)),
        "mlp_bias": bool(document.get("mlp_bias", False)),
    }
