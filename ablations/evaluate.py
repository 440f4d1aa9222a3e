"""The paper's benchmarks on one model: a study of one unmerged model, and its Table 5.

The run folder is that of any study (`ablations.runs.records`): finished tasks are not evaluated
again, and one more language or benchmark adds only its own. Next to the score our table has what
that of the paper (arXiv 2410.01335) lacks: the other extraction, the share of answers in the right
language, the share cut off.
"""

from __future__ import annotations

import contextlib
import dataclasses
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pandas as pd

from ablations.drawing.text_table import list_table, text_table, wrapped
from ablations.engines.backends import describe_backend, describe_start, resolve_backend
from ablations.engines.task_loading import count_items
from ablations.machine.overrides import with_settings
from ablations.models.find import find_model
from ablations.report.compare_models import compare_models
from ablations.report.model_comparison import ModelComparison
from ablations.report.notes import record_notes
from ablations.runner.run import (
    RunOptions,
    answers_folder,
    check_folder,
    plan_of_run,
    run_study_file,
)
from ablations.runner.study_engine import NOT_LOADED, SharedEngine
from ablations.runs.evaluation_problems import evaluation_problems
from ablations.runs.observations import SCORE
from ablations.runs.records import RUN_FILE, as_input_errors, unfinished_records
from ablations.runs.results import SCORES_FILE
from ablations.runs.run import Run, load_run
from ablations.runs.score_table import VALUES, row_of_each_task
from ablations.scoring.evaluation import Backend, Evaluation, TaskScore, shown_score
from ablations.scoring.observed import LANGUAGE_FIDELITY, OBSERVED, TRUNCATED, join_notes
from ablations.statistics.as_text import number as number_text
from ablations.statistics.as_text import percent, with_interval
from ablations.study.files import ExpertsFile, StudyFile, folder_words
from ablations.study.schema import Evaluate, Pools, Study
from ablations.tasks.catalog import (
    PAPER_BENCHMARKS,
    PAPER_LANGUAGES,
    Task,
    as_code,
    choose,
    languages_of,
    list_tasks,
)
from ablations.tasks.data import DataUnavailable
from ablations.tasks.names import language_name
from ablations.tasks.suites import PLACEHOLDER, in_languages, suite_task
from ablations.train.side_adapters import backend_beside, is_side_adapter
from layerswap_method.checkpoint.checkpoint import read_checkpoint
from layerswap_method.checkpoint.lora import read_changes
from layerswap_method.errors import InputError, LayerSwapError, counted
from layerswap_method.output import output_folder
from layerswap_method.recipe.references import model_names, working_folder
from layerswap_method.recipe.validation import validated

_COLUMNS = ("model", *SCORE, *VALUES)
"""Columns of the scores of one model; those of a run's that say something of it."""

_NAME = "evaluate"
_SHARED = ("tasks", "benchmarks", "include_path")
"""Settings of which one folder holds several values."""


@dataclasses.dataclass(frozen=True)
class SuiteResult:
    """The scores of a model on the suite."""

    model: str
    """Name of the model: the user's, or that of `model_names`."""

    tasks: tuple[Task, ...]
    """Every task of the suite that was chosen, in the order of Table 5."""

    out: Path
    run: Run
    """Content of the folder `out` for this call's tasks."""

    @cached_property
    def evaluations(self) -> dict[str, Evaluation]:
        """Task name -> its evaluation, without samples."""
        (cell,) = self.run.cells
        update = {"model": self.model}
        return {
            record.task: record.evaluation.model_copy(update=update) for record in cell.task_records
        }

    @property
    def engine(self) -> Backend:
        """The engine that ran."""
        return self.run.cells[0].backend

    @cached_property
    def scores(self) -> pd.DataFrame:
        """A row for every score of every task; the interval is from `low` to `high`."""
        return self.run.scores.assign(model=self.model)[[*_COLUMNS]]

    @property
    def shown_scores(self) -> pd.DataFrame:
        """A row for every task: the score that tables show."""
        return row_of_each_task(self.scores).reset_index(drop=True)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes that a reader of the scores may want."""
        return tuple(_notes(self.run, self.tasks))

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings that a reader must know before the scores."""
        return tuple(evaluation_problems(self.run))

    def table(self, width: int | None = None) -> str:
        """Return the table in the layout of the paper's Table 5.

        In a `width` its lines fit as far as the numbers leave room for words.
        """
        return render_table5(
            self.model, self.tasks, self.evaluations, self.run.head.task_languages, width
        )

    def report(self, width: int | None = None) -> str:
        """Return warnings, the table, notes, and where records are."""
        table, notes = self.table(width), _notes_text((_units(self.run), *self.notes))
        warnings = [wrapped(f"Warning: {problem}") for problem in self.warnings]
        source = f"{_engine_text(self.engine)}\nScores: {self.out / SCORES_FILE}"
        return "\n\n".join([*warnings, table, notes, source])


