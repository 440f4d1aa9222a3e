"""The architecture that several models can be written in, and the steps that lead there.

Source of the copies: HyperCloning (arXiv 2409.12903); the code is ours. In exact arithmetic every
step is exact. What is only copied or padded with zeros keeps its bits, so the result is exact in
every dtype; what is multiplied is rounded to the stored dtype once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ablations.harmonize.conversion import EMBEDDING, HEAD, ZEROS, Axis, Conversion, axes_of
from ablations.harmonize.fields import DECODERS, FIELDS, stated_fields
from ablations.harmonize.shape import ModelShape
from layerswap_method.errors import InputError
from layerswap_method.layer_plan import format_layers
from layerswap_method.tensor_names import split_layer

_LLAMA = "LlamaForCausalLM"

_WRITTEN = ("hidden", "layers", "heads", "kv_heads", "head_dim", "intermediate", "positions", "eps")
"""Fields of a `ModelShape` that a config is given under the first of their keys."""


def common_shape(shapes: Sequence[ModelShape]) -> ModelShape:
    """Return the smallest shape that holds all of `shapes`; settings are those of the first.

    The epsilon of the norms is that of the first of the widest models, so that this is not scaled.
    It has the fewest key-value heads that are possible, and of those the smallest groups.
    """
    hidden = max(shape.hidden for shape in shapes)
    pairs = (
        (kv_heads, group)
        for kv_heads in range(max(shape.kv_heads for shape in shapes), hidden + 1)
        for group in range(1, hidden // kv_heads + 1)
        # transformers refuses a hidden size that is not a multiple of the heads.
        if hidden % (kv_heads * group) == 0
        and all(fits(shape.kv_heads, shape.group, kv_heads, group) for shape in shapes)
    )
    kv_heads, group = next(pairs, (0, 0))
    if not kv_heads:
        heads = ", ".join(f"{shape.heads}/{shape.kv_heads}" for shape in shapes)
        raise InputError(
            f"query/key-value heads: {heads}: no common number of heads divides the hidden size "
            f"{hidden}; give models of other sizes"
        )
    is_one_family = len({(shape.architecture, shape.sliding_window) for shape in shapes}) == 1
    sizes = {
        "architecture": shapes[0].architecture if is_one_family else _LLAMA,
        "hidden": hidden,
        "layers": max(shape.layers for shape in shapes),
        "heads": kv_heads * group,
        "kv_heads": kv_heads,
        "intermediate": max(shape.intermediate for shape in shapes),
        "tied": all(shape.tied for shape in shapes),
        "eps": next(shape.eps for shape in shapes if shape.hidden == hidden),
    }
    return shapes[0].model_copy(update=sizes)


def harmonized(model: Conversion, common: ModelShape) -> Conversion:
    """Return a model in the common architecture, which computes the same as before.

    The vocabulary, the longest sequence and the RoPE stay the model's own.
    """
    if common.architecture == _LLAMA:
        model = _as_llama(model)
    model = model if common.tied else untie(model)
    model = widen_heads(model, common.kv_heads, common.group)
    model = deepen(widen_neurons(model, common.intermediate), common.layers)
    return widen_hidden(model, common.hidden, common.eps)


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
    config = dict(document)
    for name in _WRITTEN:
        config[FIELDS[name].keys[0]] = getattr(shape, name)
    config["architectures"] = [shape.architecture]
    config["model_type"] = DECODERS[shape.architecture]
    config["tie_word_embeddings"] = shape.tied
    if shape.architecture == _LLAMA:
        config.pop("sliding_window", None)
    config.pop("layer_types", None)  # one a layer, all alike in these models
    before = stated_fields(document)
    if (before["rope_base"], before["rope_scaling"]) != (shape.rope_base, shape.rope_scaling):
        config.pop("rope_parameters", None)
        config["rope_theta"] = shape.rope_base
        config["rope_scaling"] = shape.rope_scaling
    if dtype is not None:
        config["torch_dtype" if "torch_dtype" in config else "dtype"] = dtype
    return config


def _as_llama(model: Conversion) -> Conversion:
    """Write a Mistral as the Llama that it is: the tensors have the same names and meanings.

    Up to a length of `sliding_window` they are the same, so that is the longest sequence.
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


def untie(model: Conversion) -> Conversion:
    """Give the model an output embedding of its own: a copy of the input embedding."""
    if not model.shape.tied:
        return model
    note = "untied: the output embedding is a copy of the input embedding"
    return model.after(note, sizes={"tied": False}, origins={**model.origins, HEAD: EMBEDDING})


def widen_neurons(model: Conversion, intermediate: int) -> Conversion:
    """Give the model MLPs of `intermediate` neurons; the new ones are zero. Bits are kept.

    A neuron whose rows of gate and up are zero gives act(0) * 0 = 0.
    """
    size = model.shape.intermediate
    if intermediate == size:
        return model
    note = f"MLP: {intermediate - size} zero neurons after the {size} in every layer"
    index = {"neurons": _padded(size, intermediate)}
    return model.after(note, sizes={"intermediate": intermediate}, index=index)


def fits(kv_heads: int, group: int, new_kv_heads: int, new_group: int) -> bool:
    """Return whether `widen_heads` can make the new numbers of the old ones."""
    if new_kv_heads % kv_heads == 0:
        return new_kv_heads // kv_heads * new_group >= group
    return new_kv_heads > kv_heads and new_group >= group


