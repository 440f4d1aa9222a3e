"""Runs as `layerswap run` writes them, of models whose abilities are known because we chose them.

A model answers an item right if ability + item's ease + its own luck > 0; the items are the same
for all, so scores of different models are paired as real ones are.
"""

import itertools
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ablations.runner.records import (
    Failure,
    RunFile,
    TaskRecord,
    load_run,
    write_failure,
    write_record,
    write_run_file,
)
from ablations.scoring.records import Evaluation, Sample, TaskScore
from ablations.scoring.scores import bootstrap, mean_stderr, wilson_interval
from ablations.statistics.corpus import CORPUS_METRICS, corpus_metric
from ablations.study.cells import Cell
from ablations.study.schema import BASELINE_ROLES, Study
from layerswap_method.plan import build_plan

NUM_LAYERS = 8
RECIPE_ROLES = ("task", "language", "base")
WORDS = ("mtu", "watu", "kitu", "vitu", "mti", "miti", "jina", "mahali", "siku", "nyumba")


@dataclass(frozen=True)
class Point:
    """What a made-up cell is."""

    kind: str
    values: Mapping[str, Any]
    experts: Mapping[str, str]
    language: str | None
    label: str


def points_of(study):
    codes = study.experts.languages()
    points = {}
    for kind in study.baseline:
        for setting in study.settings():
            for experts in _pairs(study, setting, BASELINE_ROLES[kind]):
                label = " ".join([kind, *(experts.get(r, "") for r in ("task", "language"))])
                code = codes.get(experts.get("language", ""))
                point = Point(kind, {}, experts, code, " ".join(label.split()))
                points.setdefault(point.label, point)
    for setting in study.settings() if study.recipe is not None else ():
        for experts in _pairs(study, setting, RECIPE_ROLES):
            pair = f"{experts['task']}+{experts['language']}"
            values = (f"{name}={value}" for name, value in setting.items())
            label = " ".join([pair, *values])
            code = codes.get(experts["language"])
            points[label] = Point("recipe", setting, experts, code, label)
    return list(points.values())


def _pairs(study, setting, roles):
    pools = study.pools(setting)
    names = itertools.product(*(pools.names(role) for role in roles))
    return [dict(zip(roles, each, strict=True)) for each in names]


def tasks_of(study, point):
    asked = study.evaluate.languages
    codes = list(asked) if point.language is None else [point.language]
    return [*study.evaluate.tasks, *(task for code in codes for task in asked.get(code, ()))]


def write_run(folder, study, ability, *, items=250, failed=None, unrun=frozenset(), fidelity=None):
    """Write a run of `study` and return it as read. `failed`: label -> reason.

    `ability` of a cell on a task is about the score's logit.
    `fidelity`: share of the answers in the right language; None: the language is not looked at.
    """
    points = points_of(study)
    write_run_file(
        folder,
        RunFile(
            study=study,
            experts={},
            cells=tuple(_planned(study, point) for point in points),
            num_layers=NUM_LAYERS,
            protocol="",
            created="2026-11-01T12:00:00+00:00",
            versions={"layerswap": "0.1.0", "lm_eval": "0.4.13"},
        ),
    )
    for point in points:
        reason = (failed or {}).get(point.label)
        if reason is not None:
            task, key = next(iter(_planned(study, point).records.items()))
            write_failure(folder, Failure(key=key, task=task, label=point.label, error=reason))
        elif point.label not in unrun:
            _write(folder, study, point, ability, items, fidelity)
    return load_run(folder)


def _planned(study, point):
    counts = {k: v for k, v in point.values.items() if k.endswith(("_layers", "_transition"))}
    key = f"{zlib.crc32(point.label.encode()):08x}"
    plan = build_plan(NUM_LAYERS, **{"bottom_layers": 1, "top_layers": 1, **counts})
    return Cell(
        label=point.label,
        kind=point.kind,
        values=dict(point.values),
        experts=dict(point.experts),
        language=point.language,
        plan=plan if point.kind == "recipe" else None,
        weights_key=f"w{key}",
        records={task: f"s{key}-{task}" for task in tasks_of(study, point)},
    )


