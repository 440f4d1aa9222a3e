"""Evaluated models of any folders against each other, on the same items."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from ablations.report.analysis import Analysis, analyse
from ablations.report.comparisons import TaskComparison, partial_comparisons
from ablations.report.contrasts import Contrast
from ablations.report.tables import (
    UNCORRECTED,
    comparisons_table,
    frame_text,
    scores_table,
)
from ablations.runs.changed_tasks import changed_tasks
from ablations.runs.evaluation_problems import evaluation_problems
from ablations.runs.named_models import model_of_run
from ablations.runs.observations import check_same_content, read_observations
from ablations.runs.records import Run
from ablations.runs.results import Results
from ablations.runs.score_table import check_names, table_of_scores
from ablations.scoring.observed import LANGUAGE_FIDELITY
from ablations.statistics.corpus import CORPUS_METRICS
from ablations.study.schema import PrimaryBlock, ReportBlock
from layerswap_method.errors import InputError, nearest

_IN_LANGUAGE = "_right_language"
"""Ends the name of a task whose shown metric is that of its answers' language."""


@dataclass(frozen=True)
class ModelComparison:
    """Models against each other; as text it is the tables of scores and of all comparisons."""

    models: tuple[str, ...]
    """As the user named them."""

    warnings: tuple[str, ...]
    """Warnings that a reader must know before the scores, each with its model's name."""

    analysis: Analysis
    """Of the models together; its study has the tasks that p is corrected over."""

    @property
    def scores(self) -> pd.DataFrame:
        """A row for each model and task: its score with its interval."""
        return self.analysis.score_frame

    @property
    def comparisons(self) -> pd.DataFrame:
        """A row for each pair of models and each task: difference, interval, p, verdict."""
        return self.analysis.comparison_frame

    def __repr__(self) -> str:
        return str(self)  # so a notebook shows it

    def __str__(self) -> str:
        compared = comparisons_table(self.comparisons, self.analysis.study.evaluate.level)
        compared["difference"] += " " + compared.pop(UNCORRECTED)
        compared = compared.rename(columns={"difference": f"difference, {UNCORRECTED}"})
        compared["verdict"] = self.comparisons["verdict"]
        shown = compared.drop(columns=["family", "over"])
        problems = [f"Warning: {warning}" for warning in self.warnings]
        scored = scores_table(self.scores, self.analysis.study)
        return "\n\n".join([*problems, frame_text(scored), frame_text(shown, labels=2)])


def compare_models(
    names: Sequence[str],
    tasks: Sequence[str] = (),
    metric: str = "",
) -> ModelComparison:
    """Return the scores and all comparisons of `names`, pair by pair and task by task.

    Args:
        names: folders that `layerswap evaluate` wrote, or ``RUN:MODEL``; at least two.
        tasks: those to compare, which all must have; none compares the tasks that all have.
        metric: of the tasks, which must have it; empty takes the first of each.

    Raises:
        InputError: for fewer than two models, a model that is missing or named twice, tasks
            that one of them lacks, other items or prompts, or another engine, dtype or context.
    """
    if len(names) < 2:
        raise InputError("compare takes two or more models; give another folder or RUN:MODEL")
    pairs = [model_of_run(name) for name in names]
    runs, models = [run for run, _ in pairs], [model for _, model in pairs]
    for (first_run, first), (second_run, second) in itertools.combinations(pairs, 2):
        is_one_run = first_run.path.resolve() == second_run.path.resolve()
        if is_one_run and set(first.cells) == set(second.cells):
            raise InputError(f"{second.label} is the same as {first.label}")
    data = pd.concat(map(read_observations, runs), ignore_index=True)
    scores = pd.concat(map(table_of_scores, runs), ignore_index=True)
    if metric:
        check_names([metric], sorted({*scores["metric"].dropna()}), "--metric:")
        scores = scores[scores["metric"].eq(metric) | scores["state"].ne("done")]
    compared_tasks, others = _shared_tasks(scores, tasks)
    for run, name in zip(runs[1:], names[1:], strict=True):
        _check_protocol((runs[0], names[0]), (run, name), compared_tasks)
    data = data[data["task"].isin(compared_tasks)].copy()
    scores = scores[scores["task"].isin(compared_tasks)].copy()
    check_same_content(data)
    study = runs[0].study
    for frame in (data, scores):
        is_language = frame["metric"] == LANGUAGE_FIDELITY
        frame.loc[is_language, "task"] += _IN_LANGUAGE
        frame["language"] = ""
    silent = _silent_tasks(data, names)
    data, scores = (frame[~frame["task"].isin(silent)].copy() for frame in (data, scores))
    scores.loc[scores["metric"] == LANGUAGE_FIDELITY, "higher_is_better"] = True
    # Whether answers are in their language is not what was planned, unless --metric says so.
    every = list(dict.fromkeys(scores["task"]))
    main = [task for task in every if not task.endswith(_IN_LANGUAGE)]
    primary = PrimaryBlock(tasks=tuple(main or every))
    # The strictest margin, so the order of the models decides nothing.
    report = ReportBlock(primary=primary, margin=min(run.study.report.margin for run in runs))
    study = study.model_copy(update={"report": report})
    contrasts = [
        Contrast(first, second, (first,), (second,), "compare")
        for first, second in itertools.combinations(names, 2)
    ]
    languages = {t: code for run in runs for t, code in run.head.task_languages.items()}
    languages |= {f"{task}{_IN_LANGUAGE}": code for task, code in languages.items()}
    results = Results(study, tuple(models), data, scores, languages)
    analysis = analyse(results, contrasts=contrasts)
    evaluated = {*data["task"]}
    for row in analysis.comparisons:
        if row.task in evaluated:
            _check_items(row, data)
    warnings = [*others, *partial_comparisons(analysis.comparisons, analysis.shown)]
    for run, name in zip(runs, names, strict=True):
        problems = (
            *changed_tasks(run, compared_tasks),
            *evaluation_problems(run, compared_tasks),
        )
        warnings += [f"{name}: {text}" for text in problems]
    return ModelComparison(tuple(names), tuple(warnings), analysis)


