"""Which tokens two models share, and what both are given to read. Knows token ids and texts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from layerswap_method.errors import InputError
from layerswap_method.harmonize.align import Pairs
from layerswap_method.harmonize.model import Model

_DOCUMENTS, _LENGTH = 16, 64
"""Of what both models read: documents, and tokens of each."""

_SEED = 0
_WORD_MARK = "Ġ"
"""How byte-level tokenizers write the space before a word; SentencePiece writes ``▁``."""


def pair_tokens(
    models: tuple[Model, Model],
    tokens: tuple[Mapping[str, int] | None, Mapping[str, int] | None],
    text: str | None = None,
) -> Pairs:
    """Return the tokens that two models share, and documents of such tokens.

    Without `text`, the documents are drawn from the shared tokens (seed 0). With it they are its
    words as far as both vocabularies have them as one token, in their order.

    Args:
        models: both.
        tokens: token -> id of each; where neither is known, and the vocabularies are of one size,
            the same ids are taken for the same tokens.
        text: what to read; words are separated by white space.

    Raises:
        InputError: where the models share no tokens, or too few words of the text.
    """
    known = _vocabularies(models, tokens)
    shared = sorted(known[0].keys() & known[1].keys(), key=known[0].__getitem__)
    if len(shared) < 2:
        raise InputError(
            f"{models[0].name} and {models[1].name} share no tokens: a rotation is fitted on the "
            "embeddings of shared tokens"
        )
    if text is None:
        generator = torch.Generator().manual_seed(_SEED)
        drawn = torch.randint(len(shared), (_DOCUMENTS * _LENGTH,), generator=generator)
        words = [shared[number] for number in drawn.tolist()]
    else:
        words = _words(text, set(shared))
    count = len(words) // _LENGTH
    first, second = (
        (
            torch.tensor([vocabulary[token] for token in shared]),
            torch.tensor([vocabulary[w] for w in words[: count * _LENGTH]]).view(count, _LENGTH),
        )
        for vocabulary in known
    )
    return Pairs(shared=(first[0], second[0]), probe=(first[1], second[1]))


def read_text(file: Path) -> str:
    """Return the text that both models read.

    Raises:
        InputError: where the file cannot be read as UTF-8.
    """
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InputError(f"--probe: {file} cannot be read as text: {error}") from error


def _vocabularies(
    models: tuple[Model, Model], tokens: tuple[Mapping[str, int] | None, Mapping[str, int] | None]
) -> tuple[dict[str, int], dict[str, int]]:
    rows = [model.shape.vocab for model in models]
    if tokens == (None, None) and rows[0] == rows[1]:
        same = {str(number): number for number in range(rows[0])}
        return same, same
    for model, known in zip(models, tokens, strict=True):
        if known is None:
            raise InputError(
                f"{model.name} has no tokenizer.json, so its tokens are not known; save its "
                "tokenizer there with AutoTokenizer.from_pretrained(...).save_pretrained(DIR)"
            )
    first, second = (
        {_common(t): number for t, number in (known or {}).items() if number < count}
        for known, count in zip(tokens, rows, strict=True)
    )
    return first, second


def _common(token: str) -> str:
    return token.replace(_WORD_MARK, "▁")


def _words(text: str, shared: set[str]) -> list[str]:
    found = [
        next((form for form in (f"▁{word}", word) if form in shared), None) for word in text.split()
    ]
    words = [word for word in found if word is not None]
    most = _DOCUMENTS * _LENGTH
    if len(words) < _LENGTH:
        raise InputError(
            f"--probe: only {len(words)} words of the text are one token of both models, and at "
            f"least {_LENGTH} are needed; give a longer text, or leave it out"
        )
    return words[:most]
