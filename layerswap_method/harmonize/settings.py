"""The architecture that several models can be written in, and the config that states it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from layerswap_method.checkpoint.config import DECODERS, FIELDS, ModelShape, stated_fields
from layerswap_method.errors import InputError
from layerswap_method.harmonize import steps
from layerswap_method.harmonize.conversion import Conversion

_LLAMA = "LlamaForCausalLM"

_WRITTEN = ("hidden", "layers", "heads", "kv_heads", "head_dim", "intermediate", "positions", "eps")
"""Fields of a `ModelShape` that a config is given under the first of their keys."""


def common_shape(shapes: Sequence[ModelShape]) -> ModelShape:
    """Return the smallest shape that holds all of `shapes`; settings are those of the first.

    Embeddings are tied only where all models tie them. The epsilon of the norms is that of the
    first of the widest models, which is then not scaled. Of the numbers of heads it has the fewest
    key-value heads, and of those the smallest groups.
    """
    hidden = max(shape.hidden for shape in shapes)
    heads = (
        (kv_heads, group)
        for kv_heads in range(max(shape.kv_heads for shape in shapes), hidden + 1)
        for group in range(1, hidden // kv_heads + 1)
        # transformers refuses a hidden size that is no multiple of the heads.
        if hidden % (kv_heads * group) == 0
        and all(steps.fits(shape.kv_heads, shape.group, kv_heads, group) for shape in shapes)
    )
    kv_heads, group = next(heads, (0, 0))
    if not kv_heads:
        given = ", ".join(f"{shape.heads}/{shape.kv_heads}" for shape in shapes)
        raise InputError(
            f"query/key-value heads: {given}: no common number of heads divides the hidden size "
            f"{hidden}, which transformers needs; give models of other sizes"
        )
    alike = len({(shape.architecture, shape.sliding_window) for shape in shapes}) == 1
    sizes = {
        "architecture": shapes[0].architecture if alike else _LLAMA,
        "hidden": hidden,
        "layers": max(shape.layers for shape in shapes),
        "heads": kv_heads * group,
        "kv_heads": kv_heads,
        "intermediate": max(shape.intermediate for shape in shapes),
        "tied": all(shape.tied for shape in shapes),
        "eps": next(shape.eps for shape in shapes if shape.hidden == hidden),
    }
    return shapes[0].model_copy(update=sizes)


def harmonized(
    model: Conversion, common: ModelShape, inserted: Sequence[int] | None = None
) -> Conversion:
    """Return a model in the common architecture, with its function kept.

    The vocabulary, the longest sequence and the RoPE stay the model's own. New layers stand where
    `inserted` says (`steps.deepen`).
    """
    if common.architecture == _LLAMA:
        model = _as_llama(model)
    if not common.tied:
        model = steps.untie(model)
    model = steps.widen_heads(model, common.kv_heads, common.group)
    model = steps.widen_neurons(model, common.intermediate)
    if model.shape.layers < common.layers:
        model = steps.deepen(model, common.layers, inserted)
    return steps.widen_hidden(model, common.hidden, common.eps)


def with_rope(model: Conversion, other: ModelShape) -> Conversion:
    """Give the model another one's rotary positions: this CHANGES its function."""
    shape = model.shape
    if (shape.rope_base, shape.rope_scaling) == (other.rope_base, other.rope_scaling):
        return model
    note = (
        f"THE FUNCTION CHANGES: RoPE base {shape.rope_base:g} and scaling {shape.rope_scaling} "
        f"become base {other.rope_base:g} and scaling {other.rope_scaling}"
    )
    rope = {"rope_base": other.rope_base, "rope_scaling": other.rope_scaling}
    return model.after(note, sizes=rope)


def config_of(
    shape: ModelShape, document: Mapping[str, Any], dtype: str | None = None
) -> dict[str, Any]:
    """Return the config of a model that had the config `document` and is now of `shape`.

    Fields that no step changes stay as they are written, the dtype too where `dtype` is None.
    """
    new = dict(document)
    new |= {FIELDS[name].keys[0]: getattr(shape, name) for name in _WRITTEN}
    new |= {"architectures": [shape.architecture], "model_type": DECODERS[shape.architecture]}
    new["tie_word_embeddings"] = shape.tied
    if shape.architecture == _LLAMA:
        new.pop("sliding_window", None)
    new.pop("layer_types", None)  # one a layer, all alike in these models
    before = stated_fields(document)
    if (before["rope_base"], before["rope_scaling"]) != (shape.rope_base, shape.rope_scaling):
        new.pop("rope_parameters", None)
        new |= {"rope_theta": shape.rope_base, "rope_scaling": shape.rope_scaling}
    if dtype is not None:
        new["torch_dtype" if "torch_dtype" in new else "dtype"] = dtype
    return new


def _as_llama(model: Conversion) -> Conversion:
    """Write a Mistral as the Llama that it is: the tensors have the same names and meanings.

    Mistral's attention looks back `sliding_window` tokens, Llama's looks back at all. Up to that
    length they are the same, so the result states it as its longest sequence.
    """
    shape = model.shape
    if shape.architecture == _LLAMA:
        return model
    note = f"architecture: {shape.architecture} is written as {_LLAMA}"
    positions = min(shape.positions, shape.sliding_window or shape.positions)
    if positions < shape.positions:
        note += f", the same for sequences of up to {positions} tokens (its sliding window)"
    sizes = {"architecture": _LLAMA, "sliding_window": None, "positions": positions}
    return model.after(note, sizes=sizes)
