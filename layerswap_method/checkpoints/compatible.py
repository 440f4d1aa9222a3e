"""Whether checkpoints can be merged, and why not. Knows headers and configurations.

Every way to merge asks here: through mergekit, as a stream, for the change of an expert from its
base. So a pair that one of them takes is one that the others take.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from layerswap_method.algorithm.tensor_names import decoder_layer
from layerswap_method.checkpoints.headers import Checkpoint, is_buffer, is_head, name_list
from layerswap_method.checkpoints.stored import FLOATS, same_content


def odd_dtypes(checkpoint: Checkpoint) -> list[str]:
    """Return the dtypes of matrices that are no floats: those of quantised weights."""
    return sorted(
        {
            tensor.dtype
            for name, tensor in checkpoint.tensors.items()
            if tensor.dtype not in FLOATS and len(tensor.shape) > 1 and not is_buffer(name)
        }
    )


def own_problems(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield what keeps this one checkpoint from being merged at all."""
    odd = odd_dtypes(checkpoint)
    if checkpoint.config.quantization is not None:
        yield (
            f"{checkpoint.name} is quantised ({checkpoint.config.quantization}); averages of "
            "quantised weights mean nothing: use the unquantised checkpoint"
        )
    elif odd:
        yield (
            f"{checkpoint.name} stores weights as {', '.join(odd)} (quantised); use the "
            "unquantised checkpoint"
        )
    head, embedding = checkpoint.head, checkpoint.embedding
    if checkpoint.config.tie_word_embeddings and head is not None and embedding is not None:
        tensors = checkpoint.tensors
        if not same_content(tensors[head], tensors[embedding]):
            yield (
                f"{checkpoint.name} ties its output embedding to the input embedding "
                f"(tie_word_embeddings: true), but its {head} is not its {embedding}; set "
                "tie_word_embeddings: false in its config.json if it was trained so, or remove "
                f"{head}"
            )


def mixed_dtypes(checkpoints: Sequence[Checkpoint]) -> str | None:
    """Return a warning where checkpoints are stored in different dtypes; None where they agree."""
    dtypes = {c.name: sorted({tensor.dtype for tensor in c.tensors.values()}) for c in checkpoints}
    if len({tuple(found) for found in dtypes.values()}) < 2:
        return None
    listed = "; ".join(f"{name} {'/'.join(found)}" for name, found in dtypes.items())
    return (
        f"the checkpoints have different dtypes ({listed}): each copied tensor keeps its own; "
        "write dtype: in the recipe for one dtype throughout"
    )


def ties(checkpoint: Checkpoint, *others: Checkpoint) -> bool:
    """Return whether input and output embeddings are one tensor in a checkpoint.

    Where its config does not say it, the default of the model's class holds, which is that of the
    others: it ties nothing if all of them store an output embedding.
    """
    if checkpoint.config.tie_word_embeddings is not None:
        return checkpoint.config.tie_word_embeddings
    return not all(each.head for each in (checkpoint, *others))


def compat_command(*checkpoints: Checkpoint) -> str:
    """Return the command that shows all differences, with names that it understands."""
    named = [
        each.name if "/" in each.name and "+" not in each.name else str(each.path)
        for each in checkpoints
    ]
    return f"every difference, and what can be done: layerswap compat {' '.join(named)}"


def merge_problems(
    checkpoints: Sequence[Checkpoint],
    *,
    rows_from: Collection[str] | None = None,
    aligned: bool = False,
    by_row: bool = False,
    allow_architectures: bool = False,
) -> Iterator[str]:
    """Yield why checkpoints cannot be merged with each other; nothing where they can.

    Args:
        checkpoints: all models of a merge, each once; the others are compared with the first.
        rows_from: names of those that give the merge its vocabulary rows. Only these must have
            rows in one number. None: all of them.
        aligned: as in `pair_problems`, like the rest.
        by_row: see there.
        allow_architectures: see there.
    """
    for checkpoint in checkpoints:
        yield from own_problems(checkpoint)
    is_aligned = aligned or rows_from is not None
    for other in checkpoints[1:]:
        yield from pair_problems(
            checkpoints[0],
            other,
            aligned=is_aligned,
            by_row=by_row,
            allow_architectures=allow_architectures,
        )
    if rows_from is not None and not aligned and not by_row:
        yield from vocabulary_problems([c for c in checkpoints if c.name in rows_from])


