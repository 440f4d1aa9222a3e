"""Rows to train on: mixed by weights, in an order drawn from the seed, and turned into tokens.

The loss is on the answers only.
"""

from __future__ import annotations

import json
import logging
import random
import re
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ablations.models.templates import render_chat
from ablations.models.tokens import following_tokens, prompt_tokens
from ablations.train.config import DataEntry, TrainConfig
from layerswap_method.errors import (
    InputError,
    describe_error,
    describe_json_error,
    first_line,
    nearest,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

Conversation = list[dict[str, str]]
"""One conversation: messages with ``role`` (``system``, ``user``, ``assistant``), ``content``."""

_FIELD = re.compile(r"\{([^{}]+)\}")
_ROLES = ("system", "user", "assistant")


class Mix(NamedTuple):
    """The rows of a run: in the order of training, and those held out of it."""

    train: list[Conversation]
    held_out: list[Conversation]

    counts: dict[str, int]
    """Source -> rows of it in `train`."""


class _Shuffled(NamedTuple):
    """A data set or file with the rows that a source takes of it."""

    rows: Sequence[Any]
    order: list[int]
    """Numbers of the usable rows, in an order drawn from the seed."""

    rng: random.Random
    """What draws the orders after this one."""


def mix_rows(config: TrainConfig) -> Mix:
    """Return the rows of a run.

    Every source gives its share of `samples` and of `held_out`. Its rows come in an order drawn
    from the seed, again and again in new orders where they are too few. A row that is held out is
    trained on by no source of the same file or data set.

    Raises:
        InputError: for a source that cannot be read, the first row that does not fit (file, line,
            field), or a source with too few rows.
    """
    weights = [source.weight for source in config.data]
    samples = split_by_weight(config.samples, weights)
    held_out = split_by_weight(config.held_out, weights)
    mix = Mix([], [], {})
    try:
        shuffled = _shuffle(config)
        held_rows = dict[Any, set[int]]()
        for number, drawn in shuffled.items():
            rows_of_place = held_rows.setdefault(_place(config.data[number]), set())
            rows_of_place.update(drawn.order[: held_out[number]])
        for number, source in enumerate(config.data):
            sizes = held_out[number], samples[number]
            if number in shuffled:
                rows = _draw(source, shuffled[number], held_rows[_place(source)], *sizes)
            else:
                rows = _draw_pocket(source, _seed(config, number), *sizes)
            mix.held_out.extend(rows[: held_out[number]])
            mix.train.extend(rows[held_out[number] :])
            mix.counts[source.name] = mix.counts.get(source.name, 0) + samples[number]
    except InputError as error:
        raise InputError(f"{config.file}: data: {error.message}") from error
    random.Random(f"{config.seed}/order").shuffle(mix.train)
    return mix


def _shuffle(config: TrainConfig) -> dict[int, _Shuffled]:
    """Return the number of each source of rows -> these, shuffled; each file is read once."""
    contents = dict[Any, Sequence[Any]]()
    shuffled = dict[int, _Shuffled]()
    for number, source in enumerate(config.data):
        if source.pocket is None:
            if (place := _place(source)) not in contents:
                contents[place] = _read(source)
            usable = _usable_rows(source, contents[place])
            rng = random.Random(_seed(config, number))
            order = rng.sample(usable, len(usable))
            shuffled[number] = _Shuffled(contents[place], order, rng)
    return shuffled


def _seed(config: TrainConfig, number: int) -> str:
    """Return the seed of what is drawn of a source."""
    return f"{config.seed}/{number}"


def _place(source: DataEntry) -> tuple[str | None, ...]:
    """Return what two sources of the same file or data set have in common."""
    return source.path, source.hub, source.subset, source.split, source.revision


def read_texts(path: Path) -> list[str]:
    """Return the texts of a file of JSON lines with the field ``text``."""
    source = DataEntry(path=str(path), prompt="", answer="{text}")
    rows = _read(source)
    return [str(_parse(rows[number])["text"]) for number in _usable_rows(source, rows)]


def split_by_weight(total: int, weights: Sequence[float]) -> list[int]:
    """Return whole numbers that sum to `total` and are nearest to its shares by weight.

    Shares are rounded down; what is left goes to the largest remainders, the first of equals.
    """
    weight_sum = sum(weights)
    exact = [total * weight / weight_sum for weight in weights]
    parts = [int(share) for share in exact]
    by_remainder = sorted(range(len(parts)), key=lambda i: (parts[i] - exact[i], i))
    for i in by_remainder[: total - sum(parts)]:
        parts[i] += 1
    return parts


def _draw(
    source: DataEntry, shuffled: _Shuffled, held_rows: set[int], held_out: int, samples: int
) -> list[Conversation]:
    """Return the rows that are held out, then those that are trained on: none of `held_rows`."""
    chosen = shuffled.order[:held_out]
    order = [number for number in shuffled.order if number not in held_rows]
    if len(chosen) < held_out or len(order) < (samples > 0):
        usable = len(shuffled.order)
        raise InputError(
            f"{source.name}: has {usable} usable rows, and held_out takes "
            f"{max(held_out, usable - len(order))} from it; set held_out lower"
        )
    if samples > len(order):
        logger.warning(
            "%s: %d rows for %d samples: a row is seen %.1f times",
            source.name,
            len(order),
            samples,
            samples / len(order),
        )
    while len(chosen) < held_out + samples:
        chosen += order
        shuffled.rng.shuffle(order)
    chosen = chosen[: held_out + samples]
    return [_conversation(source, _parse(shuffled.rows[number])) for number in chosen]


def _draw_pocket(source: DataEntry, seed: str, held_out: int, samples: int) -> list[Conversation]:
    from ablations.pocket_world.corpora import draw_documents

    stream_seed = random.Random(seed).getrandbits(32)
    documents = draw_documents(str(source.pocket), stream_seed, rare=0.6)
    return [
        _pair(document.prompt, document.answer)
        for document in islice(documents, held_out + samples)
    ]


def _read(source: DataEntry) -> Sequence[Any]:
    """Return the rows of a data set, or the lines of a file, as bytes; see `_parse`.

    The JSON reader of `datasets` guesses one type for a field of all rows (a date becomes a time, 2
    next to 2.5 is 2.0, a missing field is None) and names no line.
    """
    if source.path is not None:
        try:
            with Path(source.path).open("rb") as file:
                return list(file)
        except OSError as error:
            raise InputError(f"{source.name}: cannot be read: {describe_error(error)}") from error
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    try:
        data: Sequence[Any] = load_dataset(
            source.hub, source.subset, split=source.split, revision=source.revision
        )
    # Gated, private, renamed, no such subset or file, a script, no network: all are one of these.
    except (OSError, ValueError, RuntimeError, DatasetsError) as error:
        raise InputError(
            f"{source.name}: cannot be loaded: {describe_error(error)}. If it needs a script or "
            "access, write its rows to a file of JSON lines"
        ) from error
    return data


def _parse(row: Any) -> dict[str, Any]:
    """Return a row of `_read` as an object; ValueError says what is wrong with it."""
    if isinstance(row, bytes):
        try:
            row = json.loads(text := row.rstrip(b"\r\n").decode("utf-8-sig"))
            if "\\u" in text:
                json.dumps(row, ensure_ascii=False).encode()  # half of a character is no text
        except (ValueError, RecursionError) as error:
            raise ValueError(describe_json_error(error)) from error
    if not isinstance(row, dict):
        raise ValueError('not an object; write {"field": "text", ...}')
    return row


def _usable_rows(source: DataEntry, rows: Sequence[Any]) -> list[int]:
    """Return the numbers of the rows that `where` leaves and that have an answer."""
    usable: list[int] = []
    empty_answers = 0
    for number, raw in enumerate(rows):
        if isinstance(raw, bytes) and not raw.strip():
            continue  # a blank line
        try:
            row = _parse(raw)
            if not _is_chosen(source, row):
                continue
            messages = _conversation(source, row)
        except ValueError as error:
            place = f"row {number}" if source.path is None else f"line {number + 1}"
            raise InputError(f"{source.name}: {place}: {error}") from error
        answers = [message["content"] for message in messages if message["role"] == "assistant"]
        if any(answer.strip() for answer in answers):
            usable.append(number)
        else:
            empty_answers += 1
    if empty_answers:
        logger.warning("%s: %d rows with an empty answer are left out", source.name, empty_answers)
    if not usable:
        raise InputError(f"{source.name}: no row is left{' after where' if source.where else ''}")
    return usable


def _is_chosen(source: DataEntry, row: Mapping[str, Any]) -> bool:
    """Return whether `where` leaves a row; ValueError for a field that it lacks."""
    for field, values in source.where.items():
        if _value(row, field) not in (values if isinstance(values, tuple) else (values,)):
            return False
    return True


def _conversation(source: DataEntry, row: Any) -> Conversation:
    """Return a row as messages; ValueError says what is wrong with it."""
    if source.messages is None:
        return _pair(_fill(source.prompt, row), _fill(source.answer, row))
    messages = _value(row, source.messages)
    if not isinstance(messages, list) or not all(
        isinstance(message, Mapping)
        and message.get("role") in _ROLES
        and isinstance(message.get("content"), str)
        for message in messages
    ):
        raise ValueError(
            f"field {source.messages!r} must be a list of messages, each with a role "
            f"({', '.join(_ROLES)}) and a text under content"
        )
    return [{"role": message["role"], "content": message["content"]} for message in messages]


def _pair(prompt: str, answer: str) -> Conversation:
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]