def _silent_tasks(data: pd.DataFrame, models: Sequence[str]) -> list[str]:
    """Return the tasks of languages in which two models have no item with a verdict in common.

    Answers that are too short for one, such as numbers, say nothing about their language.
    """
    spoken = data[data["task"].str.endswith(_IN_LANGUAGE)]
    silent = list[str]()
    for task in spoken["task"].unique():
        rows = spoken[spoken["task"] == task]
        items = [{*rows[rows["model"] == model]["item"]} for model in models]
        if any(one.isdisjoint(other) for one, other in itertools.combinations(items, 2)):
            silent.append(task)
    return silent


def _check_items(row: TaskComparison, data: pd.DataFrame) -> None:
    """Check that both models of a comparison have items of its task, of a corpus the same ones."""
    models = [row.first, row.second]
    if row.items is None:
        raise InputError(
            f"{' and '.join(models)} have no item of {row.task} in common (--metric has others)"
        )
    items = data[data["model"].isin(models) & data["task"].eq(row.task)]["item"].nunique()
    if row.metric in CORPUS_METRICS and items > row.items:
        raise InputError(
            f"{' and '.join(models)} have different items of {row.task}: {row.metric} is of "
            "a whole corpus; evaluate both with the same --limit"
        )


def _shared_tasks(scores: pd.DataFrame, named: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the tasks to compare, which every model has by the same metric, and notes on others.

    Those `named`, or else those that every model has.
    """
    evaluated = list(dict.fromkeys(scores["task"]))
    for task in named:
        if task not in evaluated:
            raise InputError(f"no model has the task {task!r}{nearest(task, evaluated)}")
    tasks = list(named or evaluated)
    firsts = scores[scores["state"] == "done"].drop_duplicates(["model", "task"])
    firsts = firsts.assign(score=firsts["metric"] + " (" + firsts["filter"] + ")")
    by_model = firsts.pivot(index="task", columns="model", values="score")
    by_model = by_model.reindex(index=tasks, columns=firsts["model"].unique())
    shared, notes = by_model.dropna().index.tolist(), list[str]()
    for model, scores_by_task in by_model.items():
        if scores_by_task.isna().any():
            missing = ", ".join(scores_by_task.index[scores_by_task.isna()])
            if named or not shared:
                advice = "; the models have no task in common"
                if shared:
                    advice = f", or compare what all have: --tasks {','.join(shared)}"
                raise InputError(
                    f"{model} has no result for {missing}; evaluate it on that{advice}"
                )
            notes.append(f"{model} has no result for {missing}, which is left out.")
    for task, scores_by_model in by_model.loc[shared].iterrows():
        if scores_by_model.nunique() > 1:
            metrics = ", ".join(dict.fromkeys(scores_by_model))
            raise InputError(f"{task} has different metrics: {metrics}; evaluate it again")
    return shared, notes


def _check_protocol(first: tuple[Run, str], second: tuple[Run, str], tasks: Sequence[str]) -> None:
    first_run, first_name = first
    second_run, second_name = second
    second_protocol = _protocol(second_run, tasks)
    for name, value in _protocol(first_run, tasks).items():
        if second_protocol[name] != value:
            raise InputError(
                f"{first_name} and {second_name} were evaluated in different ways: {name} is "
                f"{value} and {second_protocol[name]}; evaluate both with the same settings"
            )


def _protocol(run: Run, tasks: Sequence[str]) -> dict[str, str]:
    """Return the settings that two models must share to be compared, by their names in words."""
    evaluate = run.study.evaluate
    evaluations = {record.task: record.evaluation for cell in run.cells for record in cell.tasks}
    settings = {
        "the backend": ", ".join(dict.fromkeys(evaluations[task].backend for task in tasks)),
        "--dtype": evaluate.options.dtype,
        "the level of the intervals": f"{evaluate.level:g}",
        "--max-model-len": str(evaluate.options.max_model_len or "the model's"),
        "the protocol": str(evaluate.overrides() or "the tasks' own"),
    }
    for task in tasks:
        evaluation = evaluations[task]
        settings[f"the version of {task}"] = evaluation.task_versions.get(task, "") or "none"
        settings[f"the number of examples of {task}"] = str(evaluation.num_fewshot.get(task, 0))
    return settings
