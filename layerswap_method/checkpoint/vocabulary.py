"""The tokens of a checkpoint: which rows of its embeddings stand for which."""

from __future__ import annotations

import base64
import functools
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from layerswap_method.checkpoint.checkpoint import Checkpoint, name_list
from layerswap_method.checkpoint.stored import (
    FLOATS,
    StoredTensor,
    ensure_rows_there,
    read_floats,
)
from layerswap_method.errors import InputError, describe_error

ALIGN = (
    "add tokenizer: {source: union} or tokenizer: {source: base} so that mergekit aligns the "
    "tokens, or in layer_swap take the rows of one model (non_layer: task, language or base)"
)
_TOKENIZER = "tokenizer.json"
_FORMS = (
    _TOKENIZER,
    "tekken.json",
    "vocab.json",
    "*.tiktoken",
    "tokenizer.model",
    "*.model",
    "vocab.txt",
)
"""Files with the tokens of a model, in the order in which transformers prefers them."""

_CODE = ("vocab*", "token*.py")
"""Other files that a tokenizer is loaded from, whose form only its own code knows."""

_ADDED = ("added_tokens.json", "tokenizer_config.json")

_FAIRSEQ = ("<s>", "<pad>", "</s>", "<unk>")
"""First tokens of fairseq's vocabularies, instead of the first three pieces of SentencePiece."""

