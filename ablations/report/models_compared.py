"""`layerswap compare`: evaluated models against each other, on the same items, as text.

Knows run folders and layout; the statistics are those of a report.
"""

from __future__ import annotations

import itertools
import string
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ablations.drawing.text_table import text_table
from ablations.report.comparisons import Comparer, Outcome
from ablations.report.merged import as_merged
from ablations.report.observations import Block, Item, block_of_one, read_items
from ablations.report.wording import ALPHA, difference_text, is_small
from ablations.runner.problems import evaluation_problems
from ablations.runner.records import CellRecord, Run, TaskRecord, load_run
from ablations.runner.results import latest_records
from ablations.scoring.observed import LANGUAGE_FIDELITY, OBSERVED
from ablations.scoring.protocol import protocol_of
from ablations.scoring.records import TaskScore
from ablations.statistics.as_text import p_text, with_interval
from ablations.statistics.corpus import CORPUS_METRICS
from ablations.statistics.paired import holm
from layerswap_method.errors import InputError, nearest
from layerswap_method.recipe.references import is_folder

_WIDTH = 100
_SHOWN_CELLS = 12
"""Cells that an error lists."""


@dataclass(frozen=True)
class _Model:
    """One evaluated model."""

    name: str
    """As the user wrote it."""

    run: Run
    """The folder that it is in."""

    label: str
    """Of its cell."""

    tasks: dict[str, TaskRecord]
    """Task -> its record."""

    def score(self, task: str, metric: str | None = None) -> TaskScore:
        """Return a score of a task; without `metric` the first one, which is the task's own."""
        return next(score for score in self._scores(task) if metric in (None, score.metric))

    def has(self, task: str, metric: str) -> bool:
        """Return whether the task has a score of this metric."""
        return any(score.metric == metric for score in self._scores(task))

    def _scores(self, task: str) -> list[TaskScore]:
        return [score for score in self.tasks[task].evaluation.scores if score.task == task]


@dataclass(frozen=True)
class _Row:
    """One comparison."""

    task: str
    metric: str
    first: int
    second: int
    outcome: Outcome | None
    higher_is_better: bool

    @property
    def name(self) -> str:
        """What is compared: the task's own score, or the share of answers in its language."""
        is_language = self.metric == LANGUAGE_FIDELITY
        return f"{self.task}: answers in the language" if is_language else self.task

    @property
    def p(self) -> float | None:
        """The p-value; None where nothing was tested."""
        return None if self.outcome is None else self.outcome.p

    def better(self, p_holm: float | None) -> int | None:
        """Return the number of the better model; None where there is no evidence of one."""
        if self.outcome is None or p_holm is None or not is_small(self.outcome, p_holm):
            return None
        return self.first if (self.outcome.difference > 0) == self.higher_is_better else self.second


def compare_models(names: Sequence[str], tasks: Sequence[str] = ()) -> str:
    """Return tables of scores and of all comparisons of `names`, pair by pair and task by task.

    Args:
        names: folders that `layerswap evaluate` wrote, or ``RUN:CELL``; at least two.
        tasks: what to compare; none compares every task, which all must then have.

    Raises:
        InputError: for fewer than two models, a model that is not there or is named twice, tasks
            that one of them lacks, other items or prompts, or another engine, dtype or context.
    """
    if len(names) < 2:
        raise InputError("compare takes two or more models; give another folder or RUN:CELL")
    models = [_find(name) for name in names]
    places = [(model.run.path.resolve(), model.label) for model in models]
    for number, place in enumerate(places):
        if place in places[:number]:
            raise InputError(f"{names[number]} is the same as {names[places.index(place)]}")
    chosen = _tasks(models, tasks)
    _check_protocol(models, chosen)
    level = models[0].run.study.evaluate.level
    comparer = Comparer(seed=models[0].run.study.evaluate.seed, level=level)
    rows = [row for task in chosen for row in _compared(models, task, comparer)]
    tested = [row.p for row in rows if row.p is not None]
    left = iter(holm(tested))
    corrected = [None if row.p is None else next(left) for row in rows]
    letters = _letters(len(models))
    lines = [_line(row, letters, p) for row, p in zip(rows, corrected, strict=True)]
    warnings = dict.fromkeys(
        f"Warning: {text}" for model in models for text in _problems(model, chosen)
    )
    head = ("task", "compared", "difference", "p", "p corrected", "items", "reading")
    parts = [
        *warnings,
        "\n".join(f"{letter}: {model.name}" for letter, model in zip(letters, models, strict=True)),
        _score_table(models, chosen, letters),
        text_table(head, lines, labels=2, sides="llrrrrl"),
        "\n".join(_gained_and_lost(rows, corrected, letters)),
        textwrap.fill(
            f"Scores in percent; BLEU and chrF++ on a scale of 0 to 100. Differences: first minus "
            f"second, in points, with {level:.0%} intervals over items. p is corrected by Holm's "
            f"method for {len(tested)} comparisons; below {ALPHA} a model is called better. "
            "Another training run may differ by more.",
            _WIDTH,
        ),
    ]
    return "\n\n".join(parts)


