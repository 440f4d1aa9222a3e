"""Wider axes of a model that computes the same: neurons, heads, the residual stream.

Source of the copies: HyperCloning (arXiv 2409.12903); the code is ours. In exact arithmetic every
function here is exact. What is only copied or padded with zeros keeps its bits, so the result is
exact in every dtype; what is multiplied is rounded to the stored dtype once.
"""

from __future__ import annotations

import math

from layerswap_method.harmonize.axes import Axis, axes_of
from layerswap_method.harmonize.model import NORM, Model
from layerswap_method.harmonize.take import ZEROS, Taken, padded, spread, take, taken_all


def widen_neurons(model: Model, intermediate: int) -> Model:
    """Return the model with MLPs of `intermediate` neurons; the new ones are zero. Bits are kept.

    A neuron whose rows of gate and up are zero gives act(0) * 0 = 0.
    """
    size = model.shape.intermediate
    if intermediate == size:
        return model
    new = dict(taken_all(model, {"neurons": Taken(padded(size, intermediate))}))
    note = f"MLP: {intermediate - size} zero neurons after the {size} in every layer"
    return model.changed(new, note, intermediate=intermediate)


def widen_heads(model: Model, kv_heads: int, group: int) -> Model:
    """Return the model with `kv_heads` key-value heads of `group` query heads each.

    Where the new number of key-value heads is a multiple of the old one, each is repeated, and the
    query heads of its group are shared out among the repeats: exact, since a query meets the same
    keys and values. Else, zero heads are added. A group that grows to a multiple of its size has
    each query head so many times, and each copy's part of the output projection is divided by that
    number; else it is filled up with zero heads. A zero head reads zeros and has zeros in the
    output projection.

    Args:
        model: what is widened.
        kv_heads: not fewer than it has.
        group: query heads of each; see `fits`.
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
    wide_queries, wide_keys = spread(queries, shape.head_dim), spread(keys, shape.head_dim)
    new = dict(taken_all(model, {"heads": Taken(wide_queries), "kv_heads": Taken(wide_keys)}))
    if copies > 1:
        for name, tensor in new.items():
            if axes_of(name) == ("writes", "heads"):
                places = range(len(wide_queries))
                new[name] = take(tensor, 1, Taken(places, 1 / copies))
    how = {
        f"each key-value head repeated {repeats} times": repeats > 1,
        f"each query head copied {copies} times": copies > 1,
        f"{queries.count(ZEROS)} zero query heads": ZEROS in queries,
        f"{keys.count(ZEROS)} zero key-value heads": ZEROS in keys,
    }
    listed = ", ".join(text for text, is_so in how.items() if is_so)
    note = (
        f"attention: {shape.heads} query and {shape.kv_heads} key-value heads become "
        f"{kv_heads * group} and {kv_heads} ({listed})"
    )
    return model.changed(new, note, heads=kv_heads * group, kv_heads=kv_heads)


def fits(kv_heads: int, group: int, new_kv_heads: int, new_group: int) -> bool:
    """Return whether `widen_heads` can make the new numbers of the old ones."""
    if new_kv_heads % kv_heads == 0:
        return new_kv_heads // kv_heads * new_group >= group
    return new_kv_heads > kv_heads and new_group >= group


def widen_hidden(model: Model, hidden: int, eps: float) -> Model:
    """Return the model with a residual stream of `hidden` values, and with `eps` in every norm.

    From h to H values, with x the old stream and e the old epsilon. Where H = n h, the stream is n
    copies of x: what writes is repeated, what reads is repeated and divided by n, norm weights are
    repeated. Else it is x and zeros, whose mean square is h/H that of x: norm weights are
    multiplied by sqrt(h/H).

    A norm divides by sqrt(mean square + eps), so a stream with another mean square, or another
    eps, would weigh eps differently. Therefore everything that writes is multiplied by c, where
    c^2 = eps/e (copies) or (eps/e) (H/h) (zeros): each norm then gives exactly what it gave, and
    there is no error to be bounded. c = 1 multiplies nothing. Norms of queries and keys have the
    same eps: what they read is multiplied by sqrt(eps/e).

    Args:
        model: what is widened.
        hidden: not fewer than it has.
        eps: epsilon of the norms of the result; above 0.
    """
    shape = model.shape
    if (hidden, eps) == (shape.hidden, shape.eps):
        return model
    copies, is_whole = hidden // shape.hidden, hidden % shape.hidden == 0
    if is_whole:
        places, reads, norm, stretch = [*range(shape.hidden)] * copies, 1 / copies, 1.0, 1.0
    else:
        places, reads, stretch = padded(shape.hidden, hidden), 1.0, hidden / shape.hidden
        norm = 1 / math.sqrt(stretch)
    scale = math.sqrt(eps / shape.eps * stretch)
    axes: dict[Axis, Taken] = {
        "writes": Taken(places, scale),
        "reads": Taken(places, reads),
        "norm": Taken(places, norm),
    }
    new = dict(taken_all(model, axes))
    if shape.tied:  # the head is the embedding: multiplied by c, and not divided by n
        final = new[NORM]
        new[NORM] = take(final, 0, Taken(range(hidden), reads / scale))
    if eps != shape.eps:  # which is that of the norms of queries and keys, too
        for name in [each for each in new if each.endswith(("q_norm.weight", "k_norm.weight"))]:
            for part in ("weight", "bias"):
                before = name.replace("_norm.weight", f"_proj.{part}")
                if before in new:
                    rows = Taken(range(new[before].shape[0]), math.sqrt(eps / shape.eps))
                    new[before] = take(new[before], 0, rows)
    how = f"{copies} copies" if is_whole else f"{hidden - shape.hidden} zeros after the old values"
    note = f"residual stream: {shape.hidden} become {hidden} values ({how})"
    if hidden == shape.hidden:
        note = "residual stream: as wide as before"
    if scale != 1:
        note += f", multiplied by {scale:.6g}, so that an eps of {eps:g} has the weight that "
        note += f"{'it' if eps == shape.eps else f'one of {shape.eps:g}'} had"
    return model.changed(new, note, hidden=hidden, eps=eps)
