"""The one reader of ``config.json``: the fields of transformers' configs that a merge needs.

transformers' own config classes cost seconds and 200 MB to import. What a config leaves out is None
here: what holds then depends on the model's class, and the files tell (`compatible`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import PositiveFloat, PositiveInt, ValidationError

from layerswap_method.errors import InputError
from layerswap_method.frozen import Frozen

_TEXT = ("text_config", "llm_config", "language_config")

MOST_LAYERS = 100_000
"""No model has so many layers; a config that says so is refused before anything counts them."""

_LARGEST = 1 << 31
"""No size in a config is so large."""

Remedy = Literal["none needed", "harmonize", "force", "recipe", "impossible"]
"""`harmonize`: layerswap harmonize keeps the function. `force`: it does with --force, which changes
the function. `recipe`: the recipe of the merge does it."""

NOTHING = "nothing reconciles it"
_HARMONIZE = "layerswap harmonize"
_FORCED = f"{_HARMONIZE} --force: changes the function"


class ConfigField(NamedTuple):
    """One field that configs of different families state under different names."""

    label: str
    """Name for people."""

    keys: tuple[str, ...]
    """Names in ``config.json``; the first one that is stated counts."""

    default: Any
    """Value in the classes of `DECODERS` where none is stated."""

    remedy: Remedy = "impossible"
    """What reconciles two models that differ in it."""

    advice: str = NOTHING
    """What to do, in words."""

    needs_same: bool = False
    """Whether two models that differ in it compute differently with tensors of the same shapes."""


FIELDS: Mapping[str, ConfigField] = {
    "hidden": ConfigField(
        "hidden size", ("hidden_size",), None, "harmonize", f"{_HARMONIZE}: copies, or zeros"
    ),
    "layers": ConfigField(
        "layers",
        ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
        None,
        "harmonize",
        f"{_HARMONIZE}: layers that add nothing",
    ),
    "heads": ConfigField(
        "query heads",
        ("num_attention_heads",),
        None,
        "harmonize",
        f"{_HARMONIZE}: copies, or zero heads",
    ),
    "kv_heads": ConfigField(
        "key-value heads",
        ("num_key_value_heads",),
        None,
        "harmonize",
        f"{_HARMONIZE}: repeats each head",
    ),
    "head_dim": ConfigField("head size", ("head_dim",), None, needs_same=True),
    "intermediate": ConfigField(
        "MLP neurons", ("intermediate_size",), None, "harmonize", f"{_HARMONIZE}: zero neurons"
    ),
    "rope_base": ConfigField("RoPE base", ("rope_theta",), 10000.0, "force", _FORCED, True),
    "rope_scaling": ConfigField("RoPE scaling", ("rope_scaling",), None, "force", _FORCED, True),
    "sliding_window": ConfigField(
        "sliding window",
        ("sliding_window",),
        None,
        "harmonize",
        f"{_HARMONIZE}: Llama, within the window",
    ),
    "positions": ConfigField(
        "longest sequence",
        ("max_position_embeddings",),
        None,
        "recipe",
        "the merge has that of its base_model",
    ),
    "eps": ConfigField(
        "norm eps",
        ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon"),
        1e-6,
        "harmonize",
        f"{_HARMONIZE}: the residual stream is scaled",
        True,
    ),
    "activation": ConfigField(
        "activation",
        ("hidden_act", "hidden_activation", "activation_function"),
        "silu",
        needs_same=True,
    ),
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
    """What a ``config.json`` says, under the names of transformers."""

    model_type: str
    """Type of the whole model."""

    text_type: str
    """Type of its text model; `model_type` where there is no other."""

    architecture: str
    """The first class name, such as `LlamaForCausalLM`; `unknown` where there is none."""

    num_hidden_layers: int | None
    """Number of decoder layers."""

    further_layers: int
    """Number of layers behind them that predict further tokens, stored under the next numbers."""

    vocab_size: int | None
    """Rows of the embedding."""

    tie_word_embeddings: bool | None
    """Whether input and output embeddings are one tensor."""

    quantization: str | None
    """The quantisation method (`?` where it has no name); None for plain weights."""

    dtype: str | None
    """torch dtype that engines compute in, such as `bfloat16`."""


class ModelShape(Frozen):
    """What two models must share before one can stand in the other's place."""

    architecture: str
    hidden: PositiveInt
    layers: PositiveInt
    heads: PositiveInt
    """Query heads of a layer."""

    kv_heads: PositiveInt
    """Key-value heads of a layer; each serves `group` query heads, which stand together."""

    head_dim: PositiveInt
    """Values of one head; `heads * head_dim` need not be `hidden`."""

    intermediate: PositiveInt
    """Neurons of a layer's MLP."""

    vocab: PositiveInt
    """Rows of the embedding."""

    tied: bool
    """Whether the output embedding is the input embedding."""

    rope_base: PositiveFloat
    """Theta of the rotary positions."""

    rope_scaling: Mapping[str, Any] | None
    """How rotary positions are stretched, under transformers' names; None where they are not."""

    sliding_window: int | None
    """Tokens that attention looks back; None for all."""

    positions: PositiveInt
    """Longest sequence (`max_position_embeddings`)."""

    eps: PositiveFloat
    """Epsilon of every RMSNorm."""

    activation: str
    """The MLP's, such as `silu`."""

    attention_bias: bool
    """Whether q, k, v and o have biases."""

    mlp_bias: bool
    """Whether gate, up and down have biases."""

    @property
    def group(self) -> int:
        """Return the query heads of one key-value head."""
        return self.heads // self.kv_heads


