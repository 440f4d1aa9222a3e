"""Which items choose and which report: by a hash of each item's identity, the same in all tasks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

_IDENTITY = ("link", "sample_id", "id")
"""Fields that name an item in all languages of a benchmark: Belebele's passage, MMLU's, FLORES'."""

_PASSAGE = 80
"""Least characters of a text that is a passage where several items share it."""

_COMMON = 4
"""A text that more than one item in so many has is an instruction, and no passage."""


class SplitItems(NamedTuple):
    """The items of a task by their row, in the order in which they are answered."""

    choose: tuple[int, ...]
    report: tuple[int, ...]


def item_keys(docs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what names each item in the split: equal for items that belong to one side.

    Items of one passage, and items that are the same but for their identity, share the key of the
    first of them. A key is the item's identity, or else its row, so that parallel languages, which
    have the same order, have the same keys.
    """
    first_of, count = dict[str, int](), dict[str, int]()
    texts = [_texts(doc) for doc in docs]
    for text in (text for of_doc in texts for text in of_doc):
        count[text] = count.get(text, 0) + 1
    group = list(range(len(docs)))

    def root(row: int) -> int:
        while group[row] != row:
            row = group[row]
        return row

    for row, of_doc in enumerate(texts):
        for text in of_doc:
            if count[text] > max(1, len(docs) // _COMMON) and text != of_doc[0]:
                continue
            first = root(first_of.setdefault(text, row))
            low, high = sorted((first, root(row)))
            group[high] = low
    roots = [root(row) for row in range(len(docs))]
    return [_identity(docs[row], row) for row in roots]


def _texts(doc: Mapping[str, Any]) -> list[str]:
    """Return the content of an item without its identity, and its long texts."""
    content = {name: value for name, value in doc.items() if name not in _IDENTITY}
    whole = json.dumps(content, sort_keys=True, default=str)
    long = {
        value for value in content.values() if isinstance(value, str) and len(value) >= _PASSAGE
    }
    return [whole, *sorted(long)]


def _identity(doc: Mapping[str, Any], row: int) -> str:
    for name in _IDENTITY:
        if isinstance(value := doc.get(name), str | int):
            return f"{name} {value}"
    return f"row {row}"


def split_items(keys: Sequence[str], seed: int, share: float) -> SplitItems:
    """Return the rows of items that choose, and of those that report, each in random order.

    The side and the place of an item follow from its key and the seed alone: the same in every
    task, language and number of items.

    Args:
        keys: of all items, from `item_keys`.
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
