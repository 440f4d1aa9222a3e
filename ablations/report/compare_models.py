"""Evaluated models of any folders against each other, on the same items.

A model is one of a run of ours, or of an output of lm-eval itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pandas as pd

from ablations.report.analysis import analyse
from ablations.report.compared_settings import (
    ComparedModel,
    content_notes,
    notes_on_pairs,
    setting_notes,
)
from ablations.report.comparisons import partial_comparisons
from ablations.report.contrasts import Contrast
from ablations.report.model_comparison import ModelComparison
from ablations.runs.changed_tasks import changed_tasks
from ablations.runs.evaluated_models import places_of_models
from ablations.runs.evaluation_problems import evaluation_problems
from ablations.runs.lm_eval_output import LEVEL, is_lm_eval_output, read_lm_eval_output
from ablations.runs.named_models import model_of_run, run_and_model
from ablations.runs.observations import CELL, SCORE, without_unbounded
from ablations.runs.records import is_round
from ablations.runs.results import Results
from ablations.runs.score_table import check_names, row_of_each_task
from ablations.scoring.observed import LANGUAGE_FIDELITY, OBSERVED
from ablations.statistics.corpus import CORPUS_METRICS
from ablations.study.schema import PrimaryBlock, ReportBlock, Study
from layerswap_method.errors import InputError, nearest
from layerswap_method.recipe.references import model_names

_IN_LANGUAGE = "_right_language"
"""Ends the name of a task whose shown metric is that of its answers' language."""

_CHOSEN = (
    "scores of a round of a search, which chose settings by them: they are too high for what was "
    "chosen. The folder of the search has the scores on other items: name that one."
)


def compare_models(
    names: Sequence[str],
    tasks: Sequence[str] = (),
    metric: str = "",
) -> ModelComparison:
    """Return the scores and all comparisons of `names`, pair by pair and task by task.

    Items are paired by the hash of their document.

    Args:
        names: folders that `layerswap evaluate` wrote, ``RUN:MODEL``, outputs of lm-eval, or models
            that were evaluated here, which are found by their weights; at least two.
        tasks: those to compare, which all must have; none compares the tasks that all have.
        metric: of the tasks, which must have it; empty takes the first that all have.

    Raises:
        InputError: for fewer than two models, a model that is missing or named twice, tasks
            that one of them lacks or has in another version, and no item in common; of our own
            runs also for other prompts, another engine, dtype or context.
    """
    if len(names) < 2:
        raise InputError("compare takes two or more models; give another folder or RUN:MODEL")
    words = places_of_models(names)
    runs = {word: _of_run(word) for word in words if not _is_output(word)}
    # Runs have one level (`setting_notes`), at which the outputs of lm-eval get their intervals.
    level = next((side.results.study.evaluate.level for side in runs.values()), LEVEL)
    sides = [runs.get(word) or _of_output(word, tasks, level) for word in words]
    named = zip(names, sides, strict=True)
    for (first_name, first), (second_name, second) in itertools.combinations(named, 2):
        if first.identity == second.identity:
            if second_name == first_name:
                raise InputError(f"{first_name} is named twice")
            place = "" if second.word == second_name else f": both are {second.word}"
            raise InputError(f"{second_name} is the same as {first_name}{place}")
    labels = _short_names(sides)
    sides = [_renamed(side, label) for side, label in zip(sides, labels, strict=True)]
    data = pd.concat([side.results.observations for side in sides], ignore_index=True)
    scores = pd.concat([side.results.scores for side in sides], ignore_index=True)
    unbounded = scores[scores["is_share"].eq(False)]
    data = without_unbounded(data, {*zip(*(unbounded[name] for name in SCORE), strict=True)})
    if metric:
        check_names([metric], sorted({*scores["metric"].dropna()}), "--metric:")
        scores = scores[scores["metric"].eq(metric) | scores["state"].ne("done")]
    compared_tasks, warnings = _shared_tasks(scores, tasks)
    data, scores, others = _shared_scores(data, scores, compared_tasks)
    warnings += others
    for note in dict.fromkeys(note for side in sides for note in side.notes):
        labels_of_note = ", ".join(side.label for side in sides if note in side.notes)
        warnings.append(f"{labels_of_note}: {note}")
    pairs = [*itertools.combinations(sides, 2)]
    warnings += notes_on_pairs((pair, setting_notes(*pair, compared_tasks)) for pair in pairs)
    data = _paired(data)
    lacking, others = _tasks_without_pairs(data, scores, labels, tasks)
    data, scores = (frame[~frame["task"].isin(lacking)].copy() for frame in (data, scores))
    warnings += others
    warnings += notes_on_pairs((pair, content_notes(*pair, data)) for pair in pairs)
    for frame in (data, scores):
        is_language = frame["metric"] == LANGUAGE_FIDELITY
        frame.loc[is_language, "task"] += _IN_LANGUAGE
        frame["language"] = ""
    silent = _silent_tasks(data, labels)
    data, scores = (frame[~frame["task"].isin(silent)].copy() for frame in (data, scores))
    scores.loc[scores["metric"] == LANGUAGE_FIDELITY, "higher_is_better"] = True
    study = _study(sides, list(dict.fromkeys(scores["task"])))
    contrasts = [
        Contrast(first, second, (first,), (second,), "compare")
        for first, second in itertools.combinations(labels, 2)
    ]
    languages = {t: code for side in sides for t, code in side.results.task_languages.items()}
    languages |= {f"{task}{_IN_LANGUAGE}": code for task, code in languages.items()}
    models = tuple(model for side in sides for model in side.results.models)
    results = Results(study, models, data, scores, languages)
    analysis = analyse(results, contrasts=contrasts)
    warnings += partial_comparisons(analysis.comparisons, analysis.shown)
    for side in sides:
        if side.run is not None:
            problems = (
                *changed_tasks(side.run, compared_tasks),
                *evaluation_problems(side.run, compared_tasks),
            )
            warnings += [f"{side.label}: {text}" for text in problems]
    places = tuple(side.word for side in sides)
    return ModelComparison(tuple(labels), places, tuple(dict.fromkeys(warnings)), analysis)


