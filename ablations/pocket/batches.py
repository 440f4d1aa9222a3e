"""From documents to batches of token ids. Knows lengths and loss masks; no model, no torch."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from ablations.pocket.corpora import Document, Stream
from ablations.pocket.tokenizer import BOS_ID, EOS_ID, PAD_ID

IGNORED = -100
"""The label of a token that bears no loss (torch's `ignore_index`)."""
POOL_BATCHES = 24


@dataclass(frozen=True)
class Batch:
    """Token ids and labels, both ``[documents][longest]``, padded on the right."""

    ids: list[list[int]]
    labels: list[list[int]]


def encode(document: Document, vocabulary: dict[str, int]) -> tuple[list[int], list[int]]:
    """Return ids and labels: ``<bos>`` first, ``<eos>`` last, loss on answers and ``<eos>``."""
    ids, labels = [BOS_ID], [IGNORED]
    for exercise in document:
        prompt = [vocabulary[token] for token in exercise.prompt.split()]
        answer = [vocabulary[token] for token in exercise.answer.split()]
        ids += prompt + answer
        labels += [IGNORED] * len(prompt) + answer
    return [*ids, EOS_ID], [*labels, EOS_ID]


def _pad(rows: list[list[int]], filler: int) -> list[list[int]]:
    longest = max(map(len, rows))
    return [row + [filler] * (longest - len(row)) for row in rows]


def draw_batches(
    stream: Stream, vocabulary: dict[str, int], *, tokens_per_batch: int, seed: int
) -> Iterator[Batch]:
    """Yield batches of documents of like length, about `tokens_per_batch` tokens with padding.

    A pool of 24 batches is drawn, sorted by length, cut and shuffled with `seed`.
    """
    rng = random.Random(seed)
    while True:
        pool: list[tuple[list[int], list[int]]] = []
        tokens = 0
        while tokens < tokens_per_batch * POOL_BATCHES:
            pool.append(encode(next(stream), vocabulary))
            tokens += len(pool[-1][0])
        pool.sort(key=lambda pair: len(pair[0]))
        groups: list[list[tuple[list[int], list[int]]]] = [[]]
        for pair in pool:
            if groups[-1] and (len(groups[-1]) + 1) * len(pair[0]) > tokens_per_batch:
                groups.append([])
            groups[-1].append(pair)
        rng.shuffle(groups)
        for group in groups:
            ids, labels = zip(*group, strict=True)
            yield Batch(_pad(list(ids), PAD_ID), _pad(list(labels), IGNORED))
