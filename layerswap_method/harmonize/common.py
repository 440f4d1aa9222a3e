"""The architecture that models of different ones can all be written in. Knows shapes only."""

from __future__ import annotations

from collections.abc import Sequence

from layerswap_method.checkpoint.config import ModelShape
from layerswap_method.errors import InputError
from layerswap_method.frozen import Frozen
from layerswap_method.harmonize.deepen import deepen
from layerswap_method.harmonize.model import Model
from layerswap_method.harmonize.settings import LLAMA, as_llama
from layerswap_method.harmonize.widen import fits, widen_heads, widen_hidden, widen_neurons


class CommonShape(Frozen):
    """What several models have after `harmonized`; each size is as small as it can be."""

    architecture: str
    """Class name of all."""

    hidden: int
    """Values of the residual stream."""

    layers: int
    """Decoder layers."""

    kv_heads: int
    """Key-value heads of a layer."""

    group: int
    """Query heads of each key-value head."""

    intermediate: int
    """Neurons of a layer's MLP."""

    tied: bool
    """Whether the output embedding is the input embedding: only where all models tie them."""

    eps: float
    """Epsilon of every RMSNorm: that of the first of the widest models, which is not scaled."""


def common_shape(shapes: Sequence[ModelShape]) -> CommonShape:
    """Return the smallest architecture that holds all of `shapes`.

    Of the numbers of heads it has the fewest key-value heads, and of those the smallest groups.

    Raises:
        InputError: where no number of heads fits the hidden size.
    """
    hidden = max(shape.hidden for shape in shapes)
    least = max(shape.kv_heads for shape in shapes)
    heads = (
        (kv_heads, group)
        for kv_heads in range(least, hidden + 1)
        for group in range(1, hidden // kv_heads + 1)
        # transformers refuses a hidden size that is no multiple of the heads.
        if hidden % (kv_heads * group) == 0
        and all(fits(shape.kv_heads, shape.group, kv_heads, group) for shape in shapes)
    )
    found = next(heads, None)
    if found is None:
        given = ", ".join(f"{shape.heads}/{shape.kv_heads}" for shape in shapes)
        raise InputError(
            f"query/key-value heads: {given}: no common number of heads divides the hidden size "
            f"{hidden}, which transformers asks for; give models of other sizes"
        )
    kv_heads, group = found
    alike = len({(shape.architecture, shape.sliding_window) for shape in shapes}) == 1
    return CommonShape(
        architecture=shapes[0].architecture if alike else LLAMA,
        hidden=hidden,
        layers=max(shape.layers for shape in shapes),
        kv_heads=kv_heads,
        group=group,
        intermediate=max(shape.intermediate for shape in shapes),
        tied=all(shape.tied for shape in shapes),
        eps=next(shape.eps for shape in shapes if shape.hidden == hidden),
    )


def harmonized(model: Model, common: CommonShape, inserted: Sequence[int] | None = None) -> Model:
    """Return a model in the common architecture, with its function kept.

    The vocabulary, the longest sequence and the RoPE stay the model's own.

    Args:
        model: one of those that `common` was made for.
        common: what it is to be.
        inserted: which layers of the result are new, for a model with fewer; None: spread evenly.

    Raises:
        InputError: where `inserted` does not fit the depth.
    """
    if common.architecture == LLAMA:
        model = as_llama(model)
    if not common.tied:
        model = model.untied()
    model = widen_heads(model, common.kv_heads, common.group)
    model = widen_neurons(model, common.intermediate)
    if model.shape.layers < common.layers:
        model = deepen(model, common.layers, inserted)
    return widen_hidden(model, common.hidden, common.eps)
