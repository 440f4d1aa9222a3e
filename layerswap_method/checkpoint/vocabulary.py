"""The tokens of a checkpoint: which rows of its embeddings stand for which."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from layerswap_method.checkpoint.checkpoint import Checkpoint, name_list
from layerswap_method.errors import InputError, describe_error

ALIGN = (
    "add tokenizer: {source: union} or tokenizer: {source: base} so that mergekit aligns the "
    "tokens, or in layer_swap take the rows of one model (non_layer: task, language or base)"
)
_TOKENIZER = "tokenizer.json"


class Vocabulary(NamedTuple):
    """The tokens of one checkpoint with their ids, and which are added or special tokens."""

    tokens: Mapping[str, int]
    added: frozenset[str]


def read_vocabulary(name: str, folder: Path) -> Vocabulary | None:
    """Return the vocabulary in `folder`; None where no ``tokenizer.json`` is there.

    Raises `InputError`, which begins with `name`, for a file that is damaged.
    """
    file = folder / _TOKENIZER
    if not file.is_file():
        return None
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        vocab = document["model"]["vocab"]
        if not isinstance(vocab, dict):  # Unigram models list [token, score]
            vocab = {entry[0]: number for number, entry in enumerate(vocab)}
        tokens = {str(token): int(number) for token, number in vocab.items()}
        listed = document.get("added_tokens") or []
        added = {str(entry["content"]): int(entry["id"]) for entry in listed}
    except (OSError, ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as error:
        what = f"{file} cannot be read as a tokenizer ({describe_error(error)})"
        raise InputError(f"{name}: {what}; download it again") from error
    return Vocabulary(tokens | added, frozenset(added))


def match_tokens(tokens: Mapping[str, int], other: Mapping[str, int]) -> tuple[int, int, int]:
    """Return how many of the `tokens` have the same id in `other`, another id, or none."""
    shared = tokens.keys() & other.keys()
    same = sum(tokens[token] == other[token] for token in shared)
    return same, len(shared) - same, len(tokens) - len(shared)


def token_conflicts(
    givers: Sequence[Checkpoint], remedy: str = ALIGN
) -> tuple[list[str], list[str]]:
    """Return (errors, warnings) about rows of the vocabularies that stand for different tokens.

    An average of such rows mixes unrelated words. Where only added or special tokens differ, as
    in published experts that renamed reserved tokens, it is a warning. `givers` are the checkpoints
    that give the rows, or the tokenizer.
    """
    errors, warnings = [], []
    for other in givers[1:]:
        pair = (givers[0], other)
        files = [model.path / _TOKENIZER for model in pair]
        if not all(f.is_file() for f in files) or files[0].read_bytes() == files[1].read_bytes():
            continue
        ours, theirs = filter(None, (read_vocabulary(model.name, model.path) for model in pair))
        by_id = {number: token for token, number in theirs.tokens.items()}
        pairs = ((number, a, by_id.get(number, a)) for a, number in ours.tokens.items())
        differing = [(number, a, b) for number, a, b in pairs if a != b]
        if not differing:
            continue
        added = ours.added | theirs.added
        plain = [row for row in differing if not added.intersection(row[1:])]
        shown = name_list([f"{number} is {a!r} and {b!r}" for number, a, b in plain or differing])
        what = f"{givers[0].name} and {other.name} have different tokens at {len(differing)} ids"
        if plain:
            errors.append(f"{what} ({shown}), so the merge would mix unrelated words; {remedy}")
        else:
            warnings.append(
                f"{what}, all added or special tokens ({shown}); the merge has the tokenizer of "
                "its base_model, if its log names no other"
            )
    return errors, warnings
