"""Whether checkpoints can be merged, and why not. Knows headers and configurations."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from layerswap_method.checkpoints.config import _HEADS
from layerswap_method.checkpoints.headers import (
    _FLOATS,
    _SHOWN,
    Checkpoint,
    _more,
    is_buffer,
    name_list,
)


def own_problems(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield what keeps this one checkpoint from being merged at all."""
    odd = sorted(
        {
            dtype
            for name, dtype in checkpoint.dtypes.items()
            if dtype not in _FLOATS and len(checkpoint.shapes[name]) > 1 and not is_buffer(name)
        }
    )
    if checkpoint.quantization is not None:
        yield (
            f"{checkpoint.name} is quantised ({checkpoint.quantization}); averages of quantised "
            "weights mean nothing: use the unquantised checkpoint"
        )
    elif odd:
        yield (
            f"{checkpoint.name} stores weights as {', '.join(odd)} (quantised); use the "
            "unquantised checkpoint"
        )


def pair_problems(
    first: Checkpoint,
    other: Checkpoint,
    *,
    vocabulary: Collection[str] = (),
    aligned: bool = False,
    allow_architectures: bool = False,
) -> Iterator[str]:
    """Yield why `other` cannot be merged with `first`; nothing where it can.

    Args:
        first: the checkpoint compared with.
        other: the checkpoint compared.
        vocabulary: names of the tensors whose first axis counts tokens.
        aligned: the recipe aligns vocabularies (``tokenizer:``), so their rows may differ.
        allow_architectures: the user said ``--allow-crimes``: class names may differ.
    """
    pair = f"{first.name} and {other.name}"
    if first.architecture != other.architecture and not allow_architectures:
        yield (
            f"{pair} have different architectures ({first.architecture}, {other.architecture}); "
            "layer swapping needs experts of one pretrained parent"
        )
        return
    if first.num_layers != other.num_layers:
        yield (
            f"{pair} have different depths ({first.num_layers} and {other.num_layers} layers); "
            "layer swapping needs experts of one pretrained parent"
        )
        return
    if first.tied != other.tied:
        tied, untied = (first, other) if first.tied else (other, first)
        yield (
            f"{tied.name} ties its output embedding to the input embedding and {untied.name} does "
            "not; untie the first (set tie_word_embeddings: false and save with a copy of the "
            "embedding as lm_head) or use experts of one kind"
        )
        return
    differing = [
        name
        for name, shape in first.shapes.items()
        if name in other.shapes and other.shapes[name] != shape
    ]
    rows = [name for name in differing if name in vocabulary]
    shapes = [name for name in differing if name not in vocabulary]
    if rows and not aligned:
        yield (
            f"{pair} have different vocabularies: {_shape_list(rows, first, other)}; add "
            "tokenizer: {source: base} (or union) so that mergekit aligns the tokens"
        )
    if shapes:
        yield f"{pair} have different shapes: {_shape_list(shapes, first, other)}"
    for holder, lacking in ((first, other), (other, first)):
        missing = [
            name
            for name in holder.shapes
            if name not in lacking.shapes
            and not is_buffer(name)
            # A tied output embedding may be stored twice or once.
            and not (first.tied and name in vocabulary)
        ]
        if missing:
            yield (
                f"{lacking.name} lacks {len(missing)} tensors that {holder.name} has: "
                f"{name_list(missing)}"
            )


def _shape_list(names: list[str], first: Checkpoint, other: Checkpoint) -> str:
    listed = ", ".join(
        f"{name} {list(first.shapes[name])} against {list(other.shapes[name])}"
        for name in names[:_SHOWN]
    )
    return listed + _more(names)


def pairing_problems(expert: Checkpoint, base: Checkpoint) -> Iterator[str]:
    """Yield why a delta of the two cannot be had; nothing where it can."""
    for side in (base, expert):
        yield from own_problems(side)
    rows = [
        name
        for name, shape in base.shapes.items()
        if (other := expert.shapes.get(name, shape)) != shape
        and len(shape) == 2
        and other[1:] == shape[1:]
        and (shape[0] == base.vocab_size or other[0] == expert.vocab_size)
    ]
    for name in rows[:1]:
        yield (
            f"{expert.name} and {base.name} have different vocabularies: {name} has "
            f"{expert.shapes[name][0]} and {base.shapes[name][0]} rows; a delta needs the base "
            "with the expert's vocabulary (load the base, resize_token_embeddings, save it)"
        )
    copies = [name for name in (*base.shapes, *expert.shapes) if name.endswith(_HEADS)]
    for problem in pair_problems(base, expert, vocabulary=[*rows, *copies], aligned=True):
        yield problem.replace("layer swapping needs experts of", "an expert and its base are of")
