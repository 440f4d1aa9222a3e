"""`layerswap compare`: evaluated models of any folders against each other, on the same items."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from ablations.report.compare import NO_RESULT, comparisons
from ablations.report.observations import check_same_content, read_observations, read_scores
from ablations.report.tables import comparisons_table, frame_text, score_frame, scores_table
from ablations.runner.problems import evaluation_problems
from ablations.runner.records import CellRecord, Run, load_run
from ablations.runner.results import latest_records
from ablations.scoring.observed import LANGUAGE_FIDELITY
from ablations.scoring.protocol import protocol_of
from ablations.study.contrasts import Contrast
from ablations.study.labels import Model, cell_names, models_of
from ablations.study.schema import PrimaryBlock, ReportBlock
from layerswap_method.errors import InputError, nearest
from layerswap_method.recipe.references import is_folder

_SHOWN_CELLS = 12


class Evaluated(NamedTuple):
    """A model as the command line names it, with the cells and records that it has."""

    name: str
    model: Model
    run: Run
    data: pd.DataFrame
    scores: pd.DataFrame


def compare_models(names: Sequence[str], tasks: Sequence[str] = ()) -> str:
    """Return tables of scores and of all comparisons of `names`, pair by pair and task by task.

    Args:
        names: folders that `layerswap evaluate` wrote, or ``RUN:MODEL``; at least two.
        tasks: what to compare; none compares every task, which all must then have.

    Raises:
        InputError: for fewer than two models, a model that is not there or is named twice, tasks
            that one of them lacks, other items or prompts, or another engine, dtype or context.
    """
    if len(names) < 2:
        raise InputError("compare takes two or more models; give another folder or RUN:MODEL")
    models = [_find(name) for name in names]
    for one, other in itertools.combinations(models, 2):
        same = one.run.path.resolve() == other.run.path.resolve()
        if same and set(one.scores["cell"]) == set(other.scores["cell"]):
            raise InputError(f"{other.name} is the same as {one.name}")
    chosen = _shared_tasks(models, tasks)
    _check_protocol(models, chosen)
    known = [model.model for model in models]
    data, scores = (
        pd.concat([getattr(model, name) for model in models], ignore_index=True)
        for name in ("data", "scores")
    )
    data, scores = (frame[frame["task"].isin(chosen)].copy() for frame in (data, scores))
    check_same_content(data)
    study = models[0].run.study
    for frame in (data, scores):
        is_language = frame["metric"] == LANGUAGE_FIDELITY
        frame.loc[is_language, "task"] += "_right_language"
        frame["language"] = ""
    scores.loc[scores["metric"] == LANGUAGE_FIDELITY, "higher_is_better"] = True
    tasks = tuple(dict.fromkeys(scores["task"]))
    report = ReportBlock(primary=PrimaryBlock(tasks=tasks), margin=study.report.margin)
    study = study.model_copy(update={"report": report})
    contrasts = [
        Contrast(one.label, other.label, (one.label,), (other.label,), "compare")
        for one, other in itertools.combinations(known, 2)
    ]
    frame = comparisons(data, scores, study, known, contrasts)
    nothing = frame[(frame["verdict"] == NO_RESULT) & frame["task"].isin(data["task"])]
    for row in nothing.to_dict("records"):
        raise InputError(
            f"{row['first']} and {row['second']} have no item of {row['task']} in common"
        )
    problems = [
        f"Warning: {model.name}: {text}"
        for model in models
        for text in evaluation_problems(model.run)
        if text.partition(":")[0] in chosen
    ]
    compared = comparisons_table(frame, study.evaluate.level)
    compared["difference"] += " " + compared.pop("interval")
    compared["verdict"] = frame["verdict"]
    shown = compared.drop(columns=["family", "over"])
    scored = scores_table(score_frame(data, scores, study, known), study)
    return "\n\n".join([*problems, frame_text(scored), frame_text(shown, labels=2)])


def _find(name: str) -> Evaluated:
    folder, wanted = _place(name)
    run = load_run(folder)
    planned = run.head.cells
    named = cell_names(run.head)
    choices: dict[str, tuple[str, ...]] = {cell.label: (cell.label,) for cell in planned}
    choices |= {shown: (label,) for label, shown in named.items()}
    choices |= {m.label: m.cells for m in models_of(run.head)}
    if wanted is None:
        if len(planned) > 1:
            names = list(dict.fromkeys(named.values()))
            shown = "".join(f"\n  {folder}:{each}" for each in names[:_SHOWN_CELLS])
            more = len(names) - _SHOWN_CELLS
            raise InputError(
                f"{folder} has {len(planned)} cells; name one of them:{shown}"
                + (f"\n  and {more} more" if more > 0 else "")
            )
        wanted = planned[0].label
    if wanted not in choices:
        raise InputError(f"{folder} has no cell or model {wanted!r}{nearest(wanted, choices)}")
    records = latest_records(run)
    cells = tuple(
        CellRecord(
            **{**cell.model_dump(), "records": {task: r.key for task, r in own.items()}},
            tasks=tuple(own.values()),
        )
        for cell in planned
        if cell.label in choices[wanted] and (own := records[cell.label])
    )
    if not cells:
        raise InputError(f"{name}: nothing is evaluated yet; run its command again first")
    head = run.head.model_copy(update={"cells": cells})
    run = run.model_copy(update={"head": head, "cells": cells})
    first = cells[0]
    pools = {role: (expert,) for role, expert in first.experts.items()}
    model = Model(name, first.kind, {}, pools, tuple(cell.label for cell in cells))
    return Evaluated(name, model, run, read_observations(run, [model]), read_scores(run, [model]))


def _place(name: str) -> tuple[Path, str | None]:
    """Return folder and model; a folder may have colons in its name."""
    if is_folder(name):
        return Path(name), None
    cuts = [at for at, sign in enumerate(name) if sign == ":"]
    for cut in cuts:
        if is_folder(name[:cut]):
            return Path(name[:cut]), name[cut + 1 :]
    return Path(name[: cuts[0]] if cuts else name), name[cuts[0] + 1 :] if cuts else None


def _shared_tasks(models: Sequence[Evaluated], wanted: Sequence[str]) -> list[str]:
    """Return the tasks to compare, which every model has by the same metric."""
    own = {model.name: list(dict.fromkeys(model.scores["task"])) for model in models}
    known = dict.fromkeys(task for tasks in own.values() for task in tasks)
    for task in wanted:
        if task not in known:
            raise InputError(f"no model has the task {task!r}{nearest(task, known)}")
    chosen = list(wanted or known)
    shared = [task for task in chosen if all(task in tasks for tasks in own.values())]
    for name, tasks in own.items():
        lacking = [task for task in chosen if task not in tasks]
        if lacking:
            advice = "; the models have no task in common"
            if shared:
                advice = f", or compare what all have: --tasks {','.join(shared)}"
            raise InputError(f"{name} has no result for {', '.join(lacking)}{advice}")
    for task in chosen:
        firsts = [model.scores[model.scores["task"] == task].iloc[0] for model in models]
        kinds = dict.fromkeys(f"{first['metric']} ({first['filter']})" for first in firsts)
        if len(kinds) > 1:
            raise InputError(f"{task} has different metrics: {', '.join(kinds)}; evaluate it again")
    return chosen


def _check_protocol(models: Sequence[Evaluated], tasks: Sequence[str]) -> None:
    first = models[0]
    for model in models[1:]:
        ours, theirs = _protocol(first, tasks), _protocol(model, tasks)
        for name, value in ours.items():
            if theirs[name] != value:
                raise InputError(
                    f"{first.name} and {model.name} were evaluated in different ways: {name} is "
                    f"{value} and {theirs[name]}; evaluate both with the same settings"
                )


def _protocol(model: Evaluated, tasks: Sequence[str]) -> dict[str, str]:
    """Return what must be the same, by the words that name it."""
    evaluate = model.run.study.evaluate
    records = {r.task: r.evaluation for cell in model.run.cells for r in cell.tasks}
    found = {
        "the backend": ", ".join(dict.fromkeys(records[task].backend for task in tasks)),
        "--dtype": evaluate.options.dtype,
        "--max-model-len": str(evaluate.options.max_model_len or "the model's"),
        "the way of asking": str(protocol_of(evaluate).asked() or "the tasks' own"),
    }
    for task in tasks:
        found[f"the version of {task}"] = records[task].task_versions.get(task, "") or "none"
        found[f"the number of examples of {task}"] = str(records[task].num_fewshot.get(task, 0))
    return found
