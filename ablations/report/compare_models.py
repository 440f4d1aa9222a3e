"""`layerswap compare`: evaluated models of any folders against each other, on the same items."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pandas as pd

from ablations.report.comparisons import NO_RESULT, comparisons
from ablations.report.contrasts import Contrast
from ablations.report.tables import (
    UNCORRECTED,
    comparisons_table,
    frame_text,
    score_frame,
    scores_table,
)
from ablations.runs.evaluation_problems import evaluation_problems
from ablations.runs.models import StudyModel
from ablations.runs.observations import check_same_content, read_observations
from ablations.runs.records import Run, load_run
from ablations.runs.results import Results
from ablations.runs.score_table import check_names, table_of_scores
from ablations.scoring.observed import LANGUAGE_FIDELITY
from ablations.statistics.corpus import CORPUS_METRICS
from ablations.study.schema import PrimaryBlock, ReportBlock
from layerswap_method.errors import InputError, nearest
from layerswap_method.recipe.references import is_folder

_SHOWN_CELLS = 12


def compare_models(
    names: Sequence[str],
    tasks: Sequence[str] = (),
    metric: str = "",
    *,
    warnings_of: Callable[[Run], Iterable[str]] = lambda _: (),
) -> str:
    """Return tables of scores and of all comparisons of `names`, pair by pair and task by task.

    Args:
        names: folders that `layerswap evaluate` wrote, or ``RUN:MODEL``; at least two.
        tasks: what to compare; none compares every task, which all must then have.
        metric: what to compare of the tasks, which must have it; empty takes the first of each.
        warnings_of: what a reader must know of a run besides, such as `changed_tasks`.

    Raises:
        InputError: for fewer than two models, a model that is missing or named twice, tasks
            that one of them lacks, other items or prompts, or another engine, dtype or context.
    """
    if len(names) < 2:
        raise InputError("compare takes two or more models; give another folder or RUN:MODEL")
    pairs = [_find(name) for name in names]
    runs, models = [run for run, _ in pairs], [model for _, model in pairs]
    for (one, first), (other, second) in itertools.combinations(pairs, 2):
        if one.path.resolve() == other.path.resolve() and set(first.cells) == set(second.cells):
            raise InputError(f"{second.label} is the same as {first.label}")
    data = pd.concat(map(read_observations, runs), ignore_index=True)
    scores = pd.concat(map(table_of_scores, runs), ignore_index=True)
    if metric:
        check_names([metric], sorted({*scores["metric"].dropna()}), "--metric:")
        scores = scores[scores["metric"].eq(metric) | scores["state"].ne("done")]
    chosen = _shared_tasks(scores, tasks)
    for run, name in zip(runs[1:], names[1:], strict=True):
        _check_protocol((runs[0], names[0]), (run, name), chosen)
    data, scores = (frame[frame["task"].isin(chosen)].copy() for frame in (data, scores))
    check_same_content(data)
    study = runs[0].study
    for frame in (data, scores):
        is_language = frame["metric"] == LANGUAGE_FIDELITY
        frame.loc[is_language, "task"] += "_right_language"
        frame["language"] = ""
    scores.loc[scores["metric"] == LANGUAGE_FIDELITY, "higher_is_better"] = True
    tasks = tuple(dict.fromkeys(scores["task"]))
    report = ReportBlock(primary=PrimaryBlock(tasks=tasks), margin=study.report.margin)
    study = study.model_copy(update={"report": report})
    contrasts = [
        Contrast(one, other, (one,), (other,), "compare")
        for one, other in itertools.combinations(names, 2)
    ]
    results = Results(study, tuple(models), data, scores)
    frame = comparisons(results, contrasts)
    for row in frame[frame["task"].isin(data["task"])].to_dict("records"):
        both = f"{row['first']} and {row['second']} have"
        if row["verdict"] == NO_RESULT:
            raise InputError(f"{both} no item of {row['task']} in common (--metric has others)")
        own = data[data["model"].isin([row["first"], row["second"]]) & data["task"].eq(row["task"])]
        if row["metric"] in CORPUS_METRICS and own["item"].nunique() > row["items"]:
            raise InputError(
                f"{both} different items of {row['task']}: {row['metric']} is of a whole corpus; "
                "evaluate both with the same --limit"
            )
    problems = [
        f"Warning: {name}: {text}"
        for run, name in zip(runs, names, strict=True)
        for text in (*warnings_of(run), *evaluation_problems(run))
        if text.partition(":")[0] in chosen
    ]
    compared = comparisons_table(frame, study.evaluate.level)
    compared["difference"] += " " + compared.pop(UNCORRECTED)
    compared = compared.rename(columns={"difference": f"difference, {UNCORRECTED}"})
    compared["verdict"] = frame["verdict"]
    shown = compared.drop(columns=["family", "over"])
    scored = scores_table(score_frame(results), study)
    return "\n\n".join([*problems, frame_text(scored), frame_text(shown, labels=2)])


def _find(name: str) -> tuple[Run, StudyModel]:
    """Return the run of a folder or ``RUN:MODEL`` with its latest records, and the model in it."""
    folder, wanted = _place(name)
    run = load_run(folder)
    named = run.names
    choices: dict[str, tuple[str, ...]] = {cell.label: (cell.label,) for cell in run.head.cells}
    choices |= {shown: (label,) for label, shown in named.items()}
    choices |= {model.label: model.cells for model in run.models}
    if wanted is None and len(run.head.cells) > 1:
        names = list(dict.fromkeys(named.values()))
        shown = "".join(f"\n  {folder}:{name}" for name in names[:_SHOWN_CELLS])
        more = len(names) - _SHOWN_CELLS
        shown += f"\n  and {more} more" if more > 0 else ""
        raise InputError(f"{folder} has {len(run.head.cells)} cells; name one of them:{shown}")
    wanted = run.head.cells[0].label if wanted is None else wanted
    if wanted not in choices:
        raise InputError(f"{folder} has no cell or model {wanted!r}{nearest(wanted, choices)}")
    cells = tuple(cell for cell in run.cells if cell.label in choices[wanted])
    if not cells:
        raise InputError(f"{name}: nothing is evaluated yet; run its command again first")
    pools = {role: (expert,) for role, expert in cells[0].experts.items()}
    model = StudyModel(
        label=name, kind=cells[0].kind, setting={}, pools=pools, cells=choices[wanted]
    )
    planned = [cell for cell in run.head.cells if cell.label in choices[wanted]]
    head = run.head.model_copy(update={"cells": tuple(planned), "models": (model,)})
    return run.model_copy(update={"head": head, "cells": cells}), model


def _place(name: str) -> tuple[Path, str | None]:
    """Return folder and model; a folder may have colons in its name."""
    if is_folder(name):
        return Path(name), None
    cuts = [at for at, sign in enumerate(name) if sign == ":"]
    for cut in cuts:
        if is_folder(name[:cut]):
            return Path(name[:cut]), name[cut + 1 :]
    return Path(name[: cuts[0]] if cuts else name), name[cuts[0] + 1 :] if cuts else None


def _shared_tasks(scores: pd.DataFrame, wanted: Sequence[str]) -> list[str]:
    """Return the tasks to compare, which every model has by the same metric."""
    known = list(dict.fromkeys(scores["task"]))
    for task in wanted:
        if task not in known:
            raise InputError(f"no model has the task {task!r}{nearest(task, known)}")
    chosen = list(wanted or known)
    firsts = scores[scores["state"] == "done"].drop_duplicates(["model", "task"])
    kinds = firsts.assign(kind=firsts["metric"] + " (" + firsts["filter"] + ")")
    by_model = kinds.pivot(index="task", columns="model", values="kind")
    by_model = by_model.reindex(index=chosen, columns=firsts["model"].unique())
    shared = by_model.dropna().index.tolist()
    for name, own in by_model.items():
        if own.isna().any():
            advice = f", or compare what all have: --tasks {','.join(shared)}"
            advice = advice if shared else "; the models have no task in common"
            lacking = ", ".join(own.index[own.isna()])
            raise InputError(f"{name} has no result for {lacking}; evaluate it on that{advice}")
    for task, own in by_model.iterrows():
        if own.nunique() > 1:
            metrics = ", ".join(dict.fromkeys(own))
            raise InputError(f"{task} has different metrics: {metrics}; evaluate it again")
    return chosen


def _check_protocol(one: tuple[Run, str], other: tuple[Run, str], tasks: Sequence[str]) -> None:
    theirs = _protocol(other[0], tasks)
    for name, value in _protocol(one[0], tasks).items():
        if theirs[name] != value:
            raise InputError(
                f"{one[1]} and {other[1]} were evaluated in different ways: {name} is "
                f"{value} and {theirs[name]}; evaluate both with the same settings"
            )


def _protocol(run: Run, tasks: Sequence[str]) -> dict[str, str]:
    """Return what must be the same, by the words that name it."""
    evaluate = run.study.evaluate
    records = {r.task: r.evaluation for cell in run.cells for r in cell.tasks}
    facts = {
        "the backend": ", ".join(dict.fromkeys(records[task].backend for task in tasks)),
        "--dtype": evaluate.options.dtype,
        "the level of the intervals": f"{evaluate.level:g}",
        "--max-model-len": str(evaluate.options.max_model_len or "the model's"),
        "the protocol": str(evaluate.overrides() or "the tasks' own"),
    }
    for task in tasks:
        facts[f"the version of {task}"] = records[task].task_versions.get(task, "") or "none"
        facts[f"the number of examples of {task}"] = str(records[task].num_fewshot.get(task, 0))
    return facts
