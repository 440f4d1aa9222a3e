"""Rows to train on: read from files, the hub or the pocket world, mixed by weights.

Knows fields and shares; no tokens. The same seed gives the same rows in the same order.
"""

from __future__ import annotations

import json
import logging
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from ablations.machine.json_lines import read_lines
from ablations.train.config import HubRows, LocalRows, PocketRows, Rows, Source, TrainConfig
from layerswap_method.errors import InputError, describe_error, nearest

logger = logging.getLogger(__name__)

Message = dict[str, str]
"""``role`` (``system``, ``user`` or ``assistant``) and ``content``."""

Row = list[Message]
"""One conversation."""

_FIELD = re.compile(r"\{([^{}]+)\}")
_ROLES = ("system", "user", "assistant")
_SHOWN = 5
"""Problems of one file that are listed."""

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

    Every source gives its share of `samples` and of `held_out` to the row. Its rows come in an
    order drawn from the seed, again and again in new orders where they are too few.

    Raises:
        InputError: for a source that cannot be read, rows without the fields that are asked for
            (file, line, field), or a source with too few rows.
    """
    weights = [source.weight for source in config.data]
    wanted = split_by_weight(config.samples, weights)
    aside = split_by_weight(config.held_out, weights)
    train: list[Row] = []
    held_out: list[Row] = []
    counts: dict[str, int] = {}
    for number, source in enumerate(config.data):
        name = name_of(source)
        rows = _drawn(source, f"{config.seed}/{number}", aside[number], wanted[number])
        held_out += islice(rows, aside[number])
        train += islice(rows, wanted[number])
        counts[name] = counts.get(name, 0) + wanted[number]
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


def name_of(source: Source) -> str:
    """Return a source in words."""
    if isinstance(source, LocalRows):
        return source.path
    if isinstance(source, HubRows):
        return ":".join(filter(None, (source.hub, source.subset, source.split)))
    return f"pocket:{source.pocket}" if isinstance(source, PocketRows) else source.config


def _drawn(source: Source, seed: str, aside: int, wanted: int) -> Iterator[Row]:
    """Yield rows without end: first those held out, which never come again."""
    if isinstance(source, PocketRows):
        return _pocket_rows(source, seed)
    if not isinstance(source, Rows):
        raise TypeError(f"{source} was not taken apart")
    count, read = _open(source)
    if wanted and count <= aside:
        raise InputError(
            f"{name_of(source)}: has {count} usable rows, and {aside} of them would be held out; "
            "set held_out lower"
        )
    if wanted > count - aside:
        times = wanted / (count - aside)
        logger.warning(
            "%s: %d rows for %d samples: each is seen %.1f times",
            *(name_of(source), count - aside, wanted, times),
        )
    return _shuffled(count, read, seed, aside)


def _shuffled(count: int, read: Callable[[int], Row], seed: str, aside: int) -> Iterator[Row]:
    rng = random.Random(seed)
    order = rng.sample(range(count), count)
    yield from map(read, order[:aside])
    order = order[aside:]
    while order:
        yield from map(read, order)
        rng.shuffle(order)


def _pocket_rows(source: PocketRows, seed: str) -> Iterator[Row]:
    from ablations.pocket.corpora import draw_documents

    number = random.Random(seed).getrandbits(32)
    for exercise in draw_documents(source.pocket, number, rare=_RARE_WORDS):
        yield [
            {"role": "user", "content": exercise.prompt},
            {"role": "assistant", "content": exercise.answer},
        ]


def _open(source: Rows) -> tuple[int, Callable[[int], Row]]:
    """Return the number of usable rows, and what reads one of them."""
    if isinstance(source, LocalRows):
        rows = list(_local(source))
        return len(rows), rows.__getitem__
    if isinstance(source, HubRows):
        return _hub(source)
    raise TypeError(f"{source} is no source of rows")


def _local(source: LocalRows) -> Iterator[Row]:
    path, problems, empty = Path(source.path), list[str](), 0
    rows: list[Row] = []
    try:
        for number, line in read_lines(path):
            try:
                content = json.loads(line)
            except ValueError as error:
                problems.append(f"line {number}: not JSON: {error}")
                continue
            try:
                row = _row(source, content)
            except ValueError as error:
                problems.append(f"line {number}: {error}")
                continue
            if row is None:
                continue
            if _is_empty(row):
                empty += 1
            else:
                rows.append(row)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {describe_error(error)}") from error
    if problems:
        more = len(problems) - _SHOWN
        shown = problems[:_SHOWN] + ([f"and {more} more lines"] if more > 0 else [])
        raise InputError.from_problems(str(path), shown)
    if empty:
        logger.warning("%s: %d rows with an empty answer are left out", path, empty)
    if not rows:
        raise InputError(f"{path}: no row is left{' after where' if source.where else ''}")
    return iter(rows)


def _hub(source: HubRows) -> tuple[int, Callable[[int], Row]]:
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    name = name_of(source)
    try:
        found = load_dataset(
            source.hub, source.subset, split=source.split, revision=source.revision
        )
    # Gated, private, renamed, no such subset, a script, no network: all are one of these.
    except (OSError, ValueError, RuntimeError, DatasetsError) as error:
        raise InputError(
            f"{name}: cannot be loaded: {describe_error(error)}. If it needs a script or access, "
            "write its rows to a file of JSON lines and give its path"
        ) from error
    for field in _fields(source):
        if field.partition(".")[0] not in found.column_names and field not in found.column_names:
            raise InputError(
                f"{name}: has no field {field!r}{nearest(field, found.column_names)}; it has "
                f"{', '.join(found.column_names)}"
            )
    usable: Sequence[int] = range(len(found))
    for field, values in source.where.items():
        column = list(found[field]) if field in found.column_names else None
        allowed = _allowed(values)
        try:
            usable = [
                i
                for i in usable
                if str(column[i] if column is not None else _value(found[i], field)) in allowed
            ]
        except ValueError as error:
            raise InputError(f"{name}: where: {error}") from error
    if not len(usable):
        raise InputError(f"{name}: no row is left{' after where' if source.where else ''}")

    def read(number: int) -> Row:
        line = usable[number]
        try:
            row = _row(source, found[line])
        except ValueError as error:
            raise InputError(f"{name}, row {line}: {error}") from error
        return row or []

    return len(usable), read


def _fields(source: Rows) -> list[str]:
    named = [source.messages] if source.messages is not None else []
    if not named:
        named = _FIELD.findall(source.prompt) + _FIELD.findall(source.answer)
    return [*named, *source.where]


def _allowed(values: str | tuple[str, ...]) -> tuple[str, ...]:
    return (values,) if isinstance(values, str) else values


def _row(source: Rows, content: Any) -> Row | None:
    """Return a row as messages; None where `where` leaves it out.

    Raises:
        ValueError: for what is wrong with it.
    """
    if not isinstance(content, dict):
        raise ValueError('not an object; write {"field": "text", ...}')
    for field, values in source.where.items():
        if str(_value(content, field)) not in _allowed(values):
            return None
    if source.messages is not None:
        return _messages(_value(content, source.messages), source.messages)
    texts = [_filled(text, content) for text in (source.prompt, source.answer)]
    return [{"role": r, "content": t} for r, t in zip(_ROLES[1:], texts, strict=True)]


def _filled(template: str, content: Mapping[str, Any]) -> str:
    return _FIELD.sub(lambda found: _text(_value(content, found[1]), found[1]), template)


def _value(content: Mapping[str, Any], field: str) -> Any:
    if field in content:
        return content[field]
    value: Any = content
    for part in field.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise ValueError(
                f"no field {field!r}{nearest(field, map(str, content))}; it has "
                f"{', '.join(map(str, content)) or 'none'}"
            )
        value = value[part]
    return value


def _text(value: Any, field: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    found = "empty" if value is None else repr(value)[:40]
    raise ValueError(f"field {field!r} is {found}; it must be text")


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


def _is_empty(row: Row) -> bool:
    return not any(m["content"].strip() for m in row if m["role"] == "assistant")