def _is_output(name: str) -> bool:
    folder, label = run_and_model(name)
    return label is None and is_lm_eval_output(folder)


def _of_run(name: str) -> ComparedModel:
    """Return a model of a run of ours."""
    run, model = model_of_run(name)
    identity = (run.path.resolve(), frozenset(model.cells))
    notes = (_CHOSEN,) if is_round(run.path) else ()
    return ComparedModel(name, model.label, run.results, identity, run, notes=notes)


def _of_output(name: str, tasks: Sequence[str], level: float) -> ComparedModel:
    """Return the model of an output of lm-eval."""
    folder, _ = run_and_model(name)
    output = read_lm_eval_output(folder, tasks, level)
    (model,) = output.results.models
    return ComparedModel(
        word=name,
        label=model.label,
        results=output.results,
        identity=output.results.observations["weights"].iloc[0],
        versions=output.versions,
        settings=output.settings,
        notes=output.notes,
    )


def _short_names(sides: Sequence[ComparedModel]) -> list[str]:
    """Return the models' names; where two have one name, the shortest ends of what was written."""
    labels = [side.label for side in sides]
    paths = [label for label in labels if "/" in label]
    if len({*labels}) < len(labels):
        labels = [side.word for side in sides]
        paths = [word for word in labels if "+" not in word]  # which is in the names of cells
    names = model_names(paths, {*labels} - {*paths})
    return [names.get(label, label) for label in labels]


def _renamed(side: ComparedModel, label: str) -> ComparedModel:
    """Return an evaluated model under another name."""
    results = side.results
    (model,) = results.models
    return side._replace(
        label=label,
        results=results._replace(
            models=(model.model_copy(update={"label": label}),),
            observations=results.observations.assign(model=label),
            scores=results.scores.assign(model=label),
        ),
    )


def _study(sides: Sequence[ComparedModel], tasks: Sequence[str]) -> Study:
    """Return the study of a comparison: level, margin and primary tasks.

    Whether answers are in their language is not what was planned, unless --metric says so. The
    margin is the strictest, so the order of the models decides nothing.
    """
    studies = [side.results.study for side in sides]
    main = [task for task in tasks if not task.endswith(_IN_LANGUAGE)]
    primary = PrimaryBlock(tasks=tuple(main or tasks))
    report = ReportBlock(primary=primary, margin=min(study.report.margin for study in studies))
    return studies[0].model_copy(update={"report": report})


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


