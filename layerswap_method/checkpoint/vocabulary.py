"""The vocabularies of several checkpoints: which rows of their embeddings stand for which."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

from layerswap_method.checkpoint.checkpoint import Checkpoint, name_list
from layerswap_method.checkpoint.stored import (
    FLOATS,
    StoredTensor,
    ensure_rows_there,
    read_floats,
)
from layerswap_method.checkpoint.tokens import TOKENIZER, Vocabulary
from layerswap_method.errors import counted

ALIGN = (
    "add tokenizer: {source: union} or tokenizer: {source: base} so that mergekit aligns the "
    "tokens, or in layer_swap take the rows of one model (non_layer: task, language or base)"
)
ONE_VOCABULARY = (
    "expert and base must share a vocabulary: give the base that the expert was trained from, with "
    "its tokens (load the base, resize_token_embeddings, save it)"
)
_SAMPLED, _ALIKE = 64, 0.5
"""Number of embedding rows that are compared where a tokenizer is missing, and the cosine from
which they stand for the same tokens: of unrelated rows it is near 0, of fine-tuned ones near 1."""


def token_conflicts(
    givers: Sequence[Checkpoint], remedy: str = ALIGN
) -> tuple[list[str], list[str]]:
    """Return (errors, warnings) about rows of the vocabularies that stand for different tokens.

    An average of such rows mixes unrelated words, and so may one of rows whose tokens cannot be
    compared. Where only added or special tokens differ, as in published experts that renamed
    reserved tokens, it is a warning; so is a missing tokenizer where the rows themselves are alike.
    `givers` are the checkpoints that give the rows, or the tokenizer. Each is compared with all
    before it: an id that the first does not use may stand for two tokens in the others.
    """
    errors, warnings = [], []
    earlier: list[tuple[Checkpoint, Vocabulary, Mapping[str, int]]] = []
    first = next((giver for giver in givers if giver.has_tokenizer), None)
    for other in givers:
        if first is None or other is first or _same_files(first, other):
            continue
        if not other.has_tokenizer:
            if _alike_rows(first, other):
                warnings.append(
                    f"{other.name} has no tokenizer: its tokens are taken for those of "
                    f"{first.name}, as the embedding rows are alike in a sample"
                )
            else:
                errors.append(
                    f"{other.name} has no tokenizer, so its tokens cannot be compared with those "
                    f"of {first.name}, and the embedding rows are not alike; copy the tokenizer "
                    "that it was trained with into its folder"
                )
            continue
        first_vocabulary, other_vocabulary = first.vocabulary, other.vocabulary
        if first_vocabulary is None or other_vocabulary is None:
            vocabularies = {first.name: first_vocabulary, other.name: other_vocabulary}
            unread = [name for name, vocabulary in vocabularies.items() if vocabulary is None]
            errors.append(
                f"the tokens of {first.name} and {other.name} cannot be compared: only its own "
                f"code reads the tokenizer of {' and '.join(unread)}; save it as {TOKENIZER}, or "
                f"{remedy}"
            )
            continue
        earlier = earlier or [(first, first_vocabulary, first_vocabulary.tokens)]
        for holder, vocabulary, tokens in earlier:
            differing = _differing(tokens, other_vocabulary.tokens)
            added = vocabulary.added | other_vocabulary.added
            plain = [row for row in differing if not added.intersection(row[1:])]
            rows = [f"{n} is {token!r} and {taken!r}" for n, token, taken in plain or differing]
            examples = name_list(rows)
            pair = f"{holder.name} and {other.name}"
            conflict = f"{pair} have different tokens at {len(differing)} ids"
            if plain:
                errors.append(
                    f"{conflict} ({examples}), so the merge would mix unrelated words; {remedy}"
                )
            elif differing:
                warnings.append(
                    f"{conflict}, all added or special tokens ({examples}); the merge has the "
                    "tokenizer of its base_model, if its log names no other"
                )
        numbers = {number for *_, tokens in earlier for number in tokens.values()}
        further = _beyond(other_vocabulary.tokens, numbers)
        if further:
            earlier.append((other, other_vocabulary, further))
    return errors, warnings


def tokenizer_warnings(
    donor: Checkpoint, givers: Sequence[Checkpoint], checkpoints: Iterable[Checkpoint]
) -> Iterator[str]:
    """Yield what a merge of `checkpoints` lacks of their tokenizers, as it has the donor's.

    `givers` are those that give it vocabulary rows.
    """
    holder = next((model for model in checkpoints if model.has_tokenizer), None)
    if not donor.has_tokenizer and holder is not None:
        yield (
            f"the merge has no tokenizer, because {donor.name}, whose config and tokenizer it "
            f"takes, has none; copy that of {holder.name} into its folder, if that has the same "
            "tokens"
        )
    holders: dict[tuple[str, ...], list[str]] = {}
    for giver in givers:
        if lost := lost_tokens(giver, donor):
            holders.setdefault(tuple(lost), []).append(giver.name)
    for tokens, names in holders.items():
        yield (
            f"the merge has rows for tokens of {' and '.join(names)} ({name_list(tokens)}) that "
            f"the tokenizer of {donor.name}, which it takes, lacks; to use them, copy that of "
            f"{names[0]} into the merge"
        )


def lost_tokens(giver: Checkpoint, donor: Checkpoint) -> list[str]:
    """Return the tokens of a model that has rows for them, whose ids the donor does not use.

    They are lost where a merge has rows of the one and the tokenizer of the other, as tokens that
    were added in spare rows of an embedding. Tokenizers that cannot be read, or that are equal,
    lose none.
    """
    if giver is donor or _same_files(donor, giver):
        return []
    vocabulary, taken = giver.vocabulary, donor.vocabulary
    table = giver.tensors.get(giver.embedding or "")
    if vocabulary is None or taken is None or table is None:
        return []
    further = _beyond(vocabulary.tokens, {*taken.tokens.values()})
    return [token for token, number in further.items() if number < table.rows]


def tokens_without_rows(checkpoints: Iterable[Checkpoint]) -> list[str]:
    """Return a sentence for each model whose embedding has no row for tokens of its tokenizer.

    Tokenizers in files of the same content are read once.
    """
    readers: dict[frozenset[tuple[str, str]], Checkpoint] = {}
    sentences = []
    for checkpoint in checkpoints:
        table = checkpoint.tensors.get(checkpoint.embedding or "")
        if table is None or checkpoint.decoder.is_apart(table.name):
            continue
        content = frozenset(checkpoint.tokenizer_digests.items())
        vocabulary = readers.setdefault(content, checkpoint).vocabulary
        tokens = {} if vocabulary is None else vocabulary.tokens
        numbered = ((number, token) for token, number in tokens.items())
        lacking = sorted(pair for pair in numbered if pair[0] >= table.rows)
        if lacking:
            count = counted(len(lacking), "token")
            names = name_list([token for _, token in lacking])
            sentences.append(
                f"{checkpoint.name}: {count} of its tokenizer ({names}) have no row in its "
                f"{table.name}, which has {table.rows}"
            )
    return sentences


def _differing(
    first_tokens: Mapping[str, int], other_tokens: Mapping[str, int]
) -> list[tuple[int, str, str]]:
    """Return the ids that stand for different tokens, with both; ids of one alone do not count."""
    other_by_id = {number: token for token, number in other_tokens.items()}
    differing = []
    for token, number in first_tokens.items():
        other_token = other_by_id.get(number, token)
        if token != other_token:
            differing.append((number, token, other_token))
    return differing


def _beyond(tokens: Mapping[str, int], numbers: Container[int]) -> dict[str, int]:
    """Return the tokens whose ids are not among `numbers`."""
    return {token: number for token, number in tokens.items() if number not in numbers}


def _same_files(first: Checkpoint, other: Checkpoint) -> bool:
    """Return whether the tokens of two models are in files of the same content."""
    digests, other_digests = first.tokenizer_digests, other.tokenizer_digests
    if TOKENIZER in digests and TOKENIZER in other_digests:
        return digests[TOKENIZER] == other_digests[TOKENIZER]
    return digests == other_digests


def _alike_rows(first: Checkpoint, other: Checkpoint) -> bool:
    """Return whether rows of the input embeddings have one direction, row by row, in a sample."""
    import numpy as np

    first_table, other_table = _embedding_table(first), _embedding_table(other)
    if first_table is None or other_table is None or first_table.shape[1] != other_table.shape[1]:
        return False
    count = min(first_table.rows, other_table.rows)
    sample = [slice(row, row + 1) for row in range(0, count, max(1, count // _SAMPLED))]
    ensure_rows_there((table, row) for row in sample for table in (first_table, other_table))
    cosines = []
    for row in sample:
        first_row = read_floats(first_table, row).ravel()
        other_row = read_floats(other_table, row).ravel()
        norm = float(np.linalg.norm(first_row) * np.linalg.norm(other_row))
        if norm:  # rows of padding may be zero
            cosines.append(float(first_row @ other_row) / norm)
    return bool(cosines) and float(np.median(cosines)) >= _ALIKE


def _embedding_table(checkpoint: Checkpoint) -> StoredTensor | None:
    """Return the input embedding; None where none is stored as a matrix of floats."""
    table = checkpoint.tensors.get(checkpoint.embedding or "")
    is_matrix = table is not None and table.dtype in FLOATS and len(table.shape) == 2
    return table if is_matrix else None
