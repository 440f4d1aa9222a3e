"""The tokens of a model, read from the files of its tokenizer, whatever their form."""

from __future__ import annotations

import base64
import functools
import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from layerswap_method.errors import InputError, describe_error

TOKENIZER = "tokenizer.json"
_FORMS = (
    TOKENIZER,
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
        if file.name == TOKENIZER:
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


def tokenizer_digests(folder: Path) -> Mapping[str, str]:
    """Return the names of the files with the tokens in `folder` -> the SHA-256 of their content."""
    names = dict.fromkeys(_files(folder, (*_FORMS, *_CODE, *_ADDED)))
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in names}


def _files(folder: Path, patterns: Sequence[str]) -> Iterator[Path]:
    """Yield the files of a folder that match, in the order of the patterns."""
    for pattern in patterns:
        yield from (file for file in sorted(folder.glob(pattern)) if file.is_file())


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