def _fill(template: str, row: Mapping[str, Any]) -> str:
    def text(match: re.Match[str]) -> str:
        value = _value(row, match[1])
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            return str(value)
        value_text = "empty" if value is None else repr(value)[:40]
        raise ValueError(f"field {match[1]!r} is {value_text}; it must be text")

    return _FIELD.sub(text, template)


def _value(row: Mapping[str, Any], field: str) -> Any:
    if field in row:
        return row[field]
    value: Any = row
    for part in field.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise ValueError(
                f"no field {field!r}{nearest(field, map(str, row))}; it has "
                f"{', '.join(map(str, row)) or 'none'}"
            )
        value = value[part]
    return value


IGNORED = -100
"""The label of a token without loss (torch's `ignore_index`)."""

Tokens = dict[str, list[int]]
"""``input_ids`` of one row, and ``labels``: the ids that are learned, `IGNORED` elsewhere."""


def encode_rows(
    rows: Sequence[Conversation], tokenizer: PreTrainedTokenizerBase, config: TrainConfig
) -> list[Tokens]:
    """Return rows as tokens, with loss on the answers and the token that ends them.

    Each part is tokenized on its own, as an evaluation's prompt is. Rows that are too long lose
    their end; those without a token of an answer are left out.

    Raises:
        InputError: where no row is left; for ``template: chat`` where the tokenizer has no chat
            template, or one that changes earlier turns.
    """
    limit = config.max_length
    split_rows = [split_row(row, tokenizer, config) for row in rows]
    full_rows = [_tokenize(parts, tokenizer, config) for parts in split_rows]
    cut_rows = [{name: ids[:limit] for name, ids in row.items()} for row in full_rows]
    encoded = [row for row in cut_rows if not set(row["labels"][1:]) <= {IGNORED}]
    if lacking := sum(map(_lacks_message, rows, split_rows)):
        logger.warning(
            "%d of %d rows have a system or user message that the chat template leaves out, so it "
            "is not trained on; write its text into one that stays",
            lacking,
            len(rows),
        )
    if too_long := sum(len(row["input_ids"]) > limit for row in full_rows):
        logger.warning(
            "%d of %d rows are longer than max_length (%d tokens) and were cut",
            too_long,
            len(rows),
            limit,
        )
    if dropped := len(cut_rows) - len(encoded):
        logger.warning("%d rows were left out: no token of an answer was left", dropped)
    if not encoded:
        raise InputError(f"{config.file}: no row is left to train on; set max_length higher")
    return encoded


