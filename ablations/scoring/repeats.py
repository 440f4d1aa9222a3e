"""Scores of several samples of every item: mean, deviation, and an interval of two levels."""

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
    found = []
    for first in scores[0]:
        key = (first.task, first.metric, first.filter)
        same = [
            each for one in scores for each in one if (each.task, each.metric, each.filter) == key
        ]
        found.append(first if len(same) == 1 else _mean(same, samples, level))
    return tuple(found)


def _mean(
    scores: Sequence[TaskScore], samples: Sequence[Sequence[Sample]], level: float
) -> TaskScore:
    values = [score.value for score in scores]
    first = scores[0]
    changes: dict[str, Any] = {
        "value": float(np.mean(values)),
        "deviation": float(np.std(values, ddof=1)),
        "repeats": len(scores),
        "interval": None,
        "stderr": None,
    }
    found = _item_values(first, [each for each in samples if _has(each, first)])
    if first.interval is not None and found is not None:
        over_both = estimate(found.mean(axis=1)[None], np.ones(1), ())
        low, high = score_interval(over_both, level)
        changes |= {
            "interval": Interval(low=low, high=high, level=level, method="items and repeats"),
            "stderr": math.sqrt(over_both.variance) if found.size > 1 else None,
            "n": len(found),
        }
    return first.model_copy(update=changes)


def _has(samples: Sequence[Sample], score: TaskScore) -> bool:
    return any(sample.task == score.task for sample in samples)


def _item_values(score: TaskScore, samples: Sequence[Sequence[Sample]]) -> Array | None:
    """Return what every item adds to the score in each repeat, shape [items, repeats]."""
    corpus = corpus_metric(score.metric, score.signature)
    columns: list[dict[int, float]] = []
    for one in samples:
        of = {
            sample.doc_id: sample.values[score.metric]
            for sample in one
            if (sample.task, sample.filter) == (score.task, score.filter)
            and score.metric in sample.values
        }
        pairs = [value for value in of.values() if isinstance(value, tuple)]
        if not pairs:
            columns.append({key: value for key, value in of.items() if isinstance(value, float)})
            continue
        if corpus is None:
            return None
        rows = corpus.counts([said for _, said in pairs], [gold for gold, _ in pairs])
        each = pseudo_values(rows.astype(np.float64), corpus.score)
        columns.append(dict(zip(of, each.tolist(), strict=True)))
    common = [item for item in columns[0] if all(item in column for column in columns)]
    return np.array([[column[item] for column in columns] for item in common]) if common else None
