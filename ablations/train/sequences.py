"""From rows to sequences of tokens: templates, and loss on the answers only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ablations.train.rows import Row
from layerswap_method.errors import InputError, first_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

IGNORED = -100
"""The label of a token without loss (torch's `ignore_index`)."""

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Tokens:
    """One row."""

    ids: Ids
    """[length] token ids."""

    labels: Ids
    """[length] the ids that are learned, `IGNORED` elsewhere."""


@dataclass(frozen=True)
class Encoded:
    """The rows of a run as tokens."""

    rows: list[Tokens]
    """In the order of training."""

    cut: int
    """Rows that were longer than allowed and lost their end."""

    dropped: int
    """Rows that were left out: no token of an answer was left in them."""


def encode(
    rows: Iterable[Row],
    tokenizer: PreTrainedTokenizerBase,
    *,
    template: str,
    separator: str,
    max_length: int,
) -> Encoded:
    """Return rows as tokens, with loss on the answers and the token that ends them.

    Each part is tokenized on its own: what a model is asked later is the same prefix of tokens.

    Args:
        rows: conversations.
        tokenizer: of the base.
        template: ``plain`` or ``chat``.
        separator: between the parts of a plain row.
        max_length: tokens of a row at most.

    Raises:
        InputError: for ``chat`` where the tokenizer has no chat template, or one that changes
            earlier turns.
    """
    if template == "chat" and tokenizer.chat_template is None:
        raise InputError(
            f"{tokenizer.name_or_path}: its tokenizer has no chat template; write template: plain, "
            "or use the tokenizer of a chat model"
        )
    encoded, cut, dropped = [], 0, 0
    first, last = _ends(tokenizer)
    for row in rows:
        if template == "chat":
            parts = _chat_parts(row, tokenizer)
            tokens = _joined(parts, tokenizer, [], [])
        else:
            tokens = _joined(_plain_parts(row, separator), tokenizer, first, last)
        if len(tokens.ids) > max_length:
            tokens = Tokens(tokens.ids[:max_length], tokens.labels[:max_length])
            cut += 1
        if (tokens.labels[1:] == IGNORED).all():
            dropped += 1
        else:
            encoded.append(tokens)
    return Encoded(encoded, cut, dropped)


def _ends(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Return what the tokenizer puts in front of a text by itself, and the token that ends one."""
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    starts = tokenizer("a")["input_ids"][:1]
    return [bos] if bos is not None and starts == [bos] else [], [] if eos is None else [eos]


def _plain_parts(row: Row, separator: str) -> list[tuple[str, bool]]:
    last = len(row) - 1
    return [
        (message["content"] + (separator if i < last else ""), message["role"] == "assistant")
        for i, message in enumerate(row)
    ]


def _chat_parts(row: Row, tokenizer: PreTrainedTokenizerBase) -> list[tuple[str, bool]]:
    """Return the rendered conversation in parts; the assistant's end with what ends their turn."""
    parts: list[tuple[str, bool]] = []
    before = ""
    for end, message in enumerate(row, 1):
        if message["role"] != "assistant":
            continue
        asked = _rendered(tokenizer, row[: end - 1], True)
        whole = _rendered(tokenizer, row[:end], False)
        if not asked.startswith(before) or not whole.startswith(asked):
            raise InputError(
                f"{tokenizer.name_or_path}: its chat template changes earlier turns, so the "
                "answers cannot be found in the text; write template: plain"
            )
        parts += [(asked[len(before) :], False), (whole[len(asked) :], True)]
        before = whole
    return parts


def _rendered(tokenizer: PreTrainedTokenizerBase, row: Row, ask: bool) -> str:
    try:
        text: Any = tokenizer.apply_chat_template(row, tokenize=False, add_generation_prompt=ask)
    except Exception as error:  # a template is a program, and says what it likes
        raise InputError(
            f"{tokenizer.name_or_path}: its chat template refuses a row: {first_line(error)}"
        ) from error
    return str(text)


def _joined(
    parts: Sequence[tuple[str, bool]],
    tokenizer: PreTrainedTokenizerBase,
    first: list[int],
    last: list[int],
) -> Tokens:
    ids, labels = list(first), [IGNORED] * len(first)
    for text, is_learned in parts:
        found = tokenizer(text, add_special_tokens=False)["input_ids"]
        ids += found
        labels += found if is_learned else [IGNORED] * len(found)
    ids += last
    labels += last if parts and parts[-1][1] else [IGNORED] * len(last)
    if labels:
        labels[0] = IGNORED  # nothing stands before it to predict it from
    return Tokens(np.array(ids, np.int32), np.array(labels, np.int32))


class Sequences:
    """What the model sees, one row an item: a dataset that a `DataLoader` can index."""

    def __init__(self, rows: Sequence[Tokens]) -> None:
        """Take rows in the order of training."""
        self._rows = rows

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._rows)

    def __getitem__(self, number: int) -> dict[str, list[int]]:
        """Return ids and labels of a row."""
        row = self._rows[number]
        return {"input_ids": row.ids.tolist(), "labels": row.labels.tolist()}


def collate(items: Sequence[dict[str, list[int]]], padding: int) -> dict[str, Any]:
    """Return a batch of tensors [sequences, longest], padded on the right."""
    import torch

    longest = max(len(item["input_ids"]) for item in items)

    def padded(name: str, filler: int) -> torch.Tensor:
        return torch.tensor([item[name] + [filler] * (longest - len(item[name])) for item in items])

    batch = {"input_ids": padded("input_ids", padding), "labels": padded("labels", IGNORED)}
    ones = [[1] * len(i["input_ids"]) + [0] * (longest - len(i["input_ids"])) for i in items]
    batch["attention_mask"] = torch.tensor(ones)
    return batch