def count_learned(row: Tokens) -> int:
    """Return how many tokens of a row carry loss."""
    return len(row["labels"]) - row["labels"].count(IGNORED)


def endless_token(rows: Sequence[Tokens], tokenizer: Any, ends: Collection[int]) -> int | None:
    """Return the token with which the answers of `rows` end, where it is none of `ends`.

    White space may follow the end of a turn. The rows are whole ones; None where all is well.
    """
    for row in rows:
        learned = [token for token in row["labels"] if token != IGNORED]
        last = next((token for token in reversed(learned) if tokenizer.decode(token).strip()), None)
        if last is not None:
            return None if last in ends else last
    return None


def split_row(
    row: Conversation, tokenizer: PreTrainedTokenizerBase, config: TrainConfig
) -> list[tuple[str, bool]]:
    """Return the text of a row in the format that is trained: parts, whether each is learned."""
    if config.template == "plain":
        return [(message["content"], message["role"] == "assistant") for message in row]
    model_name = tokenizer.name_or_path
    if tokenizer.chat_template is None:
        raise InputError(
            f"{config.file}: template: the tokenizer of {model_name} has no chat template; write "
            "template: plain, or use the tokenizer of a chat model"
        )
    parts: list[tuple[str, bool]] = []
    text = ""
    for end, message in enumerate(row, 1):
        if message["role"] != "assistant":
            continue
        try:
            prompt = render_chat(tokenizer, row[: end - 1], add_generation_prompt=True)
            text_with_answer = render_chat(tokenizer, row[:end], add_generation_prompt=False)
        except Exception as error:  # a template is a program, and may raise anything
            raise InputError(
                f"{model_name}: its chat template refuses a row: {first_line(error)}"
            ) from error
        if not prompt.startswith(text) or not text_with_answer.startswith(prompt):
            raise InputError(
                f"{model_name}: its chat template changes earlier turns, so the answers cannot be "
                "found in the text; write template: plain"
            )
        # The assistant's part includes the end of its turn.
        parts += [(prompt[len(text) :], False), (text_with_answer[len(prompt) :], True)]
        text = text_with_answer
    return parts


