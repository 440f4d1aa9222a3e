"""The architecture that models of different ones can all be written in."""

from __future__ import annotations

from collections.abc import Sequence

from layerswap_method.checkpoint.config import ModelShape
from layerswap_method.errors import InputError
from layerswap_method.harmonize import steps
from layerswap_method.harmonize.conversion import Conversion
from layerswap_method.harmonize.settings import LLAMA, as_llama


def common_shape(shapes: Sequence[ModelShape]) -> ModelShape:
    """Return the smallest shape that holds all of `shapes`; settings are those of the first.

    Embeddings are tied only where all models tie them. The epsilon of the norms is that of the
    first of the widest models, which is then not scaled. Of the numbers of heads it has the fewest
    key-value heads, and of those the smallest groups.

    Raises:
        InputError: where no number of heads fits the hidden size.
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
        "architecture": shapes[0].architecture if alike else LLAMA,
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

    Raises:
        InputError: where `inserted` does not fit the depth.
    """
    if common.architecture == LLAMA:
        model = as_llama(model)
    if not common.tied:
        model = steps.untie(model)
    model = steps.widen_heads(model, common.kv_heads, common.group)
    model = steps.widen_neurons(model, common.intermediate)
    if model.shape.layers < common.layers:
        model = steps.deepen(model, common.layers, inserted)
    return steps.widen_hidden(model, common.hidden, common.eps)
