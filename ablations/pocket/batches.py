"""From exercises to batches of token ids. Knows lengths and weights; no model, no torch."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from ablations.pocket.corpora import Stream
from ablations.pocket.exercises import Exercise
from ablations.pocket.tokenizer import BOS_ID, EOS_ID, PAD_ID

POOL_BATCHES = 24


@dataclass(frozen=True)
class Batch:
    """Token ids and the weight of each token's loss, both ``[exercises][longest]``.

    Padded on the right, with weight 0.
    """

    ids: list[list[int]]
    weights: list[list[float]]


def encode(
    exercise: Exercise, vocabulary: dict[str, int], prompt_weight: float
) -> tuple[list[int], list[float]]:
    """Return ids and weights: ``<bos>`` (0), the prompt, the answer and ``<eos>`` (1 each)."""
    prompt, answer = (
        [vocabulary[token] for token in text.split()] for text in (exercise.prompt, exercise.answer)
    )
    weights = [0.0, *[prompt_weight] * len(prompt), *[1.0] * (len(answer) + 1)]
    return [BOS_ID, *prompt, *answer, EOS_ID], weights


def draw_batches(
    stream: Stream,
    vocabulary: dict[str, int],
    *,
    tokens_per_batch: int,
    seed: int,
    prompt_weight: float = 0.0,
) -> Iterator[Batch]:
    """Yield batches of exercises of like length, about `tokens_per_batch` tokens with padding.

    A pool of 24 batches is drawn, sorted by length, cut and shuffled with `seed`.
    """
    rng = random.Random(seed)
    while True:
        pool: list[tuple[list[int], list[float]]] = []
        tokens = 0
        while tokens < tokens_per_batch * POOL_BATCHES:
            pool.append(encode(next(stream), vocabulary, prompt_weight))
            tokens += len(pool[-1][0])
        pool.sort(key=lambda pair: len(pair[0]))
        groups: list[list[tuple[list[int], list[float]]]] = [[]]
        for pair in pool:
            if groups[-1] and (len(groups[-1]) + 1) * len(pair[0]) > tokens_per_batch:
                groups.append([])
            groups[-1].append(pair)
        rng.shuffle(groups)
        for group in groups:
            longest = max(len(ids) for ids, _ in group)
            yield Batch(
                [ids + [PAD_ID] * (longest - len(ids)) for ids, _ in group],
                [weights + [0.0] * (longest - len(weights)) for _, weights in group],
            )