def report_of_several(
    results: Sequence[SuiteResult], compared: ModelComparison, width: int | None = None
) -> str:
    """Return the tables of models with their notes, and the comparison; no line stands twice."""
    tables = list[str]()
    for result in results:
        tables += [result.table(width), *filter(None, [_notes_text(result.notes)])]
    return compared.report([*tables, *dict.fromkeys(_engine_text(each.engine) for each in results)])


def _engine_text(engine: Backend) -> str:
    return f"Evaluated by lm-eval on {describe_backend(engine)}."


def _notes_text(notes: Iterable[str]) -> str:
    return "\n".join(wrapped(note, first="- ", indent="  ") for note in notes)


def evaluate_model(
    model: str, options: RunOptions, languages: Sequence[str] = (), name: str | None = None
) -> SuiteResult:
    """Evaluate one model on the suite; finished tasks with unchanged inputs stay.

    Args:
        model: a checkpoint folder, a hub id (``org/name`` or ``org/name@revision``), or either
            with a LoRA adapter: ``BASE+ADAPTER``.
        options: backend, isolation, folders and `settings`, which are keys of a study's `evaluate`.
            Without benchmarks, those of the paper; other tasks are evaluated alone unless languages
            or benchmarks are named too. `out` of None is that of `default_folder`.
        languages: codes, of the paper's benchmarks, of the tasks in ``include_path`` whose metadata
            name a language, and of tasks with ``{lang}``; none means those of the paper.
        name: of the model in tables; None is the end of its path, see `model_names`.

    Raises:
        InputError: for wrong settings, unknown languages or benchmarks, only tasks that need leave
            to run code, data that is missing (all of it in one message, before a model is loaded),
            a model that does not exist, an adapter that cannot be streamed, a missing backend, or a
            folder that cannot be written or is another's.
        LayerSwapError: when a task fails; what was finished before it stays.
    """
    call = _call(model, options, languages, name)
    result = run_study_file(call.file, call.out, call.options)
    if result.summary.failed:
        raise LayerSwapError(f"{call.name}: {'; '.join(result.summary.failed.values())}")
    (cell,) = result.run.cells
    # The folder has the tasks of earlier calls, too.
    records = tuple(record for record in cell.task_records if record.task in result.tasks)
    keys = {task: key for task, key in cell.record_keys.items() if task in result.tasks}
    (each,) = result.run.head.cells
    head = result.run.head.model_copy(
        update={"cells": (each.model_copy(update={"record_keys": keys}),)}
    )
    cell = cell.model_copy(update={"task_records": records, "record_keys": keys})
    run = dataclasses.replace(result.run, head=head, cells=(cell,))
    return SuiteResult(call.name, call.suite, call.out, run)


class _Call(NamedTuple):
    """What one call evaluates."""

    name: str
    suite: tuple[Task, ...]
    """The paper's tasks and newer ones among those that were chosen."""

    file: StudyFile
    out: Path
    options: RunOptions


def _call(model: str, options: RunOptions, languages: Sequence[str], name: str | None) -> _Call:
    """Return the study of one model; see `evaluate_model`."""
    if name is not None and (not name.strip() or "/" in name or name.startswith(".")):
        raise InputError(f"name is {name!r}; write one without / that begins with no dot")
    languages = tuple(map(as_code, languages))
    block = validated(Evaluate, with_settings({}, options.settings), "evaluate")
    suite, names = _choose(block, languages)
    expert = find_model(model)
    if expert.adapter is not None and is_side_adapter(expert.adapter):
        backend = backend_beside(options.backend, expert.adapter)
    else:
        if expert.adapter is not None:  # which may be of a kind that is not streamed
            read_changes(expert.adapter, read_checkpoint(model, expert.folder))
        backend = resolve_backend(options.backend)
    folder = default_folder(name or model, backend, options.settings)
    out = output_folder(str(options.out or folder))
    name = name or model_names([model])[model]
    study = Study(
        name=_NAME,
        question=f"What does {name} score?",
        baseline=("base",),
        experts=Pools(base=name, task=(name,), language=(name,)),
        evaluate=block.model_copy(update={"tasks": names, "benchmarks": ()}),
    )
    options = dataclasses.replace(
        options,
        experts=ExpertsFile(experts={name: model}),
        backend=backend,
        keep_earlier_tasks=True,
        # An adapter's change is added to the base in a live engine, as in any study.
        materialize=expert.adapter is None and options.shared is None,
    )
    return _Call(name, suite, StudyFile(Path(f"layerswap {_NAME}"), study), out, options)


