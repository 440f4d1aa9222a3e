"""Evaluated models of any folders against each other, on the same items.

A model is one of a run of ours, or of an output of lm-eval itself.
"""

from __future__ import annotations

import html
import itertools
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from ablations.drawing.text_table import text_table, wrapped
from ablations.report.analysis import Analysis, analyse
from ablations.report.comparisons import partial_comparisons, rows_of
from ablations.report.contrasts import Contrast
from ablations.report.model_scores import ModelScore
from ablations.report.tables import BELOW, GAP, column_name, floors_text, interval_text, task_text
from ablations.runs.changed_tasks import changed_tasks
from ablations.runs.evaluated_models import places_of_models
from ablations.runs.evaluation_problems import evaluation_problems
from ablations.runs.lm_eval_output import is_lm_eval_output, read_lm_eval_output
from ablations.runs.named_models import model_of_run, run_and_model
from ablations.runs.observations import CELL, SCORE
from ablations.runs.records import is_round
from ablations.runs.results import Results
from ablations.runs.run import Run
from ablations.runs.score_table import check_names, row_of_each_task
from ablations.scoring.observed import LANGUAGE_FIDELITY, OBSERVED
from ablations.statistics.as_text import number, p_text, points
from ablations.statistics.corpus import CORPUS_METRICS
from ablations.study.schema import PrimaryBlock, ReportBlock, Study
from layerswap_method.errors import InputError, counted, nearest
from layerswap_method.recipe.references import model_names, working_folder

_IN_LANGUAGE = "_right_language"
"""Ends the name of a task whose shown metric is that of its answers' language."""

_WIDTHS = ((22, 12, 14), (18, 12, 14), (16, 9, 14), (14, 8, 7))
"""Characters of a line of the columns with a task, a score and a verdict, the widest first."""


@dataclass(frozen=True)
class ModelComparison:
    """Models against each other; as text and in a notebook it has a line for each pair and task."""

    models: tuple[str, ...]
    """Their names: short ones where these are unique."""

    places: tuple[str, ...]
    """Where the scores are: a run folder, ``RUN:MODEL``, or an output of lm-eval."""

    warnings: tuple[str, ...]
    """Warnings that a reader must know before the scores."""

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
        return self.report()

    def report(self, tables: Sequence[str] = ()) -> str:
        """Return warnings, `tables` of single models, the comparisons, and notes."""
        parts = [*(wrapped(f"Warning: {warning}", 80) for warning in self.warnings), *tables]
        for (first, second), rows in self._tables():
            parts.append(_table_text([first, second], rows))
        parts += [wrapped(note, 80) for note in self._notes()]
        return "\n\n".join(parts)

    def _repr_html_(self) -> str:
        parts = [f"<p><b>Warning:</b> {html.escape(warning)}</p>" for warning in self.warnings]
        for (first, second), rows in self._tables():
            heads = ["task", first, second, "difference", "p", "verdict"]
            parts.append(pd.DataFrame(rows, columns=heads).to_html(index=False, border=0))
        return "\n".join([*parts, *(f"<p>{html.escape(note)}</p>" for note in self._notes())])

    def _tables(self) -> Iterator[tuple[tuple[str, str], list[list[str]]]]:
        """Yield each two models with the rows of their table."""
        scores = {(score.model, score.task): score for score in self.analysis.scores}
        matrices, frame = self.analysis.shown.matrices, self.comparisons
        for pair in itertools.combinations(self.models, 2):
            of_pair = frame[frame["first"].eq(pair[0]) & frame["second"].eq(pair[1])]
            rows = []
            for row in of_pair.to_dict("records"):
                p = row["p_holm"] if row["family"] else row["p"]
                name = task_text if row["metric"] == LANGUAGE_FIDELITY else column_name
                rows.append(
                    [
                        name(row, frame),
                        *(
                            _score_text(scores[model, row["task"]], value)
                            for model, value in zip(
                                pair, _common_means(matrices[row["task"]], pair), strict=True
                            )
                        ),
                        f"{points(row['difference'])} {interval_text(row)}".rstrip(),
                        "" if pd.isna(p) else p_text(p),
                        row["verdict"],
                    ]
                )
            yield pair, rows

    def _notes(self) -> Iterator[str]:
        frame, level = self.comparisons, self.analysis.study.evaluate.level
        sampled = "experts, seeds and items" if (frame["cells"] > 2).any() else "items"
        tested = int(((frame["family"] == "primary") & frame["p"].notna()).sum())
        over = f", corrected over {tested} comparisons by Holm's method" if tested > 1 else ""
        yield (
            f"Scores in percent (BLEU and chrF++ to 100); differences in points, first minus "
            f"second, with {level:.0%} intervals over {sampled}, which are not corrected. p: of "
            f"no difference{over}."
        )
        places = zip(self.models, map(_short_path, self.places), strict=True)
        shown = [f"{model}: {place}" for model, place in places if model != place]
        if shown:
            yield f"Scores of {'; '.join(shown)}."
        if floors := floors_text(self.scores):
            yield floors
        if (frame["family"] != "primary").any():
            yield "right language: the share of answers in the right language; p is not corrected."