def widen_heads(model: Conversion, kv_heads: int, group: int) -> Conversion:
    """Give the model `kv_heads` key-value heads of `group` query heads each (see `fits`).

    Where the new number of key-value heads is a multiple of the old one, each is repeated, and the
    query heads of its group are shared out among the repeats; else, zero heads are added. A group
    that grows to a multiple of its size has each query head so many times, and each copy's part of
    the output projection is divided by that number; else it is filled up with zero heads.
    """
    shape = model.shape
    if (kv_heads, group) == (shape.kv_heads, shape.group):
        return model
    repeats = kv_heads // shape.kv_heads if kv_heads % shape.kv_heads == 0 else 1
    slots = repeats * group
    copies = slots // shape.group if slots % shape.group == 0 else 1
    queries: list[int] = []
    keys: list[int] = []
    for kv_head in range(shape.kv_heads):
        heads = [kv_head * shape.group + head for head in range(shape.group)] * copies
        queries += heads + [ZEROS] * (slots - len(heads))
        keys += [kv_head] * repeats
    queries += [ZEROS] * (kv_heads * group - len(queries))
    keys += [ZEROS] * (kv_heads - len(keys))
    note = (
        f"attention: {shape.heads} query and {shape.kv_heads} key-value heads become "
        f"{len(queries)} and {kv_heads}, of which {queries.count(ZEROS)} and {keys.count(ZEROS)} "
        "are zero"
    )
    query_places, key_places = _spread(queries, shape.head_dim), _spread(keys, shape.head_dim)
    return model.after(
        note,
        sizes={"heads": len(queries), "kv_heads": kv_heads},
        index={
            "queries": query_places,
            "attended": query_places,
            "keys": key_places,
            "values": key_places,
        },
        factors={"attended": 1 / copies},
    )


def even_places(layers: int, depth: int) -> tuple[int, ...]:
    """Return where the layers of a model go in a deeper one: spread evenly, the ends at the ends.

    Layer j of L goes to round(j (D - 1) / (L - 1)) of D, halves up: (0, 2, 3, 5) for 4 of 6.
    """
    steps = max(1, layers - 1)
    return tuple((2 * layer * (depth - 1) + steps) // (2 * steps) for layer in range(layers))


def deepen(model: Conversion, depth: int) -> Conversion:
    """Give the model `depth` layers; the new ones add nothing. All bits are kept.

    A new layer (see `even_places`) is a copy of the layer below it whose output projections
    `o_proj` and `down_proj` are zero, so that it adds nothing to the residual stream.
    """
    layers = model.shape.layers
    if depth == layers:
        return model
    places = even_places(layers, depth)
    suffixes = [suffix for layer, suffix in map(split_layer, model.origins) if layer == 0]
    origins = {
        name: origin for name, origin in model.origins.items() if split_layer(name)[0] is None
    }
    zeros = set()
    source = 0
    for place in range(depth):
        source = places.index(place) if place in places else source
        for suffix in suffixes:
            name = f"model.layers.{place}.{suffix}"
            origins[name] = f"model.layers.{source}.{suffix}"
            if place not in places and axes_of(suffix)[0] == "writes":
                zeros.add(name)
    new_layers = format_layers(place for place in range(depth) if place not in places)
    note = f"depth: {layers} become {depth} layers; new, and adding nothing: {new_layers}"
    return model.after(note, sizes={"layers": depth}, origins=origins, zeros=frozenset(zeros))


def widen_hidden(model: Conversion, hidden: int, eps: float) -> Conversion:
    """Give the model a residual stream of `hidden` values, and `eps` in every norm.

    From h to H values, with x the old stream and e the old epsilon. Where H = n h, the stream is n
    copies of x: what writes is repeated, what reads is repeated and divided by n, norm weights are
    repeated. Else it is x and zeros, whose mean square is h/H that of x: norm weights are
    multiplied by sqrt(h/H).

    A norm divides by sqrt(mean square + eps), so everything that writes is multiplied by c, where
    c^2 = eps/e (copies) or (eps/e) (H/h) (zeros): each norm then gives exactly what it gave. Norms
    of queries and keys have the same eps: what they read is multiplied by sqrt(eps/e). A tied head
    is the embedding, multiplied by c and not divided by n: the final norm makes up for it.
    """
    shape = model.shape
    if (hidden, eps) == (shape.hidden, shape.eps):
        return model
    if hidden % shape.hidden == 0:
        copies = hidden // shape.hidden
        reads, norm, stretch = 1 / copies, 1.0, 1.0
        places = [*range(shape.hidden)] * copies
        filling = f"{copies} copies"
    else:
        reads, norm, stretch = 1.0, 1 / math.sqrt(hidden / shape.hidden), hidden / shape.hidden
        places = _padded(shape.hidden, hidden)
        filling = f"{hidden - shape.hidden} zeros after the old values"
    scale = math.sqrt(eps / shape.eps * stretch)
    factors: dict[Axis, float] = {"writes": scale, "reads": reads, "norm": norm}
    factors["final_norm"] = norm * reads / scale if shape.tied else norm
    if any(name.endswith("q_norm.weight") for name in model.origins):
        factors |= dict.fromkeys(("queries", "keys"), math.sqrt(eps / shape.eps))
    index: dict[Axis, Sequence[int]] = {}
    note = "residual stream: as wide as before"
    if hidden != shape.hidden:
        index = dict.fromkeys(("writes", "reads", "norm", "final_norm"), places)
        note = f"residual stream: {shape.hidden} become {hidden} values ({filling})"
    if scale != 1:
        note += f", multiplied by {scale:.6g}; eps {shape.eps:g} becomes {eps:g}"
    sizes = {"hidden": hidden, "eps": eps}
    return model.after(note, sizes=sizes, index=index, factors=factors)


def _padded(size: int, new: int) -> list[int]:
    return [*range(size), *[ZEROS] * (new - size)]


def _spread(heads: Sequence[int], width: int) -> list[int]:
    return [head * width + i if head != ZEROS else ZEROS for head in heads for i in range(width)]