def _write(folder, study, point, ability, items, fidelity):
    planned = _planned(study, point)
    for task, key in planned.records.items():
        samples, score = _answer(task, point, ability(point, task), items)
        scores = [score]
        if fidelity is not None:
            samples, spoken = _spoken(samples, fidelity(point, task))
            scores.append(spoken)
        record = TaskRecord(
            key=key,
            weights_key=planned.weights_key,
            protocol="",
            task=task,
            label=point.label,
            evaluation=Evaluation(
                model=point.label,
                backend="hf",
                scores=tuple(scores),
                samples=tuple(samples),
                task_versions={task: "1.0"},
                num_fewshot={task: 0},
                versions={"lm_eval": "0.4.13"},
                elapsed_s=2.0,
            ),
            timing_s={"load": 0.1, "evaluate": 2.0, "total": 2.1},
            provenance={},
        )
        write_record(folder, record)


def same_model(run, one, other):
    """Return `run` with the records of the cell `one` for both, as for equal weights."""
    cells = {cell.label: cell for cell in run.head.cells}
    keys = {"weights_key": cells[one].weights_key, "records": cells[one].records}
    cells[other] = cells[other].model_copy(update=keys)
    head = run.head.model_copy(update={"cells": tuple(cells.values())})
    write_run_file(run.path, head)
    return load_run(run.path)


def _answer(task, point, ability, items):
    ease = np.random.default_rng(zlib.crc32(task.encode())).normal(0, 1.5, items)
    rng = np.random.default_rng(zlib.crc32(f"{task}/{point.label}".encode()))
    right = ability + ease + rng.normal(0, 0.7, items) > 0
    if "perplexity" in task:
        values = [3.0] * items
        metric = "word_perplexity"
    elif "translate" in task:
        values = [_translation(doc, ability, rng) for doc in range(items)]
        metric = next((m for m in CORPUS_METRICS if task.endswith(m)), "bleu")
    else:
        values = [float(each) for each in right]
        metric = "exact_match"
    samples = [
        Sample(
            task=task,
            filter="strict-match",
            doc_id=doc,
            prompts=(f"{task} <{doc}> & more",),
            target="7",
            responses=("7 \u2028 .",),
            answers=("7",),
            values={metric: value},
            doc_hash=f"d{doc}",
            prompt_hash=f"p{doc}",
            target_hash=f"t{doc}",
        )
        for doc, value in enumerate(values)
    ]
    return samples, _score(task, metric, values)


def _spoken(samples, share):
    """Return the samples with their language looked at; the first `share` of them is right."""
    metric, right = "language_fidelity", round(share * len(samples))
    said = [
        sample.model_copy(update={"values": {**sample.values, metric: float(doc < right)}})
        for doc, sample in enumerate(samples)
    ]
    score = _score(samples[0].task, "exact_match", [each.values[metric] for each in said])
    return said, score.model_copy(update={"metric": metric})


def _score(task, metric, values):
    n = len(values)
    interval, stderr, value = None, None, 3.0
    known = corpus_metric(metric)
    if known is not None:
        counts = known.counts([each[1] for each in values], [each[0] for each in values])
        interval, stderr = bootstrap(counts, known.score, seed=0, resamples=200)
        value = float(known.score(counts.sum(axis=0)))
    elif metric == "exact_match":
        value = float(np.mean(values))
        interval, stderr = wilson_interval(int(sum(values)), n), mean_stderr(np.array(values))
    return TaskScore(
        task=task,
        metric=metric,
        filter="strict-match",
        value=value,
        is_share=metric != "word_perplexity",
        interval=interval,
        stderr=stderr,
        n=n,
        higher_is_better=metric != "word_perplexity",
    )


def _translation(doc, ability, rng):
    words = np.random.default_rng(doc).choice(WORDS, size=9)
    kept = rng.random(9) < 1 / (1 + np.exp(-ability - 1))
    said = np.where(kept, words, rng.choice(WORDS, size=9))
    return " ".join(words), " ".join(said)


def study_of(**changes):
    """Return a study on the pocket experts with `changes`; its tasks are in no folder."""
    study = Study.model_validate(
        {
            "name": "made_up",
            "question": "Does it matter? <b> & 100 % of $x_1$",
            "source": "arXiv 2410.01335, section 4.2",
            "recipe": {"merge_method": "layer_swap", "models": [{"model": "task"}]},
            "experts": {"task": ["math"], "language": ["swahili"]},
            "evaluate": {"tasks": ["pocket_math_sw", "pocket_math_en"]},
            **changes,
        }
    )
    evaluate = study.evaluate.model_copy(update={"include_path": "nowhere"})
    return study.model_copy(update={"evaluate": evaluate})


NINE_PAIRS = {
    "task": ["math_1", "math_2", "math_3"],
    "language": {"sw": ["swh_1", "swh_2", "swh_3"], "te": ["tel_1", "tel_2", "tel_3"]},
}
