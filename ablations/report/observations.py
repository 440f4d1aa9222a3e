"""What the cells of a run scored, item by item, ready to be compared. Knows records; tests nothing.

Cells are looked up by model and experts; a cell that failed or was not run is a gap, not an error.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ablations.report.design import Group, Model, groups, setting_key
from ablations.runner.records import CellRecord, Run, TaskRecord
from ablations.scoring.records import TaskScore
from ablations.statistics.corpus import CorpusMetric, corpus_metric
from ablations.statistics.crossed import Mask, Statistic, item_values
from ablations.statistics.intervals import Array

Item = tuple[int, str]
"""Index of an item in its split, and lm-eval's hash of it."""

_Place = tuple[str, str, str | None, str | None, str | None]
"""Kind, setting, task expert, language expert, base."""


@dataclass(frozen=True)
class Measure:
    """One metric of one task: what a number in a table is about."""

    task: str
    """lm-eval's task name."""

    metric: str
    """lm-eval's metric name."""

    filter: str
    """lm-eval's filter name."""

    is_share: bool
    """Whether scores lie in [0, 1] and are shown in percent."""

    higher_is_better: bool
    """Direction, as the task says."""


@dataclass(frozen=True)
class Block:
    """The cells of some models in one group, item by item; see `statistics`."""

    counts: Array
    """Shape [settings, task experts, language experts, items, repeats x statistics], those of a
    repeat side by side."""

    present: Mask
    """Shape [settings, task experts, language experts]: which cells there are. A setting with one
    expert of a role has the same cell at every place of that axis."""

    weights: npt.NDArray[np.object_]
    """`weights_key` per cell, shaped as `present`: equal where two cells are one model."""

    single: Statistic
    """Sums of a cell's single repeat to its score."""

    is_binary: bool
    """Whether every item is right or wrong; never with several repeats."""

    repeats: int = 1
    """Samples of every item."""

    def statistic(self, sums: Array) -> Array:
        """Return the scores of sums over items, shape [..., repeats x statistics] to [...]."""
        each = self.single(sums.reshape(*sums.shape[:-1], self.repeats, -1))
        return np.asarray(each.mean(axis=-1))

    def values(self, counts: Array) -> Array:
        """Return what items (and repeats) of such `counts` add to their cell's score."""
        return item_values(counts, self.single, self.repeats)

    def average(self) -> float:
        """Return the mean score over the cells that there are."""
        return float(self.statistic(self.counts.sum(axis=3))[self.present].mean())


