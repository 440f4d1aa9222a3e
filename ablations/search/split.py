"""Which items choose and which report: by a hash of each item's name, one in parallel tasks."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

_IDENTITY = ("link", "sample_id", "id")
"""Fields that may name an item in all languages: Belebele's passage, MMLU's item, FLORES'.

PolyMath's `id` has the language in it, so it names no item of another language.
"""

_PASSAGE_BYTES = 80
"""Least size in UTF-8 of a text that is a passage where several items share it.

Bytes, as a Chinese or Japanese character has three, and says about as much as three Latin ones.
"""

_COMMON = 4
"""A text that more than one item in so many has is an instruction, and no passage."""


class SplitItems(NamedTuple):
    """The items of a task by their row, in the order in which they are answered."""

    choose: tuple[int, ...]
    report: tuple[int, ...]


def item_keys(tasks: Sequence[Sequence[Mapping[str, Any]]]) -> list[list[str]]:
    """Return for each of parallel tasks what names its items: equal for items of one side.

    The same item of two languages has one name: its identity, or else its row, as parallel
    languages have one order. Items of one passage, and items that are the same but for their
    identity, share the name of the first of them, in all tasks if they do so in one: a passage may
    be long enough in one language only.

    Args:
        tasks: the items of each task, equally many.
    """
    names = _names(tasks)
    numbers = {name: n for n, name in enumerate(dict.fromkeys(chain(*names)))}
    group = list(range(len(numbers)))

    def root(number: int) -> int:
        while group[number] != number:
            number = group[number]
        return number

    for docs, of_task in zip(tasks, names, strict=True):
        first_of = dict[str, int]()
        for name, of_doc in zip(of_task, _shared_texts(docs), strict=True):
            for text in of_doc:
                first = root(first_of.setdefault(text, numbers[name]))
                low, high = sorted((first, root(numbers[name])))
                group[high] = low
    by_number = [*numbers]
    return [[by_number[root(numbers[name])] for name in of_task] for of_task in names]


def rows_in_both(
    docs: Sequence[Mapping[str, Any]], others: Sequence[Sequence[Mapping[str, Any]]]
) -> set[int]:
    """Return the rows of `docs` that another task has, too: equal items, or of one passage."""
    theirs = {text for task in others for of_doc in _shared_texts(task) for text in of_doc}
    return {row for row, of_doc in enumerate(_shared_texts(docs)) if not theirs.isdisjoint(of_doc)}


def _names(tasks: Sequence[Sequence[Mapping[str, Any]]]) -> list[list[str]]:
    """Return the name of each item: its identity in the first task, or in one that has these.

    A task without any identity of the first has the names of the same rows there.
    """
    identities = [_identities(docs) for docs in tasks]
    first = identities[0]
    return [first if {*first}.isdisjoint(of_task) else of_task for of_task in identities]


def _shared_texts(docs: Sequence[Mapping[str, Any]]) -> Iterator[list[str]]:
    """Yield the texts by which each item is the same as another, or of one passage with it."""
    texts = [_texts(doc) for doc in docs]
    count = Counter(chain(*texts))
    most = max(1, len(docs) // _COMMON)
    for of_doc in texts:
        yield [text for text in of_doc if text == of_doc[0] or count[text] <= most]


def _texts(doc: Mapping[str, Any]) -> list[str]:
    """Return the content of an item without its identity, and its long texts."""
    content = {name: value for name, value in doc.items() if name not in _IDENTITY}
    whole = json.dumps(content, sort_keys=True, default=str)
    long = {
        value
        for value in content.values()
        if isinstance(value, str) and len(value.encode()) >= _PASSAGE_BYTES
    }
    return [whole, *sorted(long)]


def _identities(docs: Sequence[Mapping[str, Any]]) -> list[str]:
    for field in _IDENTITY:
        values = [doc.get(field) for doc in docs]
        if all(isinstance(value, str | int) for value in values):
            return [f"{field} {value}" for value in values]
    return [f"row {row}" for row in range(len(docs))]


def split_items(keys: Sequence[str], seed: int, share: float) -> SplitItems:
    """Return the rows of items that choose, and of those that report, each in random order.

    The side and the place of an item follow from its key and the seed alone, whatever the number of
    items.

    Args:
        keys: of all items of a task, from `item_keys`.
        seed: of the split.
        share: of the items that choose, about, in (0, 1); 0: none, 1: all.
    """
    places = [_place(key, seed) for key in keys]
    order = sorted(range(len(keys)), key=lambda row: (places[row], row))
    return SplitItems(
        tuple(row for row in order if places[row] < share),
        tuple(row for row in order if places[row] >= share),
    )


def _place(key: str, seed: int) -> float:
    """Return a number in [0, 1) that a key and a seed have everywhere."""
    digest = hashlib.sha256(f"{seed} {key}".encode()).digest()
    return int.from_bytes(digest[:6]) / 2**48