def describe_evaluations(
    models: Sequence[str],
    options: RunOptions,
    languages: Sequence[str] = (),
    name: str | None = None,
    width: int | None = None,
) -> str:
    """Return the tasks of a call with their items, and what of them is to do; evaluate nothing.

    The data of tasks is read; where it is on a hub that cannot be reached, its items are unknown.
    Of the models their headers are read. The arguments are those of `evaluate_models`, `width` is
    the number of characters of a line.

    Raises:
        InputError: as `evaluate_models`.
    """
    _check_several(models, options, name)
    calls = [_call(model, options, languages, name) for model in models]
    return "\n\n".join(_describe(call, width) for call in calls)


def _describe(call: _Call, width: int | None) -> str:
    check_folder(call.out, _NAME, answers_folder(call.options, call.out), dry=True)
    plan = plan_of_run(call.file, call.options, call.out, dry=True)
    (cell,) = plan.cells
    left = unfinished_records(call.out, plan.cells)
    rates = _seconds_per_item(call.out, cell.weights_key, plan.backend)
    rows, unknown, count, times = [], list[str](), 0, dict[str, float]()
    for task in cell.record_keys:
        state = "to do" if cell.record_keys[task] in left else "finished"
        try:
            number = count_items(cell.resolved.only(task))
        except DataUnavailable as error:
            unknown.append(error.message)
            rows.append((task, "unknown", state))
            continue
        rows.append((task, f"{number:,}", state))
        if state == "to do":
            count += number
            if task in rates:
                times[task] = number * rates[task]
    rows += [(task, "", f"skipped: {why}") for task, why in cell.skipped.items()]
    to_do = sum(state == "to do" for _, _, state in rows)
    lines = [
        f"{call.name}: {plan.base.reference}",
        f"engine: {describe_start(plan.backend, plan.options)}, in {plan.options.dtype}",
        f"weights: {plan.num_weights:,}",
        f"folder: {call.out}",
        f"to do: {counted(to_do, 'task')}, {counted(count, 'item')}"
        + (" and those that are unknown" if unknown else ""),
        *_time_text(times, to_do),
        *dict.fromkeys(unknown),
        *(f"note: {note}" for note in plan.notes),
    ]
    table = list_table(("task", "items", "state"), rows, width)
    return "\n".join([*(wrapped(line, indent="  ") for line in lines), "", table])


def _seconds_per_item(out: Path, weights_key: str, backend: Backend) -> dict[str, float]:
    """Return task -> the most seconds that an item took in the runs of a model beside `out`.

    Runs that went on, or began with stored answers, took less an item than the model needs.
    """
    rates = dict[str, float]()
    for file in sorted(out.parent.glob(f"*/{RUN_FILE}")):
        with contextlib.suppress(LayerSwapError):
            for cell in load_run(file.parent).cells:
                for record in cell.task_records:
                    evaluation = record.evaluation
                    is_same = (cell.weights_key, evaluation.backend) == (weights_key, backend)
                    if not is_same or record.provenance.get("weights") == NOT_LOADED:
                        continue
                    rate = record.timing_s["evaluate"] / max(score.n for score in evaluation.scores)
                    rates[record.task] = max(rate, rates.get(record.task, 0.0))
    return rates


def _time_text(times: Mapping[str, float], to_do: int) -> Iterator[str]:
    """Yield how long the tasks take whose rate is known, of those that are to do."""
    if times:
        of = "" if len(times) == to_do else f" for {len(times)} of the {to_do} tasks"
        minutes = round(sum(times.values()) / 60)
        length = f"about {counted(minutes, 'minute')}" if minutes else "less than a minute"
        yield f"time: {length}{of}, at the rate of this model's runs beside it"