class Observations:
    """The cells of a run by what they are, with their items."""

    def __init__(self, run: Run) -> None:
        """Index the cells of `run`. Items are read when they are asked for, once."""
        self.run = run
        self.groups = groups(run.study)
        self._cells: dict[_Place, CellRecord] = {}
        for cell in run.cells:
            place = (
                cell.kind,
                setting_key(cell.values),
                cell.experts.get("task"),
                cell.experts.get("language"),
                cell.experts.get("base"),
            )
            self._cells[place] = cell
        self._codes = run.study.experts.languages()
        self._items: dict[str, Mapping[tuple[str, str, str], Mapping[Item, object]]] = {}

    def cells(self, model: Model, group: Group) -> dict[tuple[str, str], CellRecord | None]:
        """Return the cells of `model` in `group` by (task expert, language expert); None for gaps.

        A role that the model does not come from is ``""``: a task expert has a cell per task
        expert, the base a single one.
        """
        pools = itertools.product(*self._pools(model, group))
        return {pair: self._cell(model, *pair) for pair in pools}

    def _cell(self, model: Model, task: str, language: str) -> CellRecord | None:
        base = model.base if "base" in model.roles else None
        return self._cells.get((model.kind, model.setting, task or None, language or None, base))

    def _pools(self, model: Model, group: Group) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return task and language experts; ``""`` at every place for a role it does not have."""
        # Without a recipe, experts of several names are models of their own, and not as many each.
        is_merged = self.run.study.recipe is not None
        tasks, languages = (group.task_experts, group.language_experts) if is_merged else (1, 1)
        language = tuple(n for n in model.language if self._codes.get(n) == group.language)
        return (
            model.task if "task" in model.roles else ("",) * tasks,
            language if "language" in model.roles else ("",) * languages,
        )

    def measures(self, group: Group) -> tuple[Measure, ...]:
        """Return what to show of `group`: a metric per task, in the order of the study.

        Cells of another language do not count; those of no language only for tasks that
        the cells of this language have too, if there is any such cell.
        """
        scores = self._scores_of(group)
        wanted = self.run.study.report
        tasks = [task for task in wanted.tasks if task in scores] or list(scores)
        found = []
        for task in tasks:
            named = [score for score in scores[task] if score.metric == wanted.metric]
            score = (named or scores[task])[0]
            found.append(
                Measure(task, score.metric, score.filter, score.is_share, score.higher_is_better)
            )
        return tuple(found)

    def measured(self) -> Iterator[tuple[Group, Measure]]:
        """Yield what is measured, group by group."""
        for group in self.groups:
            for measure in self.measures(group):
                yield group, measure

    def score(self, cell: CellRecord, measure: Measure) -> TaskScore | None:
        """Return the score of `cell`; None where it was not asked."""
        for score in cell.scores:
            if (score.task, score.metric, score.filter) == _key(measure):
                return score
        return None

    def block(
        self, models: Sequence[Model], group: Group, measure: Measure, items: Sequence[Item]
    ) -> Block | None:
        """Return the block of `models` over `items`; None where no cell has them.

        Args:
            models: the settings to average over.
            group: gives the experts.
            measure: the score.
            items: from `items`, in the order to use.
        """
        pools = [self._pools(model, group) for model in models]
        sizes = [max(len(pool) for pool in role) for role in zip(*pools, strict=True)]
        shape = (len(models), *sizes)
        present = np.zeros(shape, dtype=bool)
        found: dict[tuple[int, ...], Array] = {}
        weights = np.full(shape, None, dtype=np.object_)
        for place in np.ndindex(*shape):
            setting, *index = place
            pair = [_at(pool, at) for pool, at in zip(pools[setting], index, strict=True)]
            cell = None if None in pair else self._cell(models[setting], *map(str, pair))
            if cell is None:
                continue
            weights[place] = cell.weights_key
            values = self._values(cell, measure)
            if values and all(item in values for item in items):
                present[place] = True
                found[place] = _counts([values[item] for item in items])
        if not found or not items:
            return None
        width = next(iter(found.values())).shape[-1]
        counts = np.zeros((*shape, len(items), width))
        for place, rows in found.items():
            counts[place] = rows
        scores = [score for cell in self.members(group) if (score := self.score(cell, measure))]
        corpus = corpus_metric(measure.metric, scores[0].signature)
        return _block(counts, present, weights, corpus, scores[0].repeats)

    def items(self, group: Group, measure: Measure) -> tuple[Item, ...]:
        """Return the items that every cell of `group` answered, in the order of their split.

        Empty where no item has a value of its own, as for perplexity.
        """
        common: set[Item] | None = None
        for cell in self.members(group):
            values = self._values(cell, measure)
            if values:
                common = set(values) if common is None else common & set(values)
        return tuple(sorted(common or ()))

    def members(self, group: Group) -> list[CellRecord]:
        """Return the finished cells of `group`: those of its language and those of none."""
        return [
            cell
            for cell in self.run.cells
            if cell.language == group.language or "language" not in cell.experts
        ]

    def _scores_of(self, group: Group) -> dict[str, list[TaskScore]]:
        members = self.members(group)
        own = [cell for cell in members if "language" in cell.experts] or members
        scores: dict[str, list[TaskScore]] = {}
        for task, score in ((score.task, score) for cell in own for score in cell.scores):
            known = scores.setdefault(task, [])
            if all((s.metric, s.filter) != (score.metric, score.filter) for s in known):
                known.append(score)
        return scores

    def _values(self, cell: CellRecord, measure: Measure) -> Mapping[Item, object]:
        if not measure.is_share:
            return {}
        record = next((task for task in cell.tasks if _has(task, measure)), None)
        # Cells that are one model have one record of a task.
        if record is not None and record.key not in self._items:
            self._items[record.key] = read_items(record)
        return {} if record is None else self._items[record.key].get(_key(measure), {})


def read_items(record: TaskRecord) -> dict[tuple[str, str, str], Mapping[Item, object]]:
    """Return (task, metric, filter) -> item -> its value, or its counts of a corpus metric.

    Where items were sampled several times, the values or counts of all repeats, side by side.
    """
    read: dict[tuple[str, str, str], dict[int, dict[Item, object]]] = {}
    for sample in record.samples():
        for metric, value in sample.values.items():
            repeats = read.setdefault((sample.task, metric, sample.filter), {})
            repeats.setdefault(sample.repeat, {})[sample.doc_id, sample.doc_hash] = value
    scores = record.evaluation.scores
    signatures = {(s.task, s.metric, s.filter): s.signature for s in scores}
    found: dict[tuple[str, str, str], Mapping[Item, object]] = {}
    for key, repeats in read.items():
        corpus = corpus_metric(key[1], signatures.get(key))
        counted = [_counted(values, corpus) for values in repeats.values()]
        common = [item for item in counted[0] if all(item in each for each in counted)]
        found[key] = counted[0]
        if len(counted) > 1:
            found[key] = {
                item: np.hstack([_row(each[item]) for each in counted]) for item in common
            }
    return found


def block_of_one(
    values: Mapping[Item, object], items: Sequence[Item], weights_key: str, score: TaskScore
) -> Block:
    """Return the block of a single cell.

    Args:
        values: of one metric, from `read_items`.
        items: in the order to use.
        weights_key: of the cell's model.
        score: whose metric it is.
    """
    counts = _counts([values[item] for item in items])[None, None, None]
    weights = np.full((1, 1, 1), weights_key, dtype=np.object_)
    present = np.ones((1, 1, 1), dtype=bool)
    corpus = corpus_metric(score.metric, score.signature)
    return _block(counts, present, weights, corpus, score.repeats)


def _block(
    counts: Array,
    present: Mask,
    weights: npt.NDArray[np.object_],
    corpus: CorpusMetric | None,
    repeats: int,
) -> Block:
    is_corpus = counts.shape[-1] > repeats and corpus is not None
    is_single = repeats == 1 and not is_corpus
    return Block(
        counts=counts,
        present=present,
        weights=weights,
        single=corpus.score if corpus and is_corpus else _mean_of(counts.shape[-2]),
        is_binary=is_single and bool(np.isin(counts, (0.0, 1.0)).all()),
        repeats=repeats,
    )


def _has(record: TaskRecord, measure: Measure) -> bool:
    return any(score.task == measure.task for score in record.evaluation.scores)


def _at(pool: Sequence[str], index: int) -> str | None:
    """Return the expert at a place; a single one stands at every place."""
    return pool[0] if len(pool) == 1 else pool[index] if index < len(pool) else None


def _key(measure: Measure) -> tuple[str, str, str]:
    return measure.task, measure.metric, measure.filter


def _counted(values: Mapping[Item, object], corpus: CorpusMetric | None) -> Mapping[Item, object]:
    """Return numbers: of texts the counts of their metric, and nothing of one that is unknown."""
    pairs = [value for value in values.values() if isinstance(value, tuple)]
    if not pairs:
        return values
    if corpus is None:
        return {}
    rows = corpus.counts([prediction for _, prediction in pairs], [gold for gold, _ in pairs])
    return dict(zip(values, rows.astype(np.float64), strict=True))


def _row(value: object) -> Array:
    return np.atleast_1d(np.asarray(value, dtype=np.float64))


def _counts(values: Sequence[object]) -> Array:
    rows = np.array(values, dtype=np.float64)
    return rows if rows.ndim == 2 else rows[:, None]


def _mean_of(items: int) -> Statistic:
    return lambda sums: np.asarray(sums[..., 0] / items, dtype=np.float64)
