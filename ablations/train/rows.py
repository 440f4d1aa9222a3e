"""Rows to train on, mixed by weights: the same seed gives the same rows in the same order."""

from __future__ import annotations

import json
import logging
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from ablations.machine.json_lines import read_lines
from ablations.train.config import Source, TrainConfig
from layerswap_method.errors import InputError, describe_error, nearest

logger = logging.getLogger(__name__)

Row = list[dict[str, str]]
"""One conversation: messages with ``role`` (``system``, ``user`` or ``assistant``) and
``content``."""

_FIELD = re.compile(r"\{([^{}]+)\}")
_ROLES = ("system", "user", "assistant")

_RARE_WORDS = 0.6
"""Share of rare words in the pocket's target language, as in the pocket's own language expert."""


@dataclass(frozen=True)
class Mix:
    """The rows of a run."""

    train: list[Row]
    """In the order of training."""

    held_out: list[Row]
    """Never trained on."""

    counts: dict[str, int]
    """Source -> rows of it in `train`."""


def mix_rows(config: TrainConfig) -> Mix:
    """Return the rows of a run.

    Every source gives its share of `samples` and of `held_out`. Its rows come in an order drawn
    from the seed, again and again in new orders where they are too few.

    Raises:
        InputError: for a source that cannot be read, the first row that does not fit (file, line,
            field), or a source with too few rows.
    """
    weights = [source.weight for source in config.data]
    shares = split_by_weight(config.samples, weights)
    shares_held_out = split_by_weight(config.held_out, weights)
    train: list[Row] = []
    held_out: list[Row] = []
    counts: dict[str, int] = {}
    for number, source in enumerate(config.data):
        rows = _draw(source, f"{config.seed}/{number}", shares_held_out[number], shares[number])
        held_out += islice(rows, shares_held_out[number])
        train += islice(rows, shares[number])
        counts[source.name] = counts.get(source.name, 0) + shares[number]
    random.Random(f"{config.seed}/order").shuffle(train)
    return Mix(train, held_out, counts)


def split_by_weight(total: int, weights: Sequence[float]) -> list[int]:
    """Return whole numbers that sum to `total` and are nearest to its shares by weight.

    Shares are rounded down; what is left goes to the largest remainders, the first of equals.
    """
    whole = sum(weights)
    exact = [total * weight / whole for weight in weights]
    parts = [int(share) for share in exact]
    by_remainder = sorted(range(len(parts)), key=lambda i: (parts[i] - exact[i], i))
    for i in by_remainder[: total - sum(parts)]:
        parts[i] += 1
    return parts


def _draw(source: Source, seed: str, held_out: int, samples: int) -> Iterator[Row]:
    """Return rows without end: first those held out, which never come again."""
    if source.pocket is not None:
        return _draw_pocket(source.pocket, seed)
    rows, places = _read(source)
    usable = _usable_rows(source, rows, places)
    if samples and len(usable) <= held_out:
        raise InputError(
            f"{source.name}: has {len(usable)} usable rows, and {held_out} of them would be held "
            "out; set held_out lower"
        )
    if samples > len(usable) - held_out:
        logger.warning(
            "%s: %d rows for %d samples: each is seen %.1f times",
            *(source.name, len(usable) - held_out, samples, samples / (len(usable) - held_out)),
        )
    return _shuffle(source, rows, usable, seed, held_out)


def _shuffle(
    source: Source, rows: Sequence[Any], usable: Sequence[int], seed: str, held_out: int
) -> Iterator[Row]:
    rng = random.Random(seed)
    order = rng.sample(usable, len(usable))
    yield from (_conversation(source, rows[number]) for number in order[:held_out])
    order = order[held_out:]
    while order:
        yield from (_conversation(source, rows[number]) for number in order)
        rng.shuffle(order)


def _draw_pocket(stream: str, seed: str) -> Iterator[Row]:
    from ablations.pocket.corpora import draw_documents

    number = random.Random(seed).getrandbits(32)
    for exercise in draw_documents(stream, number, rare=_RARE_WORDS):
        yield _pair(exercise.prompt, exercise.answer)