def evaluate_models(
    models: Sequence[str],
    options: RunOptions,
    languages: Sequence[str] = (),
    name: str | None = None,
) -> list[SuiteResult]:
    """Evaluate models one after the other, each into its own folder; see `evaluate_model`.

    All models are looked for before the first is evaluated. On vLLM, whose starts are long, one
    live engine serves all models that it can hold; transformers starts as soon as it loads.

    Raises:
        InputError: for a model that is named twice, or a name or a folder for several models.
    """
    _check_several(models, options, name)
    if len(models) > 1 and resolve_backend(options.backend) == "vllm":
        options = dataclasses.replace(options, shared=SharedEngine())
    try:
        return [evaluate_model(model, options, languages, name) for model in models]
    finally:
        if options.shared is not None:
            options.shared.close()


def _check_several(models: Sequence[str], options: RunOptions, name: str | None) -> None:
    if not models:
        raise InputError("name one model or more")
    if len(models) > 1:
        for option, value in (("--name", name), ("--out", options.out)):
            if value is not None:
                raise InputError(f"{option} is for one model; each of several has its own folder")
        for model in models:
            find_model(model)
            if models.count(model) > 1:
                raise InputError(f"{model} is named twice")


def compare_results(results: Sequence[SuiteResult]) -> ModelComparison:
    """Return the comparison of models on the tasks that they were evaluated on.

    Raises:
        InputError: as `compare_models`.
    """
    tasks = [task for task in results[0].evaluations if results[0].evaluations[task].scores]
    with as_input_errors():
        return compare_models([str(result.out) for result in results], tasks)


def _choose(block: Evaluate, languages: Sequence[str]) -> tuple[tuple[Task, ...], tuple[str, ...]]:
    """Return the tasks of the suite, in its order, and the names of all tasks, those first.

    Raises:
        InputError: for unknown languages and benchmarks, and where only a folder of tasks is named
            and none of them has one of the languages.
    """
    templates = [name for name in block.tasks if PLACEHOLDER in name]
    if templates and not languages:
        raise InputError(f"{templates[0]}: name its languages, such as --languages sw,te")
    named, language_by_task = in_languages(block.tasks, languages), languages_of(block.include_path)
    names = {*named}
    if block.benchmarks or not block.tasks or (languages and not templates):
        # Tasks of the user's folders that the languages choose among, with their languages.
        choosable = {} if block.benchmarks else language_by_task
        if block.tasks:
            choosable = {name: code for name, code in language_by_task.items() if name in names}
        candidates = (
            task
            for task in list_tasks()
            if (languages or task.language in PAPER_LANGUAGES)
            and (block.benchmarks or task.benchmark in PAPER_BENCHMARKS)
        )
        chosen = choose(candidates, languages, block.benchmarks, others=choosable.values())
        names |= {task.name for task in chosen}
        names |= {name for name, code in choosable.items() if code in languages}
        is_of_folder = block.include_path and not block.benchmarks and not block.tasks
        if is_of_folder and languages and not {*choosable.values()} & {*languages}:
            folders = ", ".join(map(str, block.include_path))
            languages_there = ", ".join(sorted({*choosable.values()}))
            raise InputError(
                f"no task in {folders} has language {' or '.join(languages)}; its tasks have "
                f"{languages_there or 'none: name it in a task file (metadata: language)'}. "
                "For the paper's benchmarks name them with --benchmarks, or leave out "
                "--include-path"
            )
    suite = tuple(task for task in list_tasks() if task.name in names)
    rest = (*named, *sorted(names))
    return suite, tuple(dict.fromkeys((*(task.name for task in suite), *rest)))


def default_folder(model: str, backend: Backend, settings: Mapping[str, Any]) -> Path:
    """Return the default folder of records, named by model, engine and `settings`.

    So `scores.csv` of a quick look with a limit does not take the place of the whole run's. A
    folder below the working directory has one name, however it is written.
    """
    name = "+".join(map(_plain_name, model.split("+"))).strip("/.").replace("/", "--")
    in_name = {key: value for key, value in settings.items() if key not in _SHARED}
    return Path("runs/evaluate") / name / "-".join([backend, *folder_words(in_name)])


def _plain_name(part: str) -> str:
    path = Path(part)
    if ".." in path.parts or not path.name:
        path = path.resolve()
    here = working_folder()
    below = path.is_absolute() and here is not None and path.is_relative_to(here) and path != here
    return str(path.relative_to(here) if here is not None and below else path)


_NARROWEST = 16
"""Characters of a title that are not broken for the sake of a width."""

_HEAD = ("Task", "Language", "", "also", "in language", "cut off", "items")


