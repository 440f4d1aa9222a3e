"""Scores and samples from lm-eval's result format: means over repeats, intervals, standard errors.

The value of a score is lm-eval's own; intervals are added from the samples, because
lm-eval gives standard errors only, and those of a share fail near 0 and 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ablations.scoring.evaluation import Sample, TaskFailed, TaskScore
from ablations.scoring.language_id import why_not_judged
from ablations.scoring.observed import OBSERVED, Key, Outcome, language_of, observed_values
from ablations.statistics.corpus import (
    corpus_metric,
    pseudo_values,
    signature,
    signatures,
)
from ablations.statistics.intervals import Interval, bootstrap, score_interval, wilson_interval
from ablations.statistics.means_and_p_values import Array, estimate
from ablations.tasks.catalog import floor_of
from ablations.tasks.mbpp import RunCode

_PERCENT_METRICS = ("bleu", "chrf", "chrf++", "ter")
"""Metrics that lm-eval reports on a scale to 100."""

_MEANS = ("mean", "nanmean", *_PERCENT_METRICS)
"""lm-eval's aggregations that are computed again from the items, to check them."""

_UNBOUNDED_METRICS = ("perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte")
"""Metrics that are not shares."""

UNMEASURED = -1.0
"""Value of a RULER item by the metrics of other lengths than its own, whose names are numbers."""

_Derived = tuple[float | None, Interval | None, float | None]
"""Score, interval and standard error; None where they cannot be computed."""


def read_samples(
    raw: Mapping[str, Any],
    outcomes: Mapping[Key, Sequence[Outcome]] | None = None,
    repeat: int = 0,
    stored_keys: Mapping[Key, Sequence[str]] | None = None,
) -> tuple[Sample, ...]:
    """Return the samples of an lm-eval result that was made with ``log_samples=True``.

    Args:
        raw: the result.
        outcomes: of the requests, where the model object noted them.
        repeat: number of the sample of each item.
        stored_keys: of the answers to the requests, where they are stored.
    """
    samples = []
    for task, logged_samples in raw["samples"].items():
        language = language_of(raw.get("configs", {}).get(task, {}))
        if language is not None and why_not_judged(*language) is not None:
            language = None
        for logged in logged_samples:
            item = (task, logged["doc_id"])
            outcomes_of_item = (outcomes or {}).get(item, ())
            keys = (stored_keys or {}).get(item, ())
            samples.append(_read_sample(task, logged, repeat, language, outcomes_of_item, keys))
    return tuple(samples)


def scores_of_samples(
    raw: Mapping[str, Any], samples: Sequence[Sample], *, seed: int, level: float
) -> tuple[TaskScore, ...]:
    """Return every metric and filter of every task, with intervals from the samples.

    After a task's own metrics come those of `ablations.scoring.observed` that its items have,
    once, under its first filter.

    Raises:
        LayerSwapError: when a score cannot be computed again from its samples: one of them is
            wrong then, and an interval from the samples would not be that of the score.
    """
    scores = []
    for task in raw["samples"]:
        task_samples = [sample for sample in samples if sample.task == task]
        reported = {
            tuple(key.split(",", 1)): float(value)  # metric and filter
            for key, value in raw["results"][task].items()
            if "," in key and "_stderr," not in key and not _is_unmeasured(raw, task, key, value)
        }
        order = [*raw["higher_is_better"][task]]  # as in the task's file
        names = sorted(reported, key=lambda name: [*order, name[0]].index(name[0]))
        metadata = raw.get("configs", {}).get(task, {}).get("metadata") or {}
        signature_of_metric = {}
        if any(metric in ("bleu", "chrf++") for metric, _ in names):
            signature_of_metric = signatures(metadata) or {"bleu": signature("bleu")}
        aggregations = _aggregations(raw.get("configs", {}).get(task, {}))
        for metric, filter_name in names:
            score = _score(
                task,
                metric,
                [sample for sample in task_samples if sample.filter == filter_name],
                seed=seed,
                level=level,
                reported=reported[metric, filter_name],
                aggregation=aggregations.get(metric, "mean"),
                filter=filter_name,
                # lm-eval has None for a metric whose file does not say it.
                higher_is_better=raw["higher_is_better"][task].get(metric) is not False,
                signature=signature_of_metric.get(metric),
                floor=floor_of(metadata) if metric == names[0][0] else None,
            )
            scores.append(score)
        first_filter = task_samples[0].filter
        observed = [sample for sample in task_samples if sample.filter == first_filter]
        for metric, higher_is_better in OBSERVED.items():
            if any(metric in sample.values for sample in observed):
                score = _score(
                    task,
                    metric,
                    observed,
                    seed=0,
                    level=level,
                    filter=first_filter,
                    higher_is_better=higher_is_better,
                )
                scores.append(score)
    return tuple(scores)


