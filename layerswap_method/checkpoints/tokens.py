"""The tokens of a checkpoint's vocabulary. Knows ``tokenizer.json``; not transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from layerswap_method.errors import InputError
from layerswap_method.frozen import Frozen


class TokenMatch(Frozen):
    """How the tokens of one vocabulary lie in another one."""

    tokens: int
    """Tokens of this one."""

    same_id: int
    """Tokens that the other one has at the same number."""

    other_id: int
    """Tokens that the other one has at another number."""

    missing: int
    """Tokens that the other one does not have."""


def read_tokens(name: str, folder: Path) -> dict[str, int] | None:
    """Return token -> id of the vocabulary in `folder`; None where no ``tokenizer.json`` is there.

    Args:
        name: how messages begin.
        folder: the checkpoint.

    Raises:
        InputError: for a file that is damaged.
    """
    file = folder / "tokenizer.json"
    if not file.is_file():
        return None
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        vocab = document["model"]["vocab"]
        # Unigram models list [token, score], the others map token -> id.
        pairs = vocab.items() if isinstance(vocab, dict) else zip(*_numbered(vocab), strict=True)
        tokens = {str(token): int(number) for token, number in pairs}
        added = document.get("added_tokens") or []
        return tokens | {str(each["content"]): int(each["id"]) for each in added}
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise InputError(
            f"{name}: {file} cannot be read as a tokenizer ({type(error).__name__}: {error}); "
            "download it again"
        ) from error


def match_tokens(tokens: Mapping[str, int], other: Mapping[str, int]) -> TokenMatch:
    """Return how `tokens` lie in `other`."""
    shared = tokens.keys() & other.keys()
    same = sum(tokens[token] == other[token] for token in shared)
    return TokenMatch(
        tokens=len(tokens),
        same_id=same,
        other_id=len(shared) - same,
        missing=len(tokens) - len(shared),
    )


def _numbered(vocab: list[list[object]]) -> tuple[list[object], range]:
    return [entry[0] for entry in vocab], range(len(vocab))
