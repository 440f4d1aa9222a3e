"""Runs as `layerswap run` writes them, of models whose abilities are known because we chose them.

A model answers an item right if ability + item's ease + its own luck > 0; the items are the same
for all, so scores of different models are paired as real ones are.
"""

import re
import zlib
from pathlib import Path

import numpy as np

from ablations.models.find import Expert
from ablations.runs.records import (
    Failure,
    RunFile,
    TaskRecord,
    write_failure,
    write_record,
    write_run_file,
)
from ablations.runs.run import load_run
from ablations.scoring.evaluation import Evaluation, Sample
from ablations.scoring.scores import scores_of_samples
from ablations.statistics.corpus import corpus_metric
from ablations.study.checks import expert_names
from ablations.study.expansion import _make, expand
from ablations.study.schema import Study
from tests.standins.studies import study_document

NUM_LAYERS = 8
BASELINES = ["base", "task_expert", "language_expert", "soup"]
TASKS = {"tasks": ["pocket_math_sw", "translate_sw"]}
WORDS = ("mtu", "watu", "kitu", "vitu", "mti", "miti", "jina", "mahali", "siku", "nyumba")


def level(cell, task):
    return {"base": -1.5, "task_expert": -0.6, "language_expert": -1.2}.get(cell.kind, 0.2)


def _keys(study, cell, seed):
    asked = study.evaluate.languages
    codes = asked if cell.language is None else [cell.language]
    tasks = [*study.evaluate.tasks, *(task for code in codes for task in asked.get(code, ()))]
    key = f"{zlib.crc32(seed.encode()):08x}"
    return {"weights_key": f"w{key}", "record_keys": {task: f"s{key}-{task}" for task in tasks}}


def write_run(folder, study, ability, *, items=250, failed=None, unrun=(), observed=None):
    """Write a run of `study` and return it as read. `failed`: label -> reason.

    `ability` of a cell on a task is about the score's logit. `observed`: more values of each item.
    """
    experts = {name: Expert(name, Path("/experts", name)) for name in expert_names(study)}
    cells, problems = expand(study, experts, NUM_LAYERS)
    assert problems == []
    # A cell's luck is that of its values as the study has them, whatever it is called.
    seeds = {
        cell.label: written.label
        for cell, written in zip(cells, _make(study, experts, NUM_LAYERS)[0], strict=True)
    }
    cells = [cell.with_keys(**_keys(study, cell, seeds[cell.label])) for cell in cells]
    versions = {"layerswap": "0.1.0", "lm_eval": "0.4.13"}
    shared = {"protocol": "", "created": "2026-11-01T12:00:00+00:00", "versions": versions}
    head = RunFile.of_cells(study, cells, NUM_LAYERS, experts={}, **shared)
    write_run_file(folder, head)
    for cell in cells:
        reason = (failed or {}).get(cell.label)
        if reason is not None:
            task, key = next(iter(cell.record_keys.items()))
            write_failure(folder, Failure(key=key, task=task, label=cell.label, error=reason))
        elif cell.label not in unrun:
            for task, key in cell.record_keys.items():
                logit, seed = ability(cell, task), f"{task}/{seeds[cell.label]}"
                samples, scores = _answer(seed, task, logit, items, observed)
                facts = {"task_versions": {task: "1.0"}, "num_fewshot": {task: 0}, "elapsed_s": 2.0}
                answered = {"scores": scores, "samples": samples, "versions": versions}
                evaluation = Evaluation(model=cell.label, backend="hf", **answered, **facts)
                place = {"key": key, "weights_key": cell.weights_key, "protocol": "", "task": task}
                more = {"label": cell.label, "timing_s": {"total": 2.1}, "provenance": {}}
                write_record(folder, TaskRecord(evaluation=evaluation, **place, **more))
    return load_run(folder)


