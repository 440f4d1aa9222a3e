"""Scores of several samples of every item: mean, deviation, interval over items and samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ablations.scoring.records import Sample, TaskScore
from ablations.statistics.corpus import corpus_metric, pseudo_values
from ablations.statistics.intervals import Array, Interval, estimate, score_interval


def mean_scores(
    scores: Sequence[Sequence[TaskScore]], samples: Sequence[Sequence[Sample]], level: float
) -> tuple[TaskScore, ...]:
    """Return the scores over repeats, in the order of the first repeat.

    A task of which there is a single repeat keeps its scores.

    Args:
        scores: of each repeat.
        samples: of each repeat.
        level: of the intervals, in (0, 1).
    """
    repeats: dict[tuple[str, str, str], list[TaskScore]] = {}
    for score in (each for one in scores for each in one):
        repeats.setdefault((score.task, score.metric, score.filter), []).append(score)
    return tuple(_mean(same, samples[: len(same)], level) for same in repeats.values())


def _mean(
    scores: Sequence[TaskScore], samples: Sequence[Sequence[Sample]], level: float
) -> TaskScore:
    first = scores[0]
    if len(scores) == 1:
        return first
    values = [score.value for score in scores]
    changes: dict[str, Any] = {
        "value": float(np.mean(values)),
        "deviation": float(np.std(values, ddof=1)),
        "repeats": len(scores),
        "interval": None,
        "stderr": None,
    }
    items = None if first.interval is None else _item_values(first, samples)
    if items is not None:
        over_both = estimate(items.mean(axis=1)[None], np.ones(1), ())
        low, high = score_interval(over_both, level)
        changes |= {
            "interval": Interval(low=low, high=high, level=level, method="items and repeats"),
            "stderr": math.sqrt(over_both.variance) if items.size > 1 else None,
            "n": len(items),
        }
    return first.model_copy(update=changes)


def _item_values(score: TaskScore, samples: Sequence[Sequence[Sample]]) -> Array | None:
    """Return what every item adds to the score in each repeat, shape [items, repeats]."""
    corpus = corpus_metric(score.metric, score.signature)
    columns: list[dict[int, float]] = []
    for one in samples:
        values = {
            sample.doc_id: sample.values[score.metric]
            for sample in one
            if (sample.task, sample.filter) == (score.task, score.filter)
            and score.metric in sample.values
        }
        pairs = [value for value in values.values() if isinstance(value, tuple)]
        if not pairs:
            columns.append(
                {key: value for key, value in values.items() if isinstance(value, float)}
            )
            continue
        if corpus is None:
            return None
        rows = corpus.counts([said for _, said in pairs], [gold for gold, _ in pairs])
        parts = pseudo_values(rows.astype(np.float64), corpus.score)
        columns.append(dict(zip(values, parts.tolist(), strict=True)))
    common = [item for item in columns[0] if all(item in column for column in columns)]
    return np.array([[column[item] for column in columns] for item in common]) if common else None