def _common_means(matrix: pd.DataFrame, pair: Sequence[str]) -> list[float | None]:
    """Return the mean scores of two models on the items that both have; None for their own.

    Those of a model on its own items are the same where the other has all of them.
    """
    sides = [rows_of(matrix, [model], "").dropna(axis="columns") for model in pair]
    both = sides[0].columns.intersection(sides[1].columns)
    return [
        None if len(both) == len(side.columns) else float(side[both].to_numpy().mean())
        for side in sides
    ]


def _score_text(score: ModelScore, on_common: float | None = None) -> str:
    """Return a score; `on_common` takes its place where only some of its items are compared."""
    value = score.value if on_common is None else on_common
    text = GAP if value is None else number(value, score.is_share)
    if score.is_below:
        text += f" {BELOW}"
    if score.cells < score.cells_expected:
        text += f" ({score.cells} of {score.cells_expected} cells)"
    return text


def _table_text(models: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return the table of two models in lines of 80 characters, with the widest words that fit."""
    text = ""
    for task, head, verdict in _WIDTHS:
        widths = (task, head, head, 24, 8, verdict)
        cells = [
            [textwrap.fill(text, width) for text, width in zip(row, widths, strict=True)]
            for row in (["task", *models, "difference", "p", "verdict"], *rows)
        ]
        text = text_table(cells[0], cells[1:], sides="lrrrrl")
        if max(map(len, text.splitlines())) <= 80:
            break
    return text


_CHOSEN = (
    "scores of a round of a search, which chose settings by them: they are too high for what was "
    "chosen. The folder of the search has the scores on other items: name that one."
)


class _Evaluated(NamedTuple):
    """A model that was evaluated, by us or by lm-eval itself."""

    word: str
    """As the user wrote it."""

    label: str
    """Name of the model in its run."""

    results: Results
    identity: object
    """Equal for the same evaluation of the same model."""

    run: Run | None = None
    """None for an output of lm-eval."""

    versions: Mapping[str, str] = {}
    settings: Mapping[str, Mapping[str, str]] = {}
    """Of an output of lm-eval: versions of its tasks, and their settings in words."""

    notes: tuple[str, ...] = ()


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
    sides = [_evaluated(name, tasks) for name in places_of_models(names)]
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
    warnings += _joined((pair, _setting_notes(*pair, compared_tasks)) for pair in pairs)
    data = _paired(data)
    lacking, others = _tasks_without_pairs(data, scores, labels, tasks)
    data, scores = (frame[~frame["task"].isin(lacking)].copy() for frame in (data, scores))
    warnings += others
    warnings += _joined((pair, _content_notes(*pair, data)) for pair in pairs)
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


def _evaluated(name: str, tasks: Sequence[str]) -> _Evaluated:
    """Return the evaluated model that a user names."""
    folder, label = run_and_model(name)
    if label is None and is_lm_eval_output(folder):
        output = read_lm_eval_output(folder, tasks)
        (model,) = output.results.models
        identity = output.results.observations["weights"].iloc[0]
        return _Evaluated(
            word=name,
            label=model.label,
            results=output.results,
            identity=identity,
            versions=output.versions,
            settings=output.settings,
            notes=output.notes,
        )
    run, model = model_of_run(name)
    identity = (run.path.resolve(), frozenset(model.cells))
    notes = (_CHOSEN,) if is_round(run.path) else ()
    return _Evaluated(name, model.label, run.results, identity, run, notes=notes)


def _short_names(sides: Sequence[_Evaluated]) -> list[str]:
    """Return the models' names; where two have one name, the shortest ends of what was written."""
    labels = [side.label for side in sides]
    paths = [label for label in labels if "/" in label]
    if len({*labels}) < len(labels):
        labels = [side.word for side in sides]
        paths = [word for word in labels if "+" not in word]  # which is in the names of cells
    names = model_names(paths, {*labels} - {*paths})
    return [names.get(label, label) for label in labels]


def _short_path(place: str) -> str:
    """Return a path below the working directory as seen from there."""
    here = working_folder()
    path = Path(place)
    return str(path.relative_to(here)) if here is not None and path.is_relative_to(here) else place


def _renamed(side: _Evaluated, label: str) -> _Evaluated:
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


def _study(sides: Sequence[_Evaluated], tasks: Sequence[str]) -> Study:
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
    parts = data["content"].str.partition("/")
    data = data.assign(doc_id=data["item"], document=parts[0], prompt=parts[2])
    data = data.sort_values("item", kind="stable")
    cell = [*CELL, "language", "weights", *SCORE, "document"]
    data["copy"] = data.groupby(cell, sort=False).cumcount()
    data["item"] = data.groupby(["task", "document", "copy"], sort=False).ngroup()
    return data.drop(columns=["document", "copy"])


def _joined(
    notes: Iterable[tuple[tuple[_Evaluated, _Evaluated], Iterable[str]]],
) -> Iterator[str]:
    """Yield notes on two models each, behind their names; equal ones once, for all their pairs."""
    pairs: dict[str, list[str]] = {}
    for (first, second), texts in notes:
        for text in texts:
            pairs.setdefault(text, []).append(f"{first.label} and {second.label}")
    for text, names in pairs.items():
        yield f"{', '.join(names)} {text}"


def _setting_notes(first: _Evaluated, second: _Evaluated, tasks: Sequence[str]) -> Iterator[str]:
    """Yield the settings in which two models differ, one of which lm-eval evaluated; see `_joined`.

    Raises:
        InputError: for other versions of a task; between our own runs for any other setting.
    """
    if first.run is not None and second.run is not None:
        _check_protocol(first.run, first.label, second.run, second.label, tasks)
        return
    versions = [_versions(side, tasks) for side in (first, second)]
    for task in tasks:
        one, two = (by_task[task] for by_task in versions)
        if one != two:
            rest = [t for t in tasks if versions[0][t] == versions[1][t]]
            advice = f"; compare the others: --tasks {','.join(rest)}" if rest else ""
            raise InputError(
                f"{first.label} and {second.label} have different versions of {task}: "
                f"{one or 'none'} and {two or 'none'}; their scores are of different things{advice}"
            )
    differences: dict[tuple[str, str, str], list[str]] = {}
    settings = [_settings(side, tasks) for side in (first, second)]
    for task in tasks:
        for name, value in settings[0][task].items():
            other = settings[1][task].get(name, value)
            if other != value:
                differences.setdefault((name, value, other), []).append(task)
    for (name, one, two), differing in differences.items():
        of = "" if len(differing) == len(tasks) else f" of {', '.join(differing)}"
        yield (
            f"differ in {name}{of} ({_short(one)} and {_short(two)}): a difference may come from "
            "that."
        )


def _short(value: str) -> str:
    return value if len(value) <= 60 else f"{value[:57]}..."


def _versions(side: _Evaluated, tasks: Sequence[str]) -> Mapping[str, str]:
    if side.run is None:
        return side.versions
    return {
        record.task: record.evaluation.task_versions.get(record.task, "")
        for cell in side.run.cells
        for record in cell.tasks
        if record.task in tasks
    }


def _settings(side: _Evaluated, tasks: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
    """Return task -> settings in words; of our own runs those that lm-eval writes alike."""
    if side.run is None:
        return side.settings
    repeats = str(side.run.study.evaluate.repeats)
    return {
        record.task: {
            "the number of examples": str(record.evaluation.num_fewshot.get(record.task, 0)),
            "repeats": repeats,
            "the engine": record.evaluation.backend,
        }
        for cell in side.run.cells
        for record in cell.tasks
        if record.task in tasks
    }


def _content_notes(first: _Evaluated, second: _Evaluated, data: pd.DataFrame) -> Iterator[str]:
    """Yield which tasks are compared on some items only, or have other prompts; see `_joined`.

    Raises:
        InputError: where our own runs have other prompts.
    """
    keys = ["task", "item"]
    ours = first.run is not None and second.run is not None
    one, two = (
        data[data["model"] == side.label].drop_duplicates(keys)[[*keys, "doc_id", "prompt"]]
        for side in (first, second)
    )
    both = one.merge(two, on=keys, suffixes=("", "_second"))
    differing = both[both["prompt"] != both["prompt_second"]].drop_duplicates("task")
    if len(differing) and ours:
        row = differing.iloc[0]
        raise InputError(
            f"{first.label} and {second.label} have different prompts of {row['task']} (the first "
            f"is item {row['doc_id']}); evaluate both with the same data and task files"
        )
    if len(differing):
        yield (
            f"have different prompts of {', '.join(differing['task'])} (examples or chat "
            "template): a difference may come from that."
        )
    sizes = [frame.groupby("task").size() for frame in (one, two, both)]
    for task, items in sizes[2].items():
        if items < max(sizes[0][task], sizes[1][task]):
            yield (
                f"are compared on the {counted(items, 'item')} of {task} that both have (of "
                f"{sizes[0][task]} and {sizes[1][task]}); scores next to a difference are on these."
            )


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
            notes[str(task)] = f"{task} has no scores of single items by {metric}"
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


def _check_protocol(
    first_run: Run, first_name: str, second_run: Run, second_name: str, tasks: Sequence[str]
) -> None:
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
