"""Reads lm-eval's result format into scores and samples.

The value of a score is lm-eval's own; intervals are added from the per-sample records, because
lm-eval gives standard errors only, and those of a share fail near 0 and 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ablations.scoring.intervals import bootstrap, mean_stderr, wilson_interval
from ablations.scoring.language_id import why_not_judged
from ablations.scoring.observed import OBSERVED, Key, Outcome, language_of, observed_values
from ablations.scoring.records import Sample, TaskScore
from ablations.statistics.corpus import corpus_metric
from ablations.statistics.intervals import Interval
from ablations.tasks.floors import floor_of
from ablations.tasks.mbpp import RunCode
from layerswap_method.errors import LayerSwapError

_PERCENT_METRICS = ("bleu", "chrf", "chrf++", "ter")
"""Metrics that lm-eval reports on a scale to 100."""

_UNBOUNDED_METRICS = ("perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte")
"""Metrics that are no share."""


def read_samples(
    raw: Mapping[str, Any],
    outcomes: Mapping[Key, Sequence[Outcome]] | None = None,
    repeat: int = 0,
) -> tuple[Sample, ...]:
    """Return the records of an lm-eval result that was made with ``log_samples=True``.

    Args:
        raw: the result.
        outcomes: how the requests went, where the model object watched them.
        repeat: number of the sample of each item.
    """
    found = []
    for task, records in raw["samples"].items():
        language = language_of(raw.get("configs", {}).get(task, {}))
        if language is not None and why_not_judged(*language) is not None:
            language = None
        for logged in records:
            sample = _read_sample(task, logged, repeat)
            requests = (outcomes or {}).get((task, sample.doc_id), ())
            values = observed_values(language, requests, sample.responses)
            found.append(sample.model_copy(update={"values": {**sample.values, **values}}))
    return tuple(found)


def read_scores(
    raw: Mapping[str, Any], samples: Sequence[Sample], *, seed: int, level: float
) -> tuple[TaskScore, ...]:
    """Return every metric and filter of every task, with intervals from the samples.

    After a task's own metrics come those of `ablations.scoring.observed` that its items have,
    once, under its first filter.

    Raises:
        LayerSwapError: when a score cannot be derived again from its samples: then one of the
            two is not what it is taken for, and its interval would be about something else.
    """
    scores: list[TaskScore] = []
    for task in raw["samples"]:
        keys = [key for key in raw["results"][task] if "," in key and "_stderr," not in key]
        floor = floor_of(raw.get("configs", {}).get(task, {}).get("metadata"))
        for key in keys:
            score = _read_score(raw, task, key, samples, seed=seed, level=level)
            is_first = score.metric == keys[0].split(",")[0]
            scores.append(score.model_copy(update={"floor": floor}) if is_first else score)
        scores += _observed_scores(task, samples, level=level)
    return tuple(scores)


def _observed_scores(task: str, samples: Sequence[Sample], *, level: float) -> Iterator[TaskScore]:
    of_task = [sample for sample in samples if sample.task == task]
    filter_name = of_task[0].filter if of_task else ""
    for metric, higher_is_better in OBSERVED.items():
        items = [
            sample.values[metric]
            for sample in of_task
            if sample.filter == filter_name and metric in sample.values
        ]
        value, interval, stderr = _derive(metric, items, seed=0, level=level)
        if value is not None:
            yield TaskScore(
                task=task,
                metric=metric,
                filter=filter_name,
                value=value,
                is_share=True,
                interval=interval,
                stderr=stderr,
                n=len(items),
                higher_is_better=higher_is_better,
            )


def _read_sample(task: str, logged: Mapping[str, Any], repeat: int) -> Sample:
    read = ((name, _value(logged[name])) for name in logged["metrics"])
    metrics = {name: value for name, value in read if value is not None}
    programs = (each.verdict for each in logged["filtered_resps"] if isinstance(each, RunCode))
    return Sample(
        task=task,
        filter=logged["filter"],
        doc_id=logged["doc_id"],
        prompts=tuple(arguments[0] for arguments in logged["arguments"]),
        target=str(logged["target"]),
        responses=tuple(_response(each[0]) for each in logged["resps"]),
        answers=tuple(_response(each) for each in logged["filtered_resps"]),
        values=metrics,
        doc_hash=logged["doc_hash"],
        prompt_hash=logged["prompt_hash"],
        target_hash=logged["target_hash"],
        program=next(programs, None),
        repeat=repeat,
    )


def _response(response: Any) -> str | tuple[float, bool]:
    if isinstance(response, str):
        return response
    log_likelihood, is_greedy = response
    return float(log_likelihood), bool(is_greedy)


def _value(value: Any) -> float | tuple[str, str] | None:
    """Return a number, or (reference, prediction) where the metric needs the whole corpus.

    None for what is neither, such as a list of verdicts or NaN: its score is lm-eval's alone.
    """
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
    return None if math.isnan(number) else number


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
    if math.isnan(value):
        raise LayerSwapError(f"{task}: lm-eval reports {key} = nan, which is no score")
    of_filter = [each for each in samples if each.task == task and each.filter == filter_name]
    items = [each.values[metric] for each in of_filter if metric in each.values]
    signature = _signatures(raw, task).get(metric)
    derived, interval, stderr = _derive(metric, items, seed=seed, level=level, signature=signature)
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
        n=len(items) or len(of_filter),
        higher_is_better=bool(raw["higher_is_better"][task].get(metric, True)),
        signature=signature,
    )


def _signatures(raw: Mapping[str, Any], task: str) -> dict[str, str]:
    """Return metric -> sacrebleu's signature, of the task's own metrics or lm-eval's `bleu`."""
    metrics = {key.split(",")[0] for key in raw["results"][task]}
    if not metrics & {"bleu", "chrf++"}:
        return {}
    from ablations.statistics.corpus import signature, signatures

    metadata = raw.get("configs", {}).get(task, {}).get("metadata") or {}
    return signatures(metadata) or {"bleu": signature("bleu")}


def _derive(
    metric: str,
    items: Sequence[float | tuple[str, str]],
    *,
    seed: int,
    level: float,
    signature: str | None = None,
) -> tuple[float | None, Interval | None, float | None]:
    """Return (score, interval, standard error) from the items; None where there is no way."""
    pairs = [item for item in items if isinstance(item, tuple)]
    known = corpus_metric(metric, signature)
    if known is not None and pairs and len(pairs) == len(items):
        counts = known.counts([pair[1] for pair in pairs], [pair[0] for pair in pairs])
        value = float(known.score(counts.sum(axis=0).astype(np.float64)))
        return value, *bootstrap(counts, known.score, seed=seed, level=level)
    if pairs or not items or metric in _UNBOUNDED_METRICS:
        return None, None, None
    values: npt.NDArray[np.float64] = np.array(items, dtype=np.float64)
    mean = float(values.mean())
    if np.isin(values, (0.0, 1.0)).all():
        interval = wilson_interval(int(values.sum()), len(values), level)
        return mean, interval, mean_stderr(values)
    rows = np.column_stack([values, np.ones_like(values)])
    return mean, *bootstrap(rows, lambda sums: sums[..., 0] / sums[..., 1], seed=seed, level=level)