def _lacks_message(row: Conversation, parts: Sequence[tuple[str, bool]]) -> bool:
    """Return whether a message before the last answer of a row is not in its text."""
    text = "".join(part for part, _ in parts)
    roles = [message["role"] for message in row]
    end = len(row) - roles[::-1].index("assistant")
    return any(
        message["role"] != "assistant" and message["content"].strip() not in text
        for message in row[:end]
    )


def _tokenize(
    parts: Sequence[tuple[str, bool]], tokenizer: PreTrainedTokenizerBase, config: TrainConfig
) -> Tokens:
    """Return the tokens of what `split_row` returns."""
    ids: list[int] = []
    labels: list[int] = []
    parts = [(text, is_learned) for text, is_learned in parts if text]  # plain text has no prompt
    for number, (text, is_learned) in enumerate(parts):
        part_ids = (following_tokens if number else prompt_tokens)(tokenizer, text)
        ids += part_ids
        labels += part_ids if is_learned else [IGNORED] * len(part_ids)
    eos = tokenizer.eos_token_id
    if config.template == "plain" and eos is not None:
        ids.append(eos)
        labels.append(eos if parts and parts[-1][1] else IGNORED)
    if labels:
        labels[0] = IGNORED  # nothing stands before it to predict it from
    return {"input_ids": ids, "labels": labels}


def collate(rows: Sequence[Tokens], padding: int, *, few_logits: bool = False) -> dict[str, Any]:
    """Return a batch of tensors [rows, longest], padded on the right with the id `padding`.

    transformers' collators pad on the tokenizer's side, often the left, which moves positions.

    Args:
        rows: of `encode_rows`.
        padding: any id, as padding is masked.
        few_logits: whether logits are made only at positions with loss in one of the rows. The
            model's own loss compares logit n with label n + 1, so the labels that stay are those
            after these positions, behind one without loss.
    """
    import torch
    from torch.nn.utils.rnn import pad_sequence

    def pad(values: Sequence[list[int]], filler: int) -> torch.Tensor:
        tensors = [torch.tensor(row) for row in values]
        return pad_sequence(tensors, batch_first=True, padding_value=filler)

    ids = [row["input_ids"] for row in rows]
    labels = pad([row["labels"] for row in rows], IGNORED)
    batch = {"input_ids": pad(ids, padding), "attention_mask": pad([[1] * len(r) for r in ids], 0)}
    if not few_logits:
        return batch | {"labels": labels}
    # The last position predicts nothing: its logit has no label after it.
    is_last = torch.arange(labels.shape[1]) == labels.shape[1] - 1
    stays = torch.cat([(labels[:, 1:] != IGNORED).any(0), is_last[-1:]])
    return batch | {
        "labels": torch.cat([labels[:, :1], labels[:, 1:][:, stays[:-1]]], dim=1),
        "logits_to_keep": stays.nonzero()[:, 0],
    }