def _find(name: str) -> _Model:
    folder, label = _place(name)
    run = load_run(folder)
    labels = [cell.label for cell in as_merged(run)[0].head.cells]
    if label is None:
        if len(labels) > 1:
            shown = "".join(f"\n  {folder}:{each}" for each in labels[:_SHOWN_CELLS])
            more = len(labels) - _SHOWN_CELLS
            raise InputError(
                f"{folder} has {len(labels)} cells; name one of them:{shown}"
                + (f"\n  and {more} more" if more > 0 else "")
            )
        label = labels[0]
    known = _names(run)
    if label not in known:
        raise InputError(f"{folder} has no cell {label!r}{nearest(label, known)}")
    label = known[label]
    tasks = latest_records(run)[label]
    if not tasks:
        raise InputError(f"{name}: nothing is evaluated yet; run its command again first")
    return _Model(name, run, label, tasks)


def _names(run: Run) -> dict[str, str]:
    """Return what a cell may be called, in the run or in its report -> its label in the run."""
    known = {cell.label: cell.label for cell in run.head.cells}
    models = {(c.kind, c.weights_key): c.label for c in reversed(run.head.cells)}
    for cell in as_merged(run)[0].head.cells:
        known.setdefault(cell.label, models[cell.kind, cell.weights_key])
    return known


def _place(name: str) -> tuple[Path, str | None]:
    """Return folder and cell; a folder may have colons in its name."""
    if is_folder(name):
        return Path(name), None
    cuts = [at for at, sign in enumerate(name) if sign == ":"]
    for cut in cuts:
        if is_folder(name[:cut]):
            return Path(name[:cut]), name[cut + 1 :]
    return Path(name[: cuts[0]] if cuts else name), name[cuts[0] + 1 :] if cuts else None


def _tasks(models: Sequence[_Model], wanted: Sequence[str]) -> list[str]:
    known = dict.fromkeys(task for model in models for task in model.tasks)
    for task in wanted:
        if task not in known:
            raise InputError(f"no model has the task {task!r}{nearest(task, known)}")
    chosen = list(wanted or known)
    shared = [task for task in chosen if all(task in model.tasks for model in models)]
    for model in models:
        lacking = [task for task in chosen if task not in model.tasks]
        if lacking:
            advice = f"or compare what all have: --tasks {','.join(shared)}"
            raise InputError(
                f"{model.name} has no result for {', '.join(lacking)}; evaluate "
                f"{'it' if len(lacking) == 1 else 'them'} there"
                + (f", {advice}" if shared else "; the models have no task in common")
            )
    for task in chosen:
        scores = [model.score(task) for model in models]
        kinds = dict.fromkeys(f"{score.metric} ({score.filter})" for score in scores)
        if len(kinds) > 1:
            raise InputError(f"{task} has different metrics: {', '.join(kinds)}; evaluate it again")
    return chosen


def _check_protocol(models: Sequence[_Model], tasks: Sequence[str]) -> None:
    first = models[0]
    for model in models[1:]:
        ours, theirs = _protocol(first, tasks), _protocol(model, tasks)
        for name, value in ours.items():
            if theirs[name] != value:
                raise InputError(
                    f"{first.name} and {model.name} were asked in different ways: {name} is "
                    f"{value} and {theirs[name]}; evaluate both with the same settings"
                )


def _protocol(model: _Model, tasks: Sequence[str]) -> dict[str, str]:
    """Return what must be the same, by the words that name it."""
    options = model.run.study.evaluate.options
    found = {
        "the backend": ", ".join(
            dict.fromkeys(model.tasks[task].evaluation.backend for task in tasks)
        ),
        "--dtype": options.dtype,
        "--max-model-len": str(options.max_model_len or "the model's"),
        "the way of asking": str(protocol_of(model.run.study.evaluate).asked() or "the tasks' own"),
    }
    for task in tasks:
        evaluation = model.tasks[task].evaluation
        found[f"the version of {task}"] = evaluation.task_versions.get(task, "") or "none"
        found[f"the number of examples of {task}"] = str(evaluation.num_fewshot.get(task, 0))
    return found


