"""Reads lm-eval's result format into scores and samples. Imports no lm-eval; knows its dicts.

The value of a score is lm-eval's own; intervals are added from the per-sample records, because
lm-eval gives standard errors only, and those of a share fail near 0 and 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ablations.evaluation.bleu import bleu_counts, bleu_of
from ablations.evaluation.intervals import bootstrap, mean_stderr, wilson_interval
from ablations.evaluation.scores import Interval, Sample, TaskScore
from layerswap_method.errors import LayerSwapError

_PERCENT_METRICS = ("bleu", "chrf", "chrf++", "ter")
"""Metrics that lm-eval reports on a scale to 100."""

_UNBOUNDED_METRICS = ("perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte")
"""Metrics that are no share."""


def read_samples(raw: Mapping[str, Any]) -> tuple[Sample, ...]:
    """Return the records of an lm-eval result that was made with ``log_samples=True``."""
    return tuple(
        _read_sample(task, logged) for task, records in raw["samples"].items() for logged in records
    )


def read_scores(
    raw: Mapping[str, Any], samples: Sequence[Sample], *, seed: int, level: float
) -> tuple[TaskScore, ...]:
    """Return every metric and filter of every task, with intervals from the samples.

    Raises:
        LayerSwapError: when a score cannot be derived again from its samples: then one of the
            two is not what it is taken for, and its interval would be about something else.
    """
    return tuple(
        _read_score(raw, task, key, samples, seed=seed, level=level)
        for task in raw["samples"]
        for key in raw["results"][task]
        if "," in key and not key.split(",")[0].endswith("_stderr")
    )


def _read_sample(task: str, logged: Mapping[str, Any]) -> Sample:
    return Sample(
        task=task,
        filter=logged["filter"],
        doc_id=logged["doc_id"],
        prompts=tuple(arguments[0] for arguments in logged["arguments"]),
        target=str(logged["target"]),
        responses=tuple(_response(each[0]) for each in logged["resps"]),
        answers=tuple(_response(each) for each in logged["filtered_resps"]),
        values={name: _value(logged[name]) for name in logged["metrics"]},
        doc_hash=logged["doc_hash"],
        prompt_hash=logged["prompt_hash"],
        target_hash=logged["target_hash"],
    )


def _response(response: Any) -> str | tuple[float, bool]:
    if isinstance(response, str):
        return response
    log_likelihood, is_greedy = response
    return float(log_likelihood), bool(is_greedy)


def _value(value: Any) -> float | tuple[str, str]:
    """Return a number, or (reference, prediction) where the metric needs the whole corpus."""
    if isinstance(value, (list, tuple)):
        reference, prediction = value
        # A task may give one reference as a list; several references are several samples' worth.
        if isinstance(reference, (list, tuple)):
            (reference,) = reference
        return str(reference), str(prediction)
    return float(value)


def _read_score(
    raw: Mapping[str, Any],
    task: str,
    key: str,
    samples: Sequence[Sample],
    *,
    seed: int,
    level: float,
) -> TaskScore:
    metric, filter_name = key.split(",", 1)
    value = float(raw["results"][task][key])
    if metric in _PERCENT_METRICS:
        # TER may pass 1; the others do so by rounding only (100.00000000000004).
        value = value / 100 if metric == "ter" else min(value / 100, 1.0)
    items = [
        sample.values[metric]
        for sample in samples
        if sample.task == task and sample.filter == filter_name
    ]
    derived, interval, stderr = _derive(metric, items, seed=seed, level=level)
    if derived is not None and not math.isclose(derived, value, rel_tol=1e-9, abs_tol=1e-9):
        raise LayerSwapError(
            f"{task}: lm-eval reports {key} = {value}, its {len(items)} samples give {derived}"
        )
    return TaskScore(
        task=task,
        metric=metric,
        filter=filter_name,
        value=value,
        is_share=metric not in _UNBOUNDED_METRICS,
        interval=interval,
        stderr=stderr,
        n=len(items),
        higher_is_better=bool(raw["higher_is_better"][task].get(metric, True)),
    )


def _derive(
    metric: str, items: Sequence[float | tuple[str, str]], *, seed: int, level: float
) -> tuple[float | None, Interval | None, float | None]:
    """Return (score, interval, standard error) from the items; None where there is no way."""
    pairs = [item for item in items if isinstance(item, tuple)]
    if metric == "bleu" and len(pairs) == len(items):
        counts = bleu_counts([pair[1] for pair in pairs], [pair[0] for pair in pairs])
        drawn = bootstrap(counts, bleu_of, seed=seed, level=level)
        return bleu_of(counts.sum(axis=0)), drawn.interval, drawn.stderr
    if pairs or metric in _UNBOUNDED_METRICS:
        return None, None, None
    values: npt.NDArray[np.float64] = np.array(items, dtype=np.float64)
    mean = float(values.mean())
    if np.isin(values, (0.0, 1.0)).all():
        interval = wilson_interval(int(values.sum()), len(values), level)
        return mean, interval, mean_stderr(values)
    rows = np.column_stack([values, np.ones_like(values)])
    drawn = bootstrap(rows, lambda sums: float(sums[0] / sums[1]), seed=seed, level=level)
    return mean, drawn.interval, drawn.stderr
