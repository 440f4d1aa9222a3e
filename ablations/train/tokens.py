"""From rows to tokens: templates, and loss on the answers only."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ablations.train.config import TrainConfig
from ablations.train.rows import Row
from layerswap_method.errors import InputError, first_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

IGNORED = -100
"""The label of a token without loss (torch's `ignore_index`)."""

Tokens = dict[str, list[int]]
"""``input_ids`` of one row, and ``labels``: the ids that are learned, `IGNORED` elsewhere."""


def encode(
    rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase, config: TrainConfig
) -> list[Tokens]:
    """Return rows as tokens, with loss on the answers and the token that ends them.

    Each part is tokenized on its own, so that a prompt of an evaluation is the same prefix of
    tokens. Rows that are too long lose their end; those without a token of an answer are left out.

    Raises:
        InputError: where no row is left; for ``template: chat`` where the tokenizer has no chat
            template, or one that changes earlier turns.
    """
    limit = config.max_length
    whole = [_tokenize(row, tokenizer, config) for row in rows]
    cut = [{name: ids[:limit] for name, ids in row.items()} for row in whole]
    encoded = [row for row in cut if not set(row["labels"][1:]) <= {IGNORED}]
    if too_long := sum(len(row["input_ids"]) > limit for row in whole):
        logger.warning(
            "%d of %d rows are longer than max_length (%d tokens) and were cut",
            *(too_long, len(rows), limit),
        )
    if dropped := len(cut) - len(encoded):
        logger.warning("%d rows were left out: no token of an answer was left", dropped)
    if not encoded:
        raise InputError("no row is left to train on; set max_length higher")
    return encoded


def split_row(
    row: Row, tokenizer: PreTrainedTokenizerBase, config: TrainConfig
) -> list[tuple[str, bool]]:
    """Return the text of a row in the format that is trained: parts, and whether each is learned.

    Raises:
        InputError: as `encode`.
    """
    if config.template == "plain":
        end = len(row) - 1
        return [
            (message["content"] + config.separator * (i < end), message["role"] == "assistant")
            for i, message in enumerate(row)
        ]
    where = tokenizer.name_or_path
    if tokenizer.chat_template is None:
        raise InputError(
            f"{where}: its tokenizer has no chat template; write template: plain, or use the "
            "tokenizer of a chat model"
        )
    parts: list[tuple[str, bool]] = []
    before = ""
    for end, message in enumerate(row, 1):
        if message["role"] != "assistant":
            continue
        try:
            prompt, whole = (
                str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=ask))
                for turns, ask in ((row[: end - 1], True), (row[:end], False))
            )
        except Exception as error:  # a template is a program, and may raise anything
            reason = first_line(error)
            raise InputError(f"{where}: its chat template refuses a row: {reason}") from error
        if not prompt.startswith(before) or not whole.startswith(prompt):
            raise InputError(
                f"{where}: its chat template changes earlier turns, so the answers cannot be "
                "found in the text; write template: plain"
            )
        # The assistant's part ends with what ends its turn.
        parts += [(prompt[len(before) :], False), (whole[len(prompt) :], True)]
        before = whole
    return parts


def _tokenize(row: Row, tokenizer: PreTrainedTokenizerBase, config: TrainConfig) -> Tokens:
    parts = split_row(row, tokenizer, config)
    ids: list[int] = []
    labels: list[int] = []
    for text, is_learned in parts:
        part = tokenizer(text, add_special_tokens=False)["input_ids"]
        ids += part
        labels += part if is_learned else [IGNORED] * len(part)
    if config.template == "plain":
        bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
        if bos is not None and tokenizer("a")["input_ids"][:1] == [bos]:
            ids, labels = [bos, *ids], [IGNORED, *labels]
        if eos is not None:
            ids.append(eos)
            labels.append(eos if parts and parts[-1][1] else IGNORED)
    if labels:
        labels[0] = IGNORED  # nothing stands before it to predict it from
    return {"input_ids": ids, "labels": labels}


def collate(rows: Sequence[Tokens], padding: int) -> dict[str, Any]:
    """Return a batch of tensors [rows, longest], padded on the right with the id `padding`.

    transformers' collators pad on the tokenizer's side, often the left, which moves positions.
    """
    import torch
    from torch.nn.utils.rnn import pad_sequence

    def pad(values: Sequence[list[int]], filler: int) -> torch.Tensor:
        tensors = [torch.tensor(row) for row in values]
        return pad_sequence(tensors, batch_first=True, padding_value=filler)

    ids = [row["input_ids"] for row in rows]
    return {
        "input_ids": pad(ids, padding),
        "labels": pad([row["labels"] for row in rows], IGNORED),
        "attention_mask": pad([[1] * len(row) for row in ids], 0),
    }
