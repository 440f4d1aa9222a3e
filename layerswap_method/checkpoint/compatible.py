"""Whether checkpoints can be merged, and why not; what a user should know before they are.

Every way to merge asks here: from file to file, into an engine, through mergekit, and for the
change of an expert from its base. So a pair that one of them takes is one that the others take.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from layerswap_method.checkpoint.checkpoint import Checkpoint, is_buffer, is_head, name_list
from layerswap_method.checkpoint.config import FIELDS, read_document, stated_fields, text_part
from layerswap_method.checkpoint.stored import FLOATS, TORCH_NAMES, same_content
from layerswap_method.checkpoint.tokens import token_conflicts
from layerswap_method.tensor_names import decoder_layer

_PARENT = "merging needs models of one pretrained parent"
_ALIGN = (
    "add tokenizer: {source: base} (or union) so that mergekit aligns the tokens, or in layer_swap "
    "take the rows of one model (non_layer: task, language or base)"
)
_ONE_VOCABULARY = (
    "features are compared one by one: give the base with the expert's vocabulary (load the base, "
    "resize_token_embeddings, save it)"
)

_BITS = {"float64": 64, "float32": 32, "bfloat16": 16, "float16": 16}


def odd_dtypes(checkpoint: Checkpoint) -> list[str]:
    """Return the dtypes of weights that are no floats: those of quantised weights."""
    return sorted(
        {
            tensor.dtype
            for name, tensor in checkpoint.tensors.items()
            if tensor.dtype not in FLOATS and not is_buffer(name)
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
) -> Iterator[str]:
    """Yield why checkpoints cannot be merged with each other; nothing where they can.

    Args:
        checkpoints: all models of a merge, each once; the others are compared with the first.
        rows_from: names of those that give the merge its vocabulary rows. Only these must have
            rows in one number, for the same tokens. None: all of them.
        aligned: the recipe has ``tokenizer:``, so vocabularies may differ.
        by_row: features are compared one by one, which no alignment can mend.
    """
    for checkpoint in checkpoints:
        yield from own_problems(checkpoint)
    for other in checkpoints[1:]:
        is_free = aligned or rows_from is not None
        yield from pair_problems(checkpoints[0], other, aligned=is_free, by_row=by_row)
    if not aligned and not by_row:
        givers = _givers(checkpoints, rows_from)
        if rows_from is not None:
            yield from vocabulary_problems(givers)
        yield from token_conflicts(givers)[0] if givers else ()


def merge_warnings(
    checkpoints: Sequence[Checkpoint],
    *,
    dtype: str | None,
    rows_from: Collection[str] | None = None,
    aligned: bool = False,
) -> Iterator[str]:
    """Yield what a user should know of checkpoints that can be merged.

    Args:
        checkpoints: all models of a merge, each once.
        dtype: torch dtype that the recipe gives the merge; None keeps the files'.
        rows_from: as in `merge_problems`.
        aligned: as in `merge_problems`.
    """
    if dtype is None:
        yield from _mixed_dtypes(checkpoints)
    else:
        yield from _lossy_casts(checkpoints, dtype)
    yield from _mixed_settings(checkpoints)
    givers = _givers(checkpoints, rows_from)
    if not aligned and givers:
        yield from token_conflicts(givers)[1]


def _givers(
    checkpoints: Sequence[Checkpoint], rows_from: Collection[str] | None
) -> list[Checkpoint]:
    return [each for each in checkpoints if rows_from is None or each.name in rows_from]


def _mixed_dtypes(checkpoints: Sequence[Checkpoint]) -> Iterator[str]:
    dtypes = {c.name: sorted({tensor.dtype for tensor in c.tensors.values()}) for c in checkpoints}
    if len({tuple(found) for found in dtypes.values()}) > 1:
        listed = "; ".join(f"{name} {'/'.join(found)}" for name, found in dtypes.items())
        yield (
            f"the checkpoints have different dtypes ({listed}): each copied tensor keeps its own; "
            "write dtype: in the recipe for one dtype throughout"
        )


def _lossy_casts(checkpoints: Sequence[Checkpoint], dtype: str) -> Iterator[str]:
    for checkpoint in checkpoints:
        kinds = {TORCH_NAMES.get(tensor.dtype, "") for tensor in checkpoint.tensors.values()}
        wider = sorted(kind for kind in kinds if _BITS.get(kind, 0) > _BITS[dtype])
        if wider:
            yield (
                f"{checkpoint.name} is stored in {wider[0]} and dtype is {dtype}: what light "
                f"training changed may be rounded away; write dtype: {wider[0]}"
            )
        elif dtype == "float16" and "bfloat16" in kinds:
            yield (
                f"{checkpoint.name} is stored in bfloat16 and dtype is float16, whose largest "
                "number is 65504; write dtype: bfloat16"
            )


def _mixed_settings(checkpoints: Sequence[Checkpoint]) -> Iterator[str]:
    """Yield a warning where checkpoints compute differently with the same tensors."""
    stated: list[dict[str, Any]] = [
        stated_fields(text_part(read_document(each.name, each.path))) for each in checkpoints
    ]
    differing = []
    for field, (label, *_) in FIELDS.items():
        values = [found[field] for found in stated]
        if FIELDS[field].needs_same and any(value != values[0] for value in values):
            named = (f"{c.name} {v}" for c, v in zip(checkpoints, values, strict=True))
            differing.append(f"{label}: {', '.join(named)}")
    if differing:
        yield (
            f"the checkpoints have different settings ({'; '.join(differing)}); the merge has "
            f"those of its base_model; {compat_command(*checkpoints)}"
        )


def vocabulary_problems(givers: Sequence[Checkpoint]) -> Iterator[str]:
    """Yield which of the models that give vocabulary rows have another number than the first."""
    for other in givers[1:]:
        if (problem := _vocabulary_problem(givers[0], other, by_row=False)) is not None:
            yield problem


def pair_problems(
    first: Checkpoint, other: Checkpoint, *, aligned: bool = False, by_row: bool = False
) -> Iterator[str]:
    """Yield why `other` cannot be merged with `first`; nothing where it can.

    Args:
        first: the checkpoint compared with.
        other: the checkpoint compared.
        aligned: the numbers of vocabulary rows may differ.
        by_row: features are compared one by one, which no alignment can mend.
    """
    pair = f"{first.name} and {other.name}"
    if first.config.architecture != other.config.architecture:
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