def _aggregations(config: Mapping[str, Any]) -> dict[str, str]:
    """Return metric -> its aggregation, for those that state one: a name, or a function's code."""
    return {
        entry["metric"]: str(entry["aggregation"])
        for entry in config.get("metric_list") or ()
        if isinstance(entry.get("metric"), str) and entry.get("aggregation") is not None
    }


def _is_unmeasured(raw: Mapping[str, Any], task: str, key: str, value: Any) -> bool:
    """Return whether a metric has no value of any item: RULER's of a length that was not asked."""
    metric = key.partition(",")[0]
    is_length = metric.isdigit() and value == UNMEASURED
    return is_length and all(logged.get(metric) == UNMEASURED for logged in raw["samples"][task])


def _read_sample(
    task: str,
    logged: Mapping[str, Any],
    repeat: int,
    language: tuple[str, str] | None,
    outcomes: Sequence[Outcome],
    keys: Sequence[str],
) -> Sample:
    responses = tuple(_response(response[0]) for response in logged["resps"])
    values: dict[str, float | tuple[str, str]] = {}
    for metric in logged["metrics"]:
        value = item_value(metric, logged[metric])
        if value is not None:
            values[metric] = value
    verdicts = (
        answer.verdict for answer in logged["filtered_resps"] if isinstance(answer, RunCode)
    )
    return Sample(
        task=task,
        filter=logged["filter"],
        doc_id=logged["doc_id"],
        prompts=tuple(arguments[0] for arguments in logged["arguments"]),
        choices=tuple(
            arguments[1]
            for arguments in logged["arguments"]
            if len(arguments) > 1 and isinstance(arguments[1], str)
        ),
        target=str(logged["target"]),
        responses=responses,
        # A task may repeat each request; the first answer to it is the one that is scored.
        keys=tuple(keys[:: max(1, len(keys) // len(responses))]),
        answers=tuple(_response(response) for response in logged["filtered_resps"]),
        values=values | observed_values(language, outcomes, responses),
        doc_hash=logged["doc_hash"],
        prompt_hash=logged["prompt_hash"],
        target_hash=logged["target_hash"],
        program=next(verdicts, None),
        repeat=repeat,
    )


def _response(response: Any) -> str | tuple[float, bool]:
    if isinstance(response, str):
        return response
    log_likelihood, is_greedy = response
    return float(log_likelihood), bool(is_greedy)


def item_value(metric: str, value: Any) -> float | tuple[str, str] | None:
    """Return the value of an item by a metric as lm-eval logs it.

    It is a number, or (reference, prediction) where the metric needs the whole corpus. None for a
    value that is neither, such as a list of verdicts or no finite number: its score is lm-eval's
    alone; and for one that was not measured.
    """
    if metric.isdigit() and value == UNMEASURED:
        return None
    if isinstance(value, (list, tuple)):
        if len(value) != 2:
            return None
        reference, prediction = value
        # A task may give one reference as a list; several references are several samples' worth.
        if isinstance(reference, (list, tuple)) and len(reference) == 1:
            (reference,) = reference
        is_pair = isinstance(reference, str) and isinstance(prediction, str)
        return (reference, prediction) if is_pair else None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _score(
    task: str,
    metric: str,
    samples: Sequence[Sample],
    *,
    seed: int,
    level: float,
    reported: float | None = None,
    aggregation: str = "mean",
    signature: str | None = None,
    **fields: Any,
) -> TaskScore:
    """Return the score that lm-eval reports, or where it reports none, that of the samples.

    Its interval is that of a mean over items, or of a metric of the whole corpus. A score by
    another `aggregation` has none, such as a median; one by a function of the task has it where the
    function gives the mean.
    """
    items = [sample.values[metric] for sample in samples if metric in sample.values]
    derived, interval, stderr = _derive(metric, items, seed, level, signature)
    value = derived if reported is None else reported
    is_percent = metric in _PERCENT_METRICS and not any(isinstance(item, float) for item in items)
    if is_percent and reported is not None:
        # TER may pass 1; the others do so by rounding only (100.00000000000004).
        value = reported / 100 if metric == "ter" else min(reported / 100, 1.0)
    key = f"{metric},{fields['filter']}"
    if value is None or not math.isfinite(value):
        raise TaskFailed(task, f"lm-eval reports {key} = {value}, which is not a score")
    agrees = derived is None or math.isclose(derived, value, rel_tol=1e-9, abs_tol=1e-9)
    if not agrees and aggregation in _MEANS:
        raise TaskFailed(
            task,
            f"lm-eval reports {key} = {value}, but its {len(items)} samples give {derived}",
        )
    if not agrees or (aggregation.isidentifier() and aggregation not in _MEANS):
        interval = stderr = None
    return TaskScore(
        task=task,
        metric=metric,
        value=value,
        is_share=is_percent or _is_share(metric, (value, *items)),
        interval=interval,
        stderr=stderr,
        n=len(items) or len(samples),
        signature=signature,
        **fields,
    )


def _is_share(metric: str, values: Sequence[float | tuple[str, str]]) -> bool:
    numbers = (value for value in values if isinstance(value, float))
    return metric not in _UNBOUNDED_METRICS and all(-1e-9 <= n <= 1 + 1e-9 for n in numbers)


def _derive(
    metric: str,
    items: Sequence[float | tuple[str, str]],
    seed: int,
    level: float,
    signature: str | None,
) -> _Derived:
    pairs = [item for item in items if isinstance(item, tuple)]
    corpus = corpus_metric(metric, signature)
    if corpus is not None and pairs and len(pairs) == len(items):
        counts = corpus.counts([text for _, text in pairs], [gold for gold, _ in pairs])
        value = float(corpus.score(counts.sum(axis=0).astype(np.float64)))
        return value, *bootstrap(counts, corpus.score, seed=seed, level=level)
    if pairs or not items or metric in _UNBOUNDED_METRICS:
        return None, None, None
    from scipy.stats import sem

    values: npt.NDArray[np.float64] = np.array(items, dtype=np.float64)
    mean = float(values.mean())
    if np.isin(values, (0.0, 1.0)).all():
        interval = wilson_interval(int(values.sum()), len(values), level)
        return mean, interval, float(sem(values)) if len(values) > 1 else None
    rows = np.column_stack([values, np.ones_like(values)])
    return mean, *bootstrap(rows, lambda sums: sums[..., 0] / sums[..., 1], seed=seed, level=level)


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
    for scores_of_repeat in scores:
        for score in scores_of_repeat:
            repeats.setdefault((score.task, score.metric, score.filter), []).append(score)
    return tuple(
        _mean(scores_of_metric, samples[: len(scores_of_metric)], level)
        for scores_of_metric in repeats.values()
    )


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
        "is_share": all(score.is_share for score in scores),
        "interval": None,
        "stderr": None,
    }
    items = None if first.interval is None else _item_values(first, samples)
    if items is not None:
        estimated = estimate(items.mean(axis=1)[None], np.ones(1), ())
        if changes["is_share"]:
            low, high = score_interval(estimated, level)
        else:
            half = estimated.half_width(level)
            low, high = estimated.mean - half, estimated.mean + half
        interval = Interval(low=low, high=high, level=level, method="items and repeats")
        changes |= {
            "interval": None if math.isnan(low) else interval,
            "stderr": math.sqrt(estimated.variance) if items.size > 1 else None,
            "n": len(items),
        }
    return first.model_copy(update=changes)


def _item_values(score: TaskScore, samples: Sequence[Sequence[Sample]]) -> Array | None:
    """Return the part of every item in the score of each repeat, shape [items, repeats]."""
    corpus = corpus_metric(score.metric, score.signature)
    columns: list[dict[int, float]] = []
    for samples_of_repeat in samples:
        values = {
            sample.doc_id: sample.values[score.metric]
            for sample in samples_of_repeat
            if (sample.task, sample.filter) == (score.task, score.filter)
            and score.metric in sample.values
        }
        pairs = [value for value in values.values() if isinstance(value, tuple)]
        if not pairs:
            columns.append(
                {item: value for item, value in values.items() if isinstance(value, float)}
            )
            continue
        if corpus is None:
            return None
        rows = corpus.counts([text for _, text in pairs], [gold for gold, _ in pairs])
        parts = pseudo_values(rows.astype(np.float64), corpus.score)
        columns.append(dict(zip(values, parts.tolist(), strict=True)))
    common = [item for item in columns[0] if all(item in column for column in columns)]
    return np.array([[column[item] for column in columns] for item in common]) if common else None