def edit_record(file, change):
    """Write what `change` makes of the text of a record, as a run from before checksums has it."""
    text = file.read_text(encoding="utf-8")
    text = re.sub(',"(items_sha256|checksum)":"[0-9a-f]+"', "", text)
    file.write_text(change(text), encoding="utf-8")


def same_model(run, one, other):
    """Return `run` with the records of the cell `one` for both, as for equal weights."""
    cells = {cell.label: cell for cell in run.head.cells}
    keys = {"weights_key": cells[one].weights_key, "record_keys": cells[one].record_keys}
    cells[other] = cells[other].model_copy(update=keys)
    derived = ("study", "cells", "num_layers", "models")
    facts = {name: value for name, value in run.head if name not in derived}
    head = RunFile.of_cells(run.study, [*cells.values()], run.head.num_layers, **facts)
    write_run_file(run.path, head)
    return load_run(run.path)


def _answer(seed, task, ability, items, observed):
    ease = np.random.default_rng(zlib.crc32(task.encode())).normal(0, 1.5, items)
    rng = np.random.default_rng(zlib.crc32(seed.encode()))
    right = ability + ease + rng.normal(0, 0.7, items) > 0
    metric, values = "exact_match", right.astype(float).tolist()
    if "errors" in task:  # counts, which are no share as soon as one is above 1
        metric, values = "errors", [(2 if ability > 0 else 1) * value for value in values]
    reported = float(np.mean(values))
    if "perplexity" in task:
        metric, reported = "word_perplexity", 3.0
    elif "translate" in task:
        metric, values = "bleu", [_translation(doc, ability, rng) for doc in range(items)]
        bleu = corpus_metric(metric)
        texts = [[pair[at] for pair in values] for at in (1, 0)]
        reported = 100 * float(bleu.score(bleu.counts(*texts).sum(axis=0)))
    texts = {"target": "7", "responses": ("7 \u2028 .",), "answers": ("7",)}
    samples = tuple(
        Sample(
            **{"task": task, "filter": "strict-match", "doc_id": doc, **texts},
            prompts=(f"{task} <{doc}> & more",),
            values={metric: value, **(observed or {})},
            **{f"{name}_hash": f"{name[0]}{doc}" for name in ("doc", "prompt", "target")},
        )
        for doc, value in enumerate(values)
    )
    raw = {
        "samples": [task],
        "results": {task: {f"{metric},strict-match": reported}},
        "higher_is_better": {task: {metric: "perplexity" not in task}},
    }
    return samples, scores_of_samples(raw, samples, seed=0, level=0.95)


def _translation(doc, ability, rng):
    words = np.random.default_rng(doc).choice(WORDS, size=9)
    kept = rng.random(9) < 1 / (1 + np.exp(-ability - 1))
    said = np.where(kept, words, rng.choice(WORDS, size=9))
    return " ".join(words), " ".join(said)


def study_of(**changes):
    """Return a study on the pocket experts with `changes`; its tasks are in no folder."""
    document = {
        "name": "made_up",
        "question": "Does it matter? <b> & 100 % of $x_1$",
        "source": "arXiv 2410.01335, section 4.2",
        "evaluate": {"tasks": ["pocket_math_sw", "pocket_math_en"]},
        "baseline": [],
        "vary": {},
        **changes,
    }
    study = Study.model_validate(study_document(**document))
    evaluate = study.evaluate.model_copy(update={"include_path": (Path("nowhere"),)})
    return study.model_copy(update={"evaluate": evaluate})


def write_single(folder, kind, *, items=80, tasks=None):
    """Write a run of one cell, as `layerswap evaluate` does."""
    evaluate = {"tasks": tasks or TASKS["tasks"]}
    study = study_of(baseline=[kind], recipe=None, evaluate=evaluate)
    return write_run(folder, study, level, items=items).path


def widest(lines):
    """Return the length of the longest line but those of one path, which is not broken."""
    return max(len(line) for line in lines if " " in line.strip())
