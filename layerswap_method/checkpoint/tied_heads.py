"""Tied heads: whether lm_head is the input embedding, what is wrong with it, and what to do."""

from __future__ import annotations

from collections.abc import Iterator

from layerswap_method.checkpoint.checkpoint import Checkpoint
from layerswap_method.checkpoint.stored import same_content


def ties(checkpoint: Checkpoint, *others: Checkpoint) -> bool:
    """Return whether input and output embeddings are one tensor in a checkpoint.

    If its config does not say, the weights do, as in transformers: an output embedding of other
    content is not tied. A copy is, unless it and all the others store one.
    """
    if checkpoint.config.tie_word_embeddings is not None:
        return checkpoint.config.tie_word_embeddings
    head, embedding = checkpoint.head, checkpoint.embedding
    if head is not None and embedding is not None:
        tensors = checkpoint.tensors
        if not same_content(tensors[head], tensors[embedding]):
            return False
    return not all(model.head for model in (checkpoint, *others))


def tied_head_problems(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield that a head is tied by the config and is another tensor than the embedding."""
    head, embedding = checkpoint.head, checkpoint.embedding
    if (
        checkpoint.config.tie_word_embeddings
        and head is not None
        and embedding is not None
        and not same_content(checkpoint.tensors[head], checkpoint.tensors[embedding])
    ):
        yield (
            f"{checkpoint.name} ties its output embedding to the input embedding "
            f"(tie_word_embeddings: true), but its {head} is not its {embedding}, and engines "
            "disagree on which counts; set tie_word_embeddings: false in its config.json to use "
            "both"
        )


def mixed_head_problems(first: Checkpoint, other: Checkpoint) -> Iterator[str]:
    """Yield that one of two models ties its head and the other does not."""
    is_tied = ties(first, other)
    if is_tied != ties(other, first):
        tied, untied = (first, other) if is_tied else (other, first)
        yield (
            f"{tied.name} ties its output embedding to the input embedding and {untied.name} does "
            f"not; {untie_advice(tied.name)}; or use models of one kind"
        )


def untie_advice(name: str) -> str:
    """Return how to give a model whose head is tied an `lm_head` of its own."""
    return (
        f"untie {name} first, which changes nothing in what it computes: set tie_word_embeddings: "
        "false in its config.json, and store a copy of its embedding as lm_head"
    )
