"""Tied heads: whether lm_head is the input embedding, and what to do where models differ."""

from __future__ import annotations

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


def untie_advice(name: str) -> str:
    """Return how to give a model whose head is tied an `lm_head` of its own."""
    return (
        f"untie {name} first, which changes nothing in what it computes: set tie_word_embeddings: "
        "false in its config.json, and store a copy of its embedding as lm_head"
    )