_DAMAGED = (
    OSError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
"""Errors that a file raises which does not have the form of its name."""

_SPECIAL_PIECES = (2, 3, 4)
"""SentencePiece's types of pieces that are no text: unknown, control and user-defined."""

_TIKTOKEN = re.compile(rb"[A-Za-z0-9+/]+=* \d+\r?\n")
_SAMPLED, _ALIKE = 64, 0.5
"""Number of embedding rows that are compared where a tokenizer is missing, and the cosine from
which they stand for the same tokens: of unrelated rows it is near 0, of fine-tuned ones near 1."""


class Vocabulary(NamedTuple):
    """The tokens of one checkpoint with their ids, and which are added or special tokens.

    Tokens of bytes are written as in byte-level BPE, whichever form their file has.
    """

    tokens: Mapping[str, int]
    added: frozenset[str]


def has_tokenizer(folder: Path) -> bool:
    """Return whether `folder` has a file in which a tokenizer keeps its tokens, by its name."""
    return any(_files(folder, (*_FORMS, *_CODE)))


def read_vocabulary(name: str, folder: Path) -> Vocabulary | None:
    """Return the vocabulary in `folder`; None where no file is there, or in no known form.

    Forms are those of transformers: ``tokenizer.json``, ``vocab.json`` or ``vocab.txt``,
    SentencePiece, tekken and tiktoken. Raises `InputError`, which begins with `name`, for a file
    that is damaged.
    """
    file = next(_files(folder, _FORMS), None)
    if file is None:
        return None
    try:
        if file.name == _TOKENIZER:
            return _of_tokenizer(_json(file))
        if file.name == "tekken.json":
            return _of_tekken(_json(file))
        if file.name == "vocab.json":
            vocabulary = Vocabulary(_numbered(_json(file)), frozenset())
        elif file.name == "vocab.txt":
            lines = file.read_text(encoding="utf-8").rstrip("\n").split("\n")
            tokens = {line: number for number, line in enumerate(lines)}
            vocabulary = Vocabulary(tokens, frozenset())
        else:
            vocabulary = _of_model(file)
        added = _added_tokens(folder)
    except _DAMAGED as error:
        raise InputError(
            f"{name}: {file} cannot be read as a tokenizer ({describe_error(error)}); download it "
            "again"
        ) from error
    return Vocabulary({**vocabulary.tokens, **added}, vocabulary.added | added.keys())


def match_tokens(tokens: Mapping[str, int], other: Mapping[str, int]) -> tuple[int, int, int]:
    """Return how many of the `tokens` have the same id in `other`, another id, or none."""
    shared = tokens.keys() & other.keys()
    same = sum(tokens[token] == other[token] for token in shared)
    return same, len(shared) - same, len(tokens) - len(shared)


def token_conflicts(
    givers: Sequence[Checkpoint], remedy: str = ALIGN
) -> tuple[list[str], list[str]]:
    """Return (errors, warnings) about rows of the vocabularies that stand for different tokens.

    An average of such rows mixes unrelated words, and so may one of rows whose tokens cannot be
    compared. Where only added or special tokens differ, as in published experts that renamed
    reserved tokens, it is a warning; so is a missing tokenizer where the rows themselves are alike.
    `givers` are the checkpoints that give the rows, or the tokenizer.
    """
    errors, warnings = [], []
    first = next((giver for giver in givers if has_tokenizer(giver.path)), None)
    for other in givers:
        if first is None or other is first or _same_files(first.path, other.path):
            continue
        if not has_tokenizer(other.path):
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
        first_vocabulary = read_vocabulary(first.name, first.path)
        other_vocabulary = read_vocabulary(other.name, other.path)
        if first_vocabulary is None or other_vocabulary is None:
            vocabularies = {first.name: first_vocabulary, other.name: other_vocabulary}
            unread = [name for name, vocabulary in vocabularies.items() if vocabulary is None]
            errors.append(
                f"the tokens of {first.name} and {other.name} cannot be compared: only its own "
                f"code reads the tokenizer of {' and '.join(unread)}; save it as {_TOKENIZER}, or "
                f"{remedy}"
            )
            continue
        differing = _differing(first_vocabulary.tokens, other_vocabulary.tokens)
        if not differing:
            continue
        added = first_vocabulary.added | other_vocabulary.added
        plain = [row for row in differing if not added.intersection(row[1:])]
        examples = name_list(
            [f"{number} is {token!r} and {taken!r}" for number, token, taken in plain or differing]
        )
        conflict = f"{first.name} and {other.name} have different tokens at {len(differing)} ids"
        if plain:
            errors.append(
                f"{conflict} ({examples}), so the merge would mix unrelated words; {remedy}"
            )
        else:
            warnings.append(
                f"{conflict}, all added or special tokens ({examples}); the merge has the "
                "tokenizer of its base_model, if its log names no other"
            )
    return errors, warnings


def tokens_without_rows(checkpoint: Checkpoint) -> str | None:
    """Return which tokens of a model's tokenizer its embedding has no row for; None for none."""
    table = checkpoint.tensors.get(checkpoint.embedding or "")
    if table is None or checkpoint.decoder.is_apart(table.name):
        return None
    vocabulary = read_vocabulary(checkpoint.name, checkpoint.path)
    tokens = {} if vocabulary is None else vocabulary.tokens
    lacking = sorted((number, token) for token, number in tokens.items() if number >= table.rows)
    if not lacking:
        return None
    count = "1 token" if len(lacking) == 1 else f"{len(lacking)} tokens"
    names = name_list([token for _, token in lacking])
    return (
        f"{checkpoint.name}: {count} of its tokenizer ({names}) have no row in its {table.name}, "
        f"which has {table.rows}"
    )


def same_tokens(first: Checkpoint, other: Checkpoint) -> bool:
    """Return whether no row of two checkpoints is known to stand for different tokens."""
    errors, warnings = token_conflicts([first, other])
    is_compared = has_tokenizer(first.path) and has_tokenizer(other.path)
    return not errors and not (is_compared and warnings)


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


def _same_files(first: Path, other: Path) -> bool:
    """Return whether the tokens of two folders are in files of the same content."""
    patterns = (*_FORMS, *_CODE, *_ADDED)
    first_names = {file.name for file in _files(first, patterns)}
    other_names = {file.name for file in _files(other, patterns)}
    if _TOKENIZER in first_names and _TOKENIZER in other_names:
        first_names = other_names = {_TOKENIZER}
    return first_names == other_names and all(
        (first / name).read_bytes() == (other / name).read_bytes() for name in first_names
    )


def _files(folder: Path, patterns: Sequence[str]) -> Iterator[Path]:
    """Yield the files of a folder that match, in the order of the patterns."""
    for pattern in patterns:
        yield from (file for file in sorted(folder.glob(pattern)) if file.is_file())


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


def _json(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def _numbered(tokens: Mapping[Any, Any]) -> dict[str, int]:
    return {str(token): int(number) for token, number in tokens.items()}


def _of_tokenizer(document: Any) -> Vocabulary:
    vocab = document["model"]["vocab"]
    if not isinstance(vocab, dict):  # Unigram models list [token, score]
        vocab = {entry[0]: number for number, entry in enumerate(vocab)}
    listed = document.get("added_tokens") or []
    added = {str(entry["content"]): int(entry["id"]) for entry in listed}
    return Vocabulary({**_numbered(vocab), **added}, frozenset(added))


def _of_tekken(document: Any) -> Vocabulary:
    """Return Mistral's own form: special tokens come first, then the bytes in their order."""
    listed = document.get("special_tokens") or []
    special = {str(entry["token_str"]): int(entry["rank"]) for entry in listed}
    config = document["config"]
    shift = int(config.get("default_num_special_tokens") or len(special))
    size = config.get("default_vocab_size")
    vocab = document["vocab"][: None if size is None else int(size) - shift]
    tokens = {_text(entry["token_bytes"]): shift + i for i, entry in enumerate(vocab)}
    return Vocabulary({**tokens, **special}, frozenset(special))


def _of_model(file: Path) -> Vocabulary:
    """Return the tokens of a SentencePiece model, or of tiktoken's lines of bytes and number."""
    content = file.read_bytes()
    if _TIKTOKEN.match(content):
        pairs = (line.split() for line in content.splitlines() if line)
        return Vocabulary({_text(token): int(number) for token, number in pairs}, frozenset())
    from google.protobuf.message import DecodeError
    from sentencepiece import sentencepiece_model_pb2

    try:
        pieces = sentencepiece_model_pb2.ModelProto.FromString(content).pieces
    except DecodeError as error:
        raise ValueError("neither SentencePiece nor tiktoken") from error
    tokens = {piece.piece: number for number, piece in enumerate(pieces)}
    added = {piece.piece for piece in pieces if piece.type in _SPECIAL_PIECES}
    if file.name == "sentencepiece.bpe.model":
        first_tokens = {token: number for number, token in enumerate(_FAIRSEQ)}
        shifted = {
            token: number + 1 for token, number in tokens.items() if token not in first_tokens
        }
        tokens = first_tokens | shifted
        added |= {*_FAIRSEQ}
    return Vocabulary(tokens, frozenset(added))


def _text(encoded: str | bytes) -> str:
    """Return bytes in base64 as the characters by which byte-level BPE writes them."""
    return "".join(map(_byte_characters().__getitem__, base64.b64decode(encoded)))


@functools.cache
def _byte_characters() -> list[str]:
    """Return the character of each byte in byte-level BPE: itself where it is printable."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    substitutes = itertools.count(256)
    return [chr(byte if byte in printable else next(substitutes)) for byte in range(256)]


def _added_tokens(folder: Path) -> dict[str, int]:
    """Return the tokens that were added to a vocabulary, which transformers keeps beside it."""
    added, config = (_json(file) if file.is_file() else {} for file in map(folder.joinpath, _ADDED))
    decoder = config.get("added_tokens_decoder") or {}
    return _numbered(added) | {
        str(entry["content"]): int(number) for number, entry in decoder.items()
    }