def read_document(name: str, folder: Path) -> dict[str, Any]:
    """Return the ``config.json`` in `folder`, as it is.

    Raises:
        InputError: where there is none, or one that is no config; starting with `name`.
    """
    try:
        document = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if not isinstance(document, dict) or not isinstance(document.get("model_type"), str):
            raise ValueError("config.json names no model_type")
        for key, value in text_part(document).items():
            most = MOST_LAYERS if key in FIELDS["layers"].keys else _LARGEST
            if type(value) is int and key.endswith(_SIZES) and not 0 <= value < most:
                raise ValueError(f"config.json has {key} {value}, which no model has")
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{name}: {folder}: no readable config: {error}") from error
    return document


_SIZES = ("_layers", "n_layer", "_size", "_heads", "head_dim", "_experts")
"""How the keys of sizes end."""


def text_part(document: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a config that is about the text model; the whole where it is all."""
    return next((document[k] for k in _TEXT if isinstance(document.get(k), dict)), document)


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
        num_hidden_layers=next(iter(stated(int, *FIELDS["layers"].keys)), None),
        further_layers=next(iter(stated(int, "num_nextn_predict_layers")), 0),
        vocab_size=next(iter(stated(int, "vocab_size")), None),
        tie_word_embeddings=any(ties) if ties else None,
        quantization=None if quantization is None else str(quantization.get("quant_method", "?")),
        dtype=dtype.removeprefix("torch.") if isinstance(dtype, str) and dtype != "auto" else None,
    )


def stated_fields(document: Mapping[str, Any], *, defaults: bool = True) -> dict[str, Any]:
    """Return the fields of a `ModelShape` that a config states; None for the others.

    Args:
        document: a ``config.json``, or its part for the text model.
        defaults: whether what is not stated has the default of the classes in `DECODERS`.
    """

    def first(field: str) -> Any:
        keys, default = FIELDS[field].keys, FIELDS[field].default if defaults else None
        return next((document[key] for key in keys if document.get(key) is not None), default)

    found = {field: first(field) for field in FIELDS}
    names = document.get("architectures") or ["unknown"]
    is_mistral = document.get("model_type") == "mistral"
    heads, hidden = found["heads"], found["hidden"]
    if found["head_dim"] is None and type(heads) is int and type(hidden) is int and heads:
        found["head_dim"] = hidden // heads
    rope: dict[str, Any] = {}
    for key in ("rope_scaling", "rope_parameters"):
        rope |= document[key] if isinstance(document.get(key), dict) else {}
    found["rope_base"] = rope.pop("rope_theta", None) or found["rope_base"]
    kind = rope.pop("rope_type", None) or rope.pop("type", None) or "default"
    rope.pop("type", None)
    found["rope_scaling"] = None if kind == "default" else {"rope_type": kind, **rope}
    if document.get("use_sliding_window") is False:  # Qwen's configs state a window all the same
        found["sliding_window"] = None
    elif is_mistral and "sliding_window" not in document:
        found["sliding_window"] = 4096
    return {
        **found,
        "kv_heads": found["kv_heads"] or (8 if is_mistral else heads),
        "architecture": str(names[0]),
        "vocab": document.get("vocab_size"),
        "tied": bool(document.get("tie_word_embeddings", False)),
        "attention_bias": bool(document.get("attention_bias", False)),
        "mlp_bias": bool(document.get("mlp_bias", False)),
    }


def read_shape(name: str, folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> ModelShape:
    """Return the shape of a checkpoint; its config and its tensors must state the same.

    Args:
        name: name of the checkpoint, for messages.
        folder: the checkpoint.
        shapes: tensor name -> shape.

    Raises:
        InputError: for another architecture, a config that leaves a size out, or one whose sizes
            are not those of the tensors.
    """
    document = read_document(name, folder)
    architecture = str((document.get("architectures") or ["unknown"])[0])
    if architecture not in DECODERS:
        raise InputError(
            f"{name}: {architecture} is not known here; its layers must be those of "
            f"{' or '.join(DECODERS)}"
        )
    if document.get("use_sliding_window"):
        raise InputError(
            f"{name}: use_sliding_window is true: some of its layers look back less far than "
            "others, which is not known here; give a model without it"
        )
    try:
        shape = ModelShape(**stated_fields(document))
    except ValidationError as error:
        fields = ", ".join(str(item["loc"][0]) for item in error.errors())
        raise InputError(
            f"{name}: config.json does not state {fields} as a model of this kind needs it"
        ) from error
    layer = "model.layers.0"
    wanted = {
        "model.embed_tokens.weight": (shape.vocab, shape.hidden),
        f"{layer}.self_attn.q_proj.weight": (shape.heads * shape.head_dim, shape.hidden),
        f"{layer}.self_attn.k_proj.weight": (shape.kv_heads * shape.head_dim, shape.hidden),
        f"{layer}.mlp.gate_proj.weight": (shape.intermediate, shape.hidden),
    }
    problems = [
        f"{tensor} is {list(sizes)} by config.json, and the weights "
        + ("lack it" if shapes.get(tensor) is None else f"hold {list(shapes[tensor])}")
        for tensor, sizes in wanted.items()
        if shapes.get(tensor) != sizes
    ]
    if shape.heads % shape.kv_heads:
        problems.append(f"{shape.heads} heads are no multiple of {shape.kv_heads} KV heads")
    if problems:
        raise InputError.from_problems(name, problems)
    return shape