def _shared_tasks(scores: pd.DataFrame, named: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the tasks to compare, of which every model has a score, and notes on others.

    Those `named`, or else those that every model has.
    """
    evaluated = list(dict.fromkeys(scores["task"]))
    for task in named:
        if task not in evaluated:
            raise InputError(f"no model has the task {task!r}{nearest(task, evaluated)}")
    tasks = list(named or evaluated)
    done = scores[scores["state"] == "done"]
    tasks_by_model = {
        model: {*done[done["model"] == model]["task"]} for model in dict.fromkeys(scores["model"])
    }
    shared = [task for task in tasks if all(task in has for has in tasks_by_model.values())]
    notes = list[str]()
    for model, has in tasks_by_model.items():
        lacking = [task for task in tasks if task not in has]
        if lacking:
            missing = ", ".join(lacking)
            if named or not shared:
                advice = "; the models have no task in common"
                if shared:
                    advice = f", or compare what all have: --tasks {','.join(shared)}"
                raise InputError(
                    f"{model} has no result for {missing}; evaluate it on that{advice}"
                )
            verb = "is" if len(lacking) == 1 else "are"
            notes.append(f"{model} has no result for {missing}, which {verb} left out.")
    return shared, notes


def _shared_scores(
    data: pd.DataFrame, scores: pd.DataFrame, tasks: Sequence[str]
) -> tuple[pd.DataFrame, pd.DataFrame, list[str]]:
    """Return observations and scores by the first metric and filter of each task that all have.

    That of the language of answers stays as well, where all have it. Returns notes, too.
    """
    done = scores[scores["state"] == "done"]
    notes, kept = list[str](), list[tuple[str, str, str]]()
    for task in tasks:
        by_model = {
            model: list(dict.fromkeys(zip(part["metric"], part["filter"], strict=True)))
            for model, part in done[done["task"] == task].groupby("model", sort=False)
        }
        first, *others = by_model.values()
        shared = [one for one in first if all(one in other for other in others)]
        # Where models have their metrics in another order, that of the models decides nothing.
        shared.sort(key=lambda one: (sum(of.index(one) for of in by_model.values()), one))
        plain = [one for one in shared if one[0] not in OBSERVED]
        of_language = [one for one in shared if one[0] == LANGUAGE_FIDELITY]
        if not plain and not of_language:
            metrics = ", ".join(
                dict.fromkeys(
                    f"{name} ({of})" for name, of in (one[0] for one in by_model.values())
                )
            )
            raise InputError(
                f"{task} has different metrics: {metrics}; evaluate it again, or compare other "
                "tasks (--tasks)"
            )
        if plain and any(one[0] != plain[0] for one in by_model.values()):
            notes.append(
                f"{task} is compared by {plain[0][0]} ({plain[0][1]}), the first score that all "
                "models have."
            )
        kept += [(task, *one) for one in (*plain[:1], *of_language[:1])]
    index = pd.MultiIndex.from_tuples(kept)
    frames = [
        frame[pd.MultiIndex.from_frame(frame[[*SCORE]]).isin(index)].copy()
        for frame in (data, scores)
    ]
    # A cell without a result stays a row, for "17 of 18 cells".
    unfinished = scores[scores["task"].isin(tasks) & scores["state"].ne("done")]
    return frames[0], pd.concat([frames[1], unfinished], ignore_index=True), notes


def _paired(data: pd.DataFrame) -> pd.DataFrame:
    """Return observations with one number for each document of a task, whatever its place there.

    Documents that a task has several times are paired in their order. ``doc_id`` is the number that
    the item had, ``prompt`` the hash of its prompt.
    """
    hashes = data["content"].str.extract("(?P<document>[^/]*)/(?P<prompt>.*)")
    data = data.assign(doc_id=data["item"]).join(hashes)
    data = data.sort_values("item", kind="stable")
    cell = [*CELL, "language", "weights", *SCORE, "document"]
    data["copy"] = data.groupby(cell, sort=False).cumcount()
    data["item"] = data.groupby(["task", "document", "copy"], sort=False).ngroup()
    return data.drop(columns=["document", "copy"])


def _tasks_without_pairs(
    data: pd.DataFrame, scores: pd.DataFrame, models: Sequence[str], named: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return the tasks in which two models have no item in common, and notes on them.

    Raises:
        InputError: for such a task that is `named`, or where no other is left; for items of a
            metric of a whole corpus that are not the same.
    """
    notes: dict[str, str] = {}
    advice: dict[str, str] = {}
    done = scores[scores["state"].eq("done") & scores["metric"].ne(LANGUAGE_FIDELITY)]
    metrics = row_of_each_task(done).set_index("task")["metric"]
    for task, metric in metrics.items():
        rows = data[data["task"].eq(task) & data["metric"].eq(metric)]
        items = {model: {*rows[rows["model"] == model]["item"]} for model in models}
        if rows.empty:
            notes[str(task)] = f"{task} has no scores of single items from 0 to 1 by {metric}"
            advice[str(task)] = "choose another --metric"
        for first, second in itertools.combinations(models, 2):
            if not rows.empty and items[first].isdisjoint(items[second]):
                notes[str(task)] = f"{first} and {second} have no item of {task} in common"
                advice[str(task)] = "evaluate both on the same data, with items that both have"
            elif metric in CORPUS_METRICS and items[first] != items[second]:
                raise InputError(
                    f"{first} and {second} have different items of {task}: {metric} is of a whole "
                    "corpus; evaluate both with the same --limit, or compare other tasks (--tasks)"
                )
    for task, note in notes.items():
        if task in named or len(notes) == len(metrics):
            raise InputError(f"{note}; {advice[task]}")
    return [*notes], [f"{note}, so it is left out." for note in notes.values()]
