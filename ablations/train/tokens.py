"""From rows to tokens: templates, and loss on the answers only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ablations.train.config import TrainConfig
from ablations.train.rows import Row
from layerswap_method.errors import InputError, first_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

IGNORED = -100
"""The label of a token without loss (torch's `ignore_index`)."""

Tokens = dict[str, list[int]]
"""``input_ids`` of one row, and ``labels``: the ids that are learned, `IGNORED` elsewhere."""

Part = tuple[str, bool]
"""Text, and whether it is learned."""


@dataclass(frozen=True)
class Encoded:
    """The rows of a run as tokens."""

    rows: list[Tokens]
    """In the order of training."""

    cut: int
    """Rows that were longer than allowed and lost their end."""

    dropped: int
    """Rows that were left out: no token of an answer was left in them."""


def encode(rows: Iterable[Row], tokenizer: PreTrainedTokenizerBase, config: TrainConfig) -> Encoded:
    """Return rows as tokens, with loss on the answers and the token that ends them.

    Each part is tokenized on its own, so that a prompt of an evaluation is the same prefix of
    tokens.

    Raises:
        InputError: for ``template: chat`` where the tokenizer has no chat template, or one that
            changes earlier turns.
    """
    encoded, cut, dropped = [], 0, 0
    first, last = ([], []) if config.template == "chat" else _ends(tokenizer)
    for row in rows:
        tokens = _tokenize(split_row(row, tokenizer, config), tokenizer, first, last)
        if len(tokens["input_ids"]) > config.max_length:
            tokens = {name: values[: config.max_length] for name, values in tokens.items()}
            cut += 1
        if set(tokens["labels"][1:]) <= {IGNORED}:
            dropped += 1
        else:
            encoded.append(tokens)
    return Encoded(encoded, cut, dropped)


def split_row(row: Row, tokenizer: PreTrainedTokenizerBase, config: TrainConfig) -> list[Part]:
    """Return the text of a row in the format that is trained, in parts.

    Raises:
        InputError: as `encode`.
    """
    if config.template == "chat":
        return _split_chat(row, tokenizer)
    end = len(row) - 1
    return [
        (message["content"] + config.separator * (i < end), message["role"] == "assistant")
        for i, message in enumerate(row)
    ]


def _split_chat(row: Row, tokenizer: PreTrainedTokenizerBase) -> list[Part]:
    """Return the rendered conversation; the assistant's parts end with what ends their turn."""
    if tokenizer.chat_template is None:
        raise InputError(
            f"{tokenizer.name_or_path}: its tokenizer has no chat template; write template: plain, "
            "or use the tokenizer of a chat model"
        )
    parts: list[Part] = []
    before = ""
    for end, message in enumerate(row, 1):
        if message["role"] != "assistant":
            continue
        prompt = _render(tokenizer, row[: end - 1], True)
        whole = _render(tokenizer, row[:end], False)
        if not prompt.startswith(before) or not whole.startswith(prompt):
            raise InputError(
                f"{tokenizer.name_or_path}: its chat template changes earlier turns, so the "
                "answers cannot be found in the text; write template: plain"
            )
        parts += [(prompt[len(before) :], False), (whole[len(prompt) :], True)]
        before = whole
    return parts


def _render(tokenizer: PreTrainedTokenizerBase, row: Row, with_prompt: bool) -> str:
    try:
        text: Any = tokenizer.apply_chat_template(
            row, tokenize=False, add_generation_prompt=with_prompt
        )
    except Exception as error:  # a template is a program, and may raise anything
        raise InputError(
            f"{tokenizer.name_or_path}: its chat template refuses a row: {first_line(error)}"
        ) from error
    return str(text)


def _ends(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Return what the tokenizer puts in front of a text by itself, and the token that ends one."""
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    starts = tokenizer("a")["input_ids"][:1]
    return [bos] if bos is not None and starts == [bos] else [], [] if eos is None else [eos]


def _tokenize(
    parts: Sequence[Part], tokenizer: PreTrainedTokenizerBase, first: list[int], last: list[int]
) -> Tokens:
    ids, labels = list(first), [IGNORED] * len(first)
    for text, is_learned in parts:
        part = tokenizer(text, add_special_tokens=False)["input_ids"]
        ids += part
        labels += part if is_learned else [IGNORED] * len(part)
    ids += last
    labels += last if parts and parts[-1][1] else [IGNORED] * len(last)
    if labels:
        labels[0] = IGNORED  # nothing stands before it to predict it from
    return {"input_ids": ids, "labels": labels}


def collate(rows: Sequence[Tokens], padding: int) -> dict[str, Any]:
    """Return a batch of tensors [rows, longest], padded on the right with the id `padding`.

    transformers' collators pad on the tokenizer's side, often the left, which moves positions.
    """
    import torch

    longest = max(len(row["input_ids"]) for row in rows)

    def pad(values: list[int], filler: int) -> list[int]:
        return values + [filler] * (longest - len(values))

    return {
        "input_ids": torch.tensor([pad(row["input_ids"], padding) for row in rows]),
        "labels": torch.tensor([pad(row["labels"], IGNORED) for row in rows]),
        "attention_mask": torch.tensor([pad([1] * len(row["input_ids"]), 0) for row in rows]),
    }