def _compared(models: Sequence[_Model], task: str, comparer: Comparer) -> Iterator[_Row]:
    asked = [
        {
            (sample.doc_id, sample.doc_hash): sample.prompt_hash
            for sample in model.tasks[task].samples()
            if sample.task == task
        }
        for model in models
    ]
    for model, theirs in zip(models[1:], asked[1:], strict=True):
        if theirs != asked[0]:
            same = len(asked[0].items() & theirs.items())
            raise InputError(
                f"{models[0].name} and {model.name} were asked different items of {task}: "
                f"{same} of {len(asked[0])} and {len(theirs)} are the same with the same prompt; "
                "evaluate both with the same --limit, data and task files"
            )
    items = sorted(asked[0])
    metrics = [models[0].score(task).metric]
    if metrics != [LANGUAGE_FIDELITY] and all(m.has(task, LANGUAGE_FIDELITY) for m in models):
        metrics.append(LANGUAGE_FIDELITY)
    for metric in metrics:
        scores = [model.score(task, metric) for model in models]
        blocks = [_block(m, task, s, items) for m, s in zip(models, scores, strict=True)]
        for first, second in itertools.combinations(range(len(models)), 2):
            one, other = blocks[first], blocks[second]
            outcome = comparer.compare(one, other) if one and other else None
            is_up = OBSERVED.get(metric, scores[0].higher_is_better)
            yield _Row(task, metric, first, second, outcome, is_up)


def _block(model: _Model, task: str, score: TaskScore, items: Sequence[Item]) -> Block | None:
    """Return the items of a score; None where they have no value of their own (perplexity)."""
    record = model.tasks[task]
    values = read_items(record).get((task, score.metric, score.filter), {})
    if not score.is_share or not all(item in values for item in items):
        return None
    return block_of_one(values, items, record.weights_key, score)


def _line(row: _Row, letters: Sequence[str], p_holm: float | None) -> tuple[str, ...]:
    first, second = letters[row.first], letters[row.second]
    head = (row.name, f"{first} - {second}")
    outcome = row.outcome
    if outcome is None:
        return (*head, "", "", "", "", f"{row.metric} has no value for each item")
    difference = difference_text(outcome)
    if outcome.p is None or p_holm is None:
        return (*head, difference, "", "", str(outcome.items), "the same model")
    better = row.better(p_holm)
    reading = "no evidence" if better is None else f"{letters[better]} is better"
    numbers = (difference, p_text(outcome.p), p_text(p_holm))
    return (*head, *numbers, str(outcome.items), reading)


def _gained_and_lost(
    rows: Sequence[_Row], corrected: Sequence[float | None], letters: Sequence[str]
) -> Iterator[str]:
    """Yield for each pair of models what the second gained and lost against the first."""
    pairs: dict[tuple[int, int], list[tuple[_Row, int | None]]] = {}
    for row, p_holm in zip(rows, corrected, strict=True):
        if p_holm is not None:
            found = pairs.setdefault((row.first, row.second), [])
            found.append((row, row.better(p_holm)))
    for (first, second), found in pairs.items():
        gained = [row.name for row, better in found if better == second]
        lost = [row.name for row, better in found if better == first]
        parts = [f"gained on {', '.join(gained)}"] if gained else []
        parts += [f"lost on {', '.join(lost)}"] if lost else []
        if rest := len(found) - len(gained) - len(lost):
            parts.append(f"no evidence on {rest} of {len(found)}")
        text = f"{letters[second]} against {letters[first]}: {'; '.join(parts)}."
        yield textwrap.fill(text, _WIDTH, subsequent_indent="  ")


def _score_table(models: Sequence[_Model], tasks: Sequence[str], letters: Sequence[str]) -> str:
    heads = []
    for task in tasks:
        metric = models[0].score(task).metric
        heads.append(f"{task}\n{CORPUS_METRICS.get(metric, metric)}")
    rows = []
    for letter, model in zip(letters, models, strict=True):
        scores = [model.score(task) for task in tasks]
        rows.append((letter, *(with_interval(s.value, s.interval, s.is_share) for s in scores)))
    return text_table(["", *heads], rows, width=_WIDTH)


def _problems(model: _Model, tasks: Sequence[str]) -> tuple[str, ...]:
    planned = next(cell for cell in model.run.head.cells if cell.label == model.label)
    records = tuple(model.tasks[task] for task in tasks)
    cell = CellRecord(**dict(planned), tasks=records)
    found = evaluation_problems(model.run.model_copy(update={"cells": (cell,)}))
    return tuple(f"{model.name}: {text}" for text in found)


def _letters(number: int) -> list[str]:
    if number <= len(string.ascii_uppercase):
        return list(string.ascii_uppercase[:number])
    return [f"M{place}" for place in range(1, number + 1)]