def vocabulary_problems(givers: Sequence[Checkpoint]) -> Iterator[str]:
    """Yield which of the models that give vocabulary rows have another number than the first."""
    for other in givers[1:]:
        if (problem := _vocabulary_problem(givers[0], other, by_row=False)) is not None:
            yield problem


def pair_problems(
    first: Checkpoint,
    other: Checkpoint,
    *,
    aligned: bool = False,
    by_row: bool = False,
    allow_architectures: bool = False,
) -> Iterator[str]:
    """Yield why `other` cannot be merged with `first`; nothing where it can.

    Args:
        first: the checkpoint compared with.
        other: the checkpoint compared.
        aligned: the recipe aligns vocabularies (``tokenizer:``), so their rows may differ.
        by_row: rows are compared one by one, which no alignment can mend: `aligned` is not asked.
        allow_architectures: the user said ``--allow-crimes``: class names may differ.
    """
    pair = f"{first.name} and {other.name}"
    if first.config.architecture != other.config.architecture and not allow_architectures:
        yield (
            f"{pair} have different architectures ({first.config.architecture}, "
            f"{other.config.architecture}); {_PARENT}; {compat_command(first, other)}"
        )
        return
    if first.num_layers != other.num_layers:
        yield (
            f"{pair} have different depths ({first.num_layers} and {other.num_layers} layers); "
            f"{_PARENT}; {compat_command(first, other)}"
        )
        return
    is_tied = ties(first, other)
    if is_tied != ties(other, first):
        tied, untied = (first, other) if is_tied else (other, first)
        yield (
            f"{tied.name} ties its output embedding to the input embedding and {untied.name} does "
            "not; untie the first (set tie_word_embeddings: false and save with a copy of the "
            f"embedding as lm_head) or use models of one kind; {compat_command(first, other)}"
        )
        return
    differing = [
        name for name, shape in first.shapes.items() if other.shapes.get(name, shape) != shape
    ]
    shapes = [name for name in differing if not _counts_tokens(name, first, other)]
    problem = _vocabulary_problem(first, other, by_row=by_row)
    if problem is not None and (by_row or not aligned):
        yield problem
    if shapes:
        yield (
            f"{pair} have different shapes: {_shape_list(shapes, first, other)}; "
            f"{compat_command(first, other)}"
        )
    for holder, lacking in ((first, other), (other, first)):
        missing = [
            name
            for name in holder.tensors
            if name not in lacking.tensors
            and not is_buffer(name)
            and not (is_tied and is_head(name))  # may be stored twice or once
        ]
        if missing:
            yield (
                f"{lacking.name} lacks {len(missing)} tensors that {holder.name} has: "
                f"{name_list(missing)}; {compat_command(first, other)}"
            )


def same_vocabulary(first: Checkpoint, other: Checkpoint) -> bool:
    """Return whether two models have vocabulary tensors of the same shapes."""
    return _vocabulary_problem(first, other, by_row=False) is None


def _vocabulary_problem(first: Checkpoint, other: Checkpoint, *, by_row: bool) -> str | None:
    rows = [name for name in first.shapes if _counts_tokens(name, first, other)]
    if not rows:
        return None
    return (
        f"{first.name} and {other.name} have different vocabularies: "
        f"{_shape_list(rows, first, other)}; {_ONE_VOCABULARY if by_row else _ALIGN}; "
        f"{compat_command(first, other)}"
    )


_PARENT = "merging needs models of one pretrained parent"
_ALIGN = (
    "add tokenizer: {source: base} (or union) so that mergekit aligns the tokens, or in layer_swap "
    "take the rows of one model (non_layer: task, language or base)"
)
_ONE_VOCABULARY = (
    "rows are compared one by one: give the base with the expert's vocabulary (load the base, "
    "resize_token_embeddings, save it)"
)


def _counts_tokens(name: str, *checkpoints: Checkpoint) -> bool:
    """Return whether a tensor differs in its first axis only, and that axis counts tokens."""
    if any(name not in checkpoint.shapes for checkpoint in checkpoints):
        return False
    one, other = (checkpoint.shapes[name] for checkpoint in checkpoints)
    sizes = {checkpoint.config.vocab_size for checkpoint in checkpoints}
    return (
        one != other
        and one[1:] == other[1:]
        and decoder_layer(name) is None
        and bool({*one[:1], *other[:1]} & sizes)
    )


def _shape_list(names: Sequence[str], first: Checkpoint, other: Checkpoint) -> str:
    return name_list(
        [f"{name} {list(first.shapes[name])} against {list(other.shapes[name])}" for name in names]
    )
