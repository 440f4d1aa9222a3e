"""The tables of a report: which rows and columns, and what stands in them. Knows no file format.

Layouts follow the paper (arXiv 2410.01335): Table 1 (average and best over pairs, models as
columns) and Table 2 (worst, average, best, English, all tasks), and add the b × u grid. Table 6
is in `souping`; tables per factor, of comparisons and of cells are in `detail_tables`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ablations.machine.names import slug
from ablations.report.baselines import baseline_rows, baselines
from ablations.report.comparisons import MOST_SETTINGS
from ablations.report.design import Group, Model, recipe_models, varies_experts
from ablations.report.document import Entry, Table, gap, text_entries
from ablations.report.factors import factors
from ablations.report.observations import Measure, Observations
from ablations.report.summaries import Summaries, Summary
from ablations.report.targets import in_order, is_english
from ablations.report.wording import score_name
from ablations.statistics.as_text import number, with_interval

_UNITS = "Scores in percent; BLEU and chrF++ on a scale of 0 to 100."
AVERAGE_NOTE = (
    f"Averages over pairs of experts; their intervals are over experts and items. {_UNITS}"
)
RUNS_NOTE = (
    "Names with a range of numbers are averages over training runs; their intervals are over runs "
    f"and items. {_UNITS}"
)
_ITEMS_ONLY = "the intervals are over items and do not cover another training run."
SINGLE_NOTE = f"One pair of experts: {_ITEMS_ONLY} {_UNITS}"
CHOSEN_NOTE = f"One pair of experts in each setting: {_ITEMS_ONLY} {_UNITS}"
HIGHEST_NOTE = "The highest of several scores is too high by chance, so it has no interval here."
BEST_NOTE = (
    "The best of several settings is chosen anew for every row, on the same items; its name is "
    "beside it. The primary comparisons test a setting on other items than it was chosen on."
)

_ENDS = {"worst": "min", "average": "avg", "best": "max"}
"""What of the pairs a row shows."""


def entry(summary: Summary | None, measure: Measure, what: str = "average") -> Entry:
    """Return the entry of one end of a summary; of the average with its interval."""
    if summary is None:
        return gap()
    value = float(getattr(summary, what))
    interval = summary.interval if what == "average" else None
    text = with_interval(value, interval, measure.is_share)
    is_gap = summary.cells < summary.expected
    if is_gap:
        text += f" ({summary.cells} of {summary.expected} cells)"
    return Entry(text, value, is_gap)


def has_pairs(observations: Observations) -> bool:
    """Return whether some group has several pairs of experts."""
    return any(group.task_experts * group.language_experts > 1 for group in observations.groups)


def scope_note(observations: Observations) -> str:
    """Return what the averages and intervals of a table are over."""
    if has_pairs(observations):
        return AVERAGE_NOTE if observations.run.study.recipe is not None else RUNS_NOTE
    return CHOSEN_NOTE if varies_experts(observations.run.study) else SINGLE_NOTE


def pairs_table(summaries: Summaries) -> Table:
    """Return the layout of Table 1: average and best over pairs, models as columns."""
    columns = _Columns(summaries)
    rows = [
        row
        for group, measure in in_order(summaries.observations)
        for row in columns.rows(group, measure, "average", "best")
    ]
    return columns.table("pairs", "Scores by model (layout of Table 1)", rows)


def overview_table(summaries: Summaries) -> Table:
    """Return the layout of Table 2: worst, average and best, English, all tasks."""
    columns = _Columns(summaries)
    rows: list[tuple[Entry, ...]] = []
    for group in summaries.observations.groups:
        measures = [m for g, m in in_order(summaries.observations) if g == group]
        for measure in measures:
            ends = ["average"] if is_english(measure.task) else ["worst", "average", "best"]
            rows += columns.rows(group, measure, *ends)
        together = [m for m in measures if m.is_share and m.metric == measures[0].metric]
        if len(together) > 1:
            code = f" ({group.label})" if group.label else ""
            number_of = "both" if len(together) == 2 else f"all {len(together)}"
            name = f"{number_of} {together[0].metric.replace('_', ' ')} tasks{code}"
            rows.append((*text_entries([name, "avg"]), *columns.averages(group, together)))
    is_merged = summaries.observations.run.study.recipe is not None
    over = "pairs" if is_merged else "training runs"
    return columns.table(
        "overview",
        f"Worst, average and best over {over}; English; all tasks (layout of Table 2)",
        rows,
        "The average of all tasks weighs every task alike; it has no interval.",
    )


def grid_tables(summaries: Summaries) -> Iterator[Table]:
    """Yield, per measure, b × u where the study varies both freely."""
    observations = summaries.observations
    for group, measure in in_order(observations):
        cells = grid(summaries, group, measure)
        if cells is None:
            return
        bottoms, tops, found = cells
        yield Table(
            slug(f"grid-{measure.task}-{group.label}"),
            f"{score_name(measure, group)}: layers at bottom (b) and top (u)",
            ("b \\ u", *(f"u={top}" for top in tops)),
            tuple(
                (
                    Entry(f"b={bottom}", float(bottom)),
                    *(entry(found[bottom, top], measure) for top in tops),
                )
                for bottom in bottoms
            ),
            (scope_note(observations),),
        )


def grid(
    summaries: Summaries, group: Group, measure: Measure
) -> tuple[list[int], list[int], dict[tuple[int, int], Summary | None]] | None:
    """Return the values of b, those of u, and the summary of each combination.

    None where the study does not vary both freely. Other factors are averaged over.
    """
    by_name = {each.names: each for each in factors(summaries.observations.run.study)}
    bottom, top = by_name.get(("bottom_layers",)), by_name.get(("top_layers",))
    if bottom is None or top is None:
        return None
    found = {
        (int(row.value or 0), int(column.value or 0)): summaries.of(
            [model for model in row.models if model in column.models], group, measure
        )
        for row in bottom.levels
        for column in top.levels
    }
    return sorted({b for b, _ in found}), sorted({u for _, u in found}), found


class _Columns:
    """The models of the main tables; of many settings their average and their best only."""

    def __init__(self, summaries: Summaries) -> None:
        study = summaries.observations.run.study
        self._summaries = summaries
        self._has_pairs = has_pairs(summaries.observations)
        self._recipes = recipe_models(study)
        self.has_best = len(self._recipes) > MOST_SETTINGS
        single: tuple[Model, ...] = () if self.has_best else self._recipes
        self._models = [[model] for model in (*baselines(study), *single)]
        self.labels = [models[0].label for models in self._models]
        if self.has_best:
            rows = baseline_rows(study)
            self._models, self.labels = [list(each) for each in rows.values()], list(rows)
            self._models.append(list(self._recipes))
            number_of = len(self._recipes)
            self.labels += [f"average of {number_of} settings", f"best of {number_of} settings"]

    def rows(self, group: Group, measure: Measure, *ends: str) -> Iterator[tuple[Entry, ...]]:
        """Yield a row per end of the pairs; that of the average alone where there is one pair."""
        for what in ends if self._has_pairs else ("average",):
            found = [self._summaries.of(each, group, measure) for each in self._models]
            entries = [entry(each, measure, what) for each in found]
            if self.has_best:
                entries.append(self._best(group, measure, what))
            yield (*text_entries([score_name(measure, group), _ENDS[what]]), *entries)

    def table(self, key: str, title: str, rows: Sequence[tuple[Entry, ...]], *notes: str) -> Table:
        """Return a table of these columns, with what its numbers mean."""
        scope = scope_note(self._summaries.observations)
        highest = (HIGHEST_NOTE,) if self._has_pairs or self.has_best else ()
        best = (*highest, BEST_NOTE) if self.has_best else highest
        heads = ("task", "over pairs", *self.labels)
        return Table(key, title, heads, tuple(rows), (scope, *best, *notes), text_columns=2)

    def averages(self, group: Group, measures: Sequence[Measure]) -> list[Entry]:
        """Return, per column, the mean over `measures` of the averages."""
        found = [self._mean(models, group, measures) for models in self._models]
        if self.has_best:
            known = [
                (entry, model)
                for model in self._recipes
                if (entry := self._mean([model], group, measures)).value is not None
            ]
            sign = 1 if measures[0].higher_is_better else -1
            best = max(known, key=lambda each: sign * (each[0].value or 0.0), default=None)
            found.append(
                gap()
                if best is None
                else replace(best[0], text=f"{best[0].text} ({best[1].short})")
            )
        return found

    def _mean(self, models: Sequence[Model], group: Group, measures: Sequence[Measure]) -> Entry:
        """Return the mean over `measures` of the averages; a gap where one of them is missing."""
        each = [self._summaries.of(models, group, measure) for measure in measures]
        known = [summary for summary in each if summary is not None]
        if len(known) < len(measures):
            return gap()
        value = sum(summary.average for summary in known) / len(known)
        is_gap = any(summary.cells < summary.expected for summary in known)
        return Entry(number(value, True) + " (gaps)" * is_gap, value, is_gap)

    def _best(self, group: Group, measure: Measure, what: str) -> Entry:
        best = self._summaries.best_of(self._recipes, group, measure, what)
        if best is None:
            return gap()
        model, summary = best
        value = float(getattr(summary, what))
        is_gap = summary.cells < summary.expected
        return Entry(f"{number(value, measure.is_share)} ({model.short})", value, is_gap)