def _read(source: Source) -> tuple[Sequence[Any], Sequence[str]]:
    """Return the rows of a file or a data set, and how each is named in a message."""
    if source.path is None:
        data = _load_dataset(source)
        return data, [f"row {number}" for number in range(len(data))]
    rows, places = [], []
    try:
        for number, line in read_lines(Path(source.path)):
            places.append(f"line {number}")
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                raise InputError(f"{source.path}: line {number}: not JSON: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{source.path}: cannot be read: {describe_error(error)}") from error
    return rows, places


def _load_dataset(source: Source) -> Any:
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    try:
        data = load_dataset(source.hub, source.subset, split=source.split, revision=source.revision)
    # Gated, private, renamed, no such subset, a script, no network: all are one of these.
    except (OSError, ValueError, RuntimeError, DatasetsError) as error:
        raise InputError(
            f"{source.name}: cannot be loaded: {describe_error(error)}. If it needs a script or "
            "access, write its rows to a file of JSON lines and give its path"
        ) from error
    if source.messages is not None:
        fields = [source.messages]
    else:
        fields = _FIELD.findall(source.prompt) + _FIELD.findall(source.answer)
    whole = {field.partition(".")[0] for field in (*fields, *source.where)}
    is_whole = whole <= set(data.column_names)  # else a message names the fields that there are
    return data.select_columns(sorted(whole)) if whole and is_whole else data


def _usable_rows(source: Source, rows: Sequence[Any], places: Sequence[str]) -> list[int]:
    """Return the numbers of the rows that `where` leaves and that have an answer.

    Raises:
        InputError: for the first row that does not fit, or where none is left.
    """
    usable, empty = [], 0
    for number, row in enumerate(rows):
        try:
            if not _is_chosen(source, row):
                continue
            messages = _conversation(source, row)
        except ValueError as error:
            raise InputError(f"{source.name}: {places[number]}: {error}") from error
        if any(m["content"].strip() for m in messages if m["role"] == "assistant"):
            usable.append(number)
        else:
            empty += 1
    if empty:
        logger.warning("%s: %d rows with an empty answer are left out", source.name, empty)
    if not usable:
        raise InputError(f"{source.name}: no row is left{' after where' if source.where else ''}")
    return usable


def _is_chosen(source: Source, row: Any) -> bool:
    if not isinstance(row, dict):
        raise ValueError('not an object; write {"field": "text", ...}')
    return all(
        str(_value(row, field)) in ((values,) if isinstance(values, str) else values)
        for field, values in source.where.items()
    )


def _conversation(source: Source, row: Any) -> Row:
    """Return a row as messages.

    Raises:
        ValueError: for what is wrong with it.
    """
    if source.messages is not None:
        return _messages(_value(row, source.messages), source.messages)
    return _pair(_fill(source.prompt, row), _fill(source.answer, row))


def _pair(prompt: str, answer: str) -> Row:
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]


def _fill(template: str, row: Mapping[str, Any]) -> str:
    return _FIELD.sub(lambda match: _text(_value(row, match[1]), match[1]), template)


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


def _text(value: Any, field: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    shown = "empty" if value is None else repr(value)[:40]
    raise ValueError(f"field {field!r} is {shown}; it must be text")


def _messages(value: Any, field: str) -> Row:
    if not isinstance(value, list) or not value:
        raise ValueError(f"field {field!r} is no list of messages")
    row = []
    for number, message in enumerate(value):
        where = f"field {field!r}, message {number}"
        if not isinstance(message, Mapping) or not isinstance(message.get("content"), str):
            raise ValueError(f"{where}: has no text under 'content'")
        if message.get("role") not in _ROLES:
            raise ValueError(f"{where}: role is {message.get('role')!r}, not {', '.join(_ROLES)}")
        row.append({"role": str(message["role"]), "content": message["content"]})
    if not any(message["role"] == "assistant" for message in row):
        raise ValueError(f"field {field!r}: no message of the assistant, so nothing to learn")
    return row