def render_table5(
    model: str,
    tasks: Sequence[Task],
    evaluations: Mapping[str, Evaluation],
    languages: Mapping[str, str] = MappingProxyType({}),
    width: int | None = None,
) -> str:
    """Return the table; tasks that are not of the suite follow, by their names.

    Args:
        model: name of the column.
        tasks: the rows, in order.
        evaluations: task name -> its evaluation; a task without one was skipped.
        languages: name of another task -> code of its language.
        width: characters of a line. Within one, titles are wrapped.

    Columns without an entry are left out.
    """
    suite = {task.name: (task.title, task.label) for task in tasks}
    others = {
        name: (_title(name, evaluation), _language(name, languages))
        for name, evaluation in evaluations.items()
        if name not in suite
    }
    rows, previous = [], ""
    for name, (title, label) in {**suite, **others}.items():
        cells = _cells(evaluations[name]) if name in evaluations else ("skipped", "", "", "", "")
        rows.append(("" if title == previous else title, label, *cells))
        previous = title
    head = [name or model for name in _HEAD]
    used = [0, *(n for n in range(1, len(head)) if any(row[n] for row in rows))]
    head, rows = [head[n] for n in used], [tuple(row[n] for n in used) for row in rows]
    labels = sum(n < 3 for n in used)
    if width is None:
        return text_table(head, rows, labels=labels)
    rest = text_table(["", *head[1:]], [("", *row[1:]) for row in rows], labels=labels)
    room = max(width - max(map(len, rest.splitlines())), _NARROWEST)
    filled = [(textwrap.fill(title, room), *entries) for title, *entries in rows]
    return text_table(head, filled, labels=labels)


def _language(name: str, languages: Mapping[str, str]) -> str:
    """Return the language of a task that is not of the suite, by its metadata or lm-eval's name.

    A code in another name may be a word, such as the ``my`` of ``my_task``, and no target language
    says otherwise here.
    """
    of_suite = suite_task(name)
    code = languages.get(name, "" if of_suite is None else of_suite.language)
    return language_name(code)


def _title(name: str, evaluation: Evaluation) -> str:
    metric, shots = evaluation.shown_score(name).metric, evaluation.num_fewshot.get(name, 0)
    return f"{name} {metric}, {shots}-shot"


def _cells(evaluation: Evaluation) -> tuple[str, ...]:
    main = shown_score(evaluation.scores)
    others = [s for s in evaluation.scores if s is not main and s.metric not in OBSERVED]
    percents = {score.metric: percent(score.value) for score in evaluation.scores}
    return (
        with_interval(main.value, main.interval, main.is_share),
        ", ".join(f"{_name(s, main)} {number_text(s.value, s.is_share)}" for s in others),
        percents.get(LANGUAGE_FIDELITY, ""),
        percents.get(TRUNCATED, ""),
        str(main.n),
    )


def _name(score: TaskScore, main: TaskScore) -> str:
    return score.metric if score.metric != main.metric else score.filter.removesuffix("-extract")


def _units(run: Run) -> str:
    scores = [score for cell in run.cells for score in cell.scores]
    levels = [score.interval.level for score in scores if score.interval is not None]
    level = f", with {100 * levels[0]:.0f} % intervals over items" if levels else ""
    return f"Scores in percent{level}; BLEU and chrF++ on a scale of 0 to 100."


def _notes(run: Run, tasks: Sequence[Task]) -> Iterator[str]:
    scores = [score for cell in run.cells for score in cell.scores]
    suite = {task.name: task for task in tasks if task.name in {score.task for score in scores}}
    if any(task.filters[:1] == ("strict-match",) for task in suite.values()):
        yield (
            "MGSM: the score counts the number after the answer phrase (strict); flexible takes "
            "the last number of the answer."
        )
    if any(task.filters[:1] == ("boxed",) for task in suite.values()):
        yield (
            "PolyMath: the score compares what is in the first \\boxed{} as numbers and text; "
            "algebra is not done."
        )
    metrics = {score.metric for score in scores if score.task in suite}
    if LANGUAGE_FIDELITY in metrics:
        yield "in language: share of answers in the language they should be in."
    if TRUNCATED in metrics:
        yield "cut off: share of answers that ended at the token limit, not by themselves."
    yield from join_notes((*run.head.notes, *record_notes(run)))
    for score in scores:
        if score.signature is not None and score.task in suite:
            yield f"{score.task}: {score.metric} is {score.signature}"
