"""Wider axes and more layers of a model that computes the same.

Source of the copies: HyperCloning (arXiv 2409.12903); the code is ours. In exact arithmetic every
step is exact. What is only copied or padded with zeros keeps its bits, so the result is exact in
every dtype; what is multiplied is rounded to the stored dtype once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from layerswap_method.errors import InputError
from layerswap_method.harmonize.conversion import EMBEDDING, HEAD, ZEROS, Axis, Conversion, axes_of
from layerswap_method.plan import format_layers
from layerswap_method.tensor_names import split_layer


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
    query heads of its group are shared out among the repeats: exact, since a query meets the same
    keys and values. Else, zero heads are added. A group that grows to a multiple of its size has
    each query head so many times, and each copy's part of the output projection is divided by that
    number; else it is filled up with zero heads. A zero head reads zeros and has zeros in the
    output projection.
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
        own = [kv_head * shape.group + i for i in range(shape.group)] * copies
        queries += own + [ZEROS] * (slots - len(own))
        keys += [kv_head] * repeats
    queries += [ZEROS] * (kv_heads * group - len(queries))
    keys += [ZEROS] * (kv_heads - len(keys))
    how = [f"each key-value head repeated {repeats} times"] if repeats > 1 else []
    how += [f"each query head copied {copies} times"] if copies > 1 else []
    how += [f"{queries.count(ZEROS)} zero query heads"] if ZEROS in queries else []
    how += [f"{keys.count(ZEROS)} zero key-value heads"] if ZEROS in keys else []
    note = (
        f"attention: {shape.heads} query and {shape.kv_heads} key-value heads become "
        f"{len(queries)} and {kv_heads} ({', '.join(how)})"
    )
    of_queries, of_keys = (_spread(heads, shape.head_dim) for heads in (queries, keys))
    return model.after(
        note,
        sizes={"heads": len(queries), "kv_heads": kv_heads},
        index={"queries": of_queries, "attended": of_queries, "keys": of_keys, "values": of_keys},
        factors={"attended": 1 / copies},
    )


def even_places(layers: int, depth: int) -> tuple[int, ...]:
    """Return where the layers of a model go in a deeper one: spread evenly, the ends at the ends.

    Layer j of L goes to round(j (D - 1) / (L - 1)) of D, halves up: (0, 2, 3, 5) for 4 of 6.
    """
    steps = max(1, layers - 1)
    return tuple((2 * layer * (depth - 1) + steps) // (2 * steps) for layer in range(layers))


def deepen(model: Conversion, depth: int, inserted: Sequence[int] | None = None) -> Conversion:
    """Give the model `depth` layers; the new ones add nothing. All bits are kept.

    A new layer is a copy of the layer below it (the lowest ones: of the layer above) whose output
    projections `o_proj` and `down_proj` are zero, so that it adds nothing to the residual stream.
    `inserted` are the new layers of the result; None spreads them evenly (`even_places`).
    """
    layers = model.shape.layers
    if depth == layers and not inserted:
        return model
    if inserted is None:
        old = even_places(layers, depth)
    else:
        old = tuple(layer for layer in range(depth) if layer not in inserted)
        if len(old) != layers or len(set(inserted)) != depth - layers:
            raise InputError(
                f"--align-depth: {model.name} needs {depth - layers} new layers, each from 0 to "
                f"{depth - 1}, and {len(set(inserted))} are given"
            )
    of_layers = [rest for layer, rest in map(split_layer, model.origins) if layer == 0]
    origins = {name: o for name, o in model.origins.items() if split_layer(name)[0] is None}
    zeros = set()
    below = 0
    for place in range(depth):
        below = old.index(place) if place in old else below
        for rest in of_layers:
            name = f"model.layers.{place}.{rest}"
            origins[name] = f"model.layers.{below}.{rest}"
            if place not in old and axes_of(rest)[0] == "writes":
                zeros.add(name)
    new = format_layers(place for place in range(depth) if place not in old)
    note = f"depth: {layers} become {depth} layers; new, and adding nothing: {new}"
    return model.after(note, sizes={"layers": depth}, origins=origins, zeros=frozenset(zeros))


def widen_hidden(model: Conversion, hidden: int, eps: float) -> Conversion:
    """Give the model a residual stream of `hidden` values, and `eps` in every norm.

    From h to H values, with x the old stream and e the old epsilon. Where H = n h, the stream is n
    copies of x: what writes is repeated, what reads is repeated and divided by n, norm weights are
    repeated. Else it is x and zeros, whose mean square is h/H that of x: norm weights are
    multiplied by sqrt(h/H).

    A norm divides by sqrt(mean square + eps), so a stream with another mean square, or another
    eps, would weigh eps differently. Therefore everything that writes is multiplied by c, where
    c^2 = eps/e (copies) or (eps/e) (H/h) (zeros): each norm then gives exactly what it gave, and
    there is no error to be bounded. c = 1 multiplies nothing. Norms of queries and keys have the
    same eps: what they read is multiplied by sqrt(eps/e). A tied head is the embedding, multiplied
    by c and not divided by n: the final norm makes up for it, so `untie` comes before this step.
    """
    shape = model.shape
    if (hidden, eps) == (shape.hidden, shape.eps):
        return model
    copies, rest = divmod(hidden, shape.hidden)
    reads, norm, stretch = 1 / copies, 1.0, 1.0
    places = [*range(shape.hidden)] * copies
    how = f"{copies} copies"
    if rest:
        reads, norm, stretch = 1.0, 1 / math.sqrt(hidden / shape.hidden), hidden / shape.hidden
        places = _padded(shape.hidden, hidden)
        how = f"{hidden - shape.hidden} zeros after the old values"
    scale = math.sqrt(eps / shape.eps * stretch)
    factors: dict[Axis, float] = {"writes": scale, "reads": reads, "norm": norm}
    factors["final_norm"] = norm * reads / scale if shape.tied else norm
    if any(name.endswith("q_norm.weight") for name in model.origins):
        factors |= dict.fromkeys(("queries", "keys"), math.sqrt(eps / shape.eps))
    index: dict[Axis, Sequence[int]] = {}
    note = "residual stream: as wide as before"
    if hidden != shape.hidden:
        index = dict.fromkeys(("writes", "reads", "norm", "final_norm"), places)
        note = f"residual stream: {shape.hidden} become {hidden} values ({how})"
    if scale != 1:
        note += f", multiplied by {scale:.6g}, so that an eps of {eps:g} has the weight that "
        note += f"{'it' if eps == shape.eps else f'one of {shape.eps:g}'} had"
    sizes = {"hidden": hidden, "eps": eps}
    return model.after(note, sizes=sizes, index=index, factors=factors)


def _padded(size: int, new: int) -> list[int]:
    return [*range(size), *[ZEROS] * (new - size)]


def _spread(heads: Sequence[int], width: int) -> list[int]:
    return [head * width + i if head != ZEROS else ZEROS for head in heads for i in range(width)]
