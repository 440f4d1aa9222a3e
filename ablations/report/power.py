"""How large differences a study can show, and what a finished run varied by."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from ablations.drawing.text_table import list_table, text_table
from ablations.report.analysis import Analysis
from ablations.report.comparisons import rows_of
from ablations.report.contrasts import contrasts
from ablations.statistics.as_text import percent
from ablations.statistics.means_and_p_values import Array, alpha_of
from ablations.statistics.power import (
    Design,
    Spread,
    experts_needed,
    items_needed,
    smallest_difference,
    spread_of,
)
from ablations.study.schema import Study
from layerswap_method.errors import counted

POWER = 0.8
"""Probability with which a difference is to be seen."""

LOWEST, HIGHEST = 0.03, 0.97
"""Scores between which power over several experts is stated: beyond, it was off by up to .09."""

_ITEMS = (100, 250, 500, 1000)
_EXPERTS = (1, 2, 3, 5)
_MOST_EXPERTS = 30

_WIDTH, _NAME = 80, 42
"""Characters of a line, and of the name of a comparison in a table."""


@dataclass(frozen=True)
class PowerTable:
    """The smallest differences that a study's planned comparisons would probably show.

    `table` has a row for each planned comparison and task: ``first``, ``second``, ``task``,
    ``items``, ``task_experts``, ``language_experts``, ``base_rate`` (score of the second model; NaN
    for other scores than right and wrong answers), ``disagreement`` (of these, the share of items
    on which two models disagree; else the mean square of an item's difference), ``task_sd`` and
    ``language_sd`` (standard deviations between experts; NaN for one expert), ``smallest`` (the
    difference that is seen with a probability of 80 %; NaN where none is), ``is_stated`` (false for
    several experts with scores below 3 % or above 97 %) and, for a given `difference`,
    ``items_needed`` and ``experts_needed`` of each role. Differences are
    on the scale of the score. `grid` has the smallest difference by items (rows) and experts of
    each role (columns), for the comparison whose standard error is the median; more than one expert
    only where it is known how experts of both roles differ.
    """

    source: str
    alpha: float
    """Two-sided level of each comparison, divided by their number as Holm's method begins."""

    difference: float | None
    table: pd.DataFrame
    entries: Sequence[StudyDifference] = field(repr=False)
    notes: tuple[str, ...]

    @cached_property
    def grid(self) -> pd.DataFrame:
        """The smallest differences by items and experts, which take seconds."""
        middle = self.entries[_middle(self.entries)]
        return pd.DataFrame(
            {
                n: [
                    _smallest(replace(middle, design=Design(size, n, n)), self.alpha)
                    for size in _ITEMS
                ]
                for n in (_EXPERTS if middle.are_experts_known else _EXPERTS[:1])
            },
            index=list(_ITEMS),
        )

    @property
    def sentence(self) -> str:
        """The answer, of the comparison whose standard error is the median."""
        middle = _middle(self.entries)
        entry, row = self.entries[middle], self.table.iloc[middle].to_dict()
        text = _sentence(entry, row["smallest"])
        if self.difference is None or not row["is_stated"]:
            return text
        return f"{text} {_needed_text(self.difference, entry, row)}"

    def grid_rows(self) -> list[dict[str, Any]]:
        """Return the cells of `grid`: items, experts of each role, smallest difference."""
        return [
            {"items": size, "experts": count, "smallest": self.grid.loc[size, count]}
            for size in self.grid.index
            for count in self.grid.columns
        ]

    def __repr__(self) -> str:
        return str(self)  # so a notebook shows it

    def __str__(self) -> str:
        return "\n\n".join(self._parts())

    def _parts(self) -> Iterator[str]:
        yield textwrap.fill(self.sentence, _WIDTH)
        yield from _table_texts(self.table, self.difference)
        heads = ["items", *(f"{n} × {n} experts" for n in self.grid.columns)]
        rows = [
            [str(items), *map(_points, row)]
            for items, row in zip(self.grid.index, self.grid.to_numpy(), strict=True)
        ]
        title = "Smallest difference in points that would probably be seen:"
        yield f"{title}\n\n{list_table(heads, rows, width=_WIDTH)}"
        yield "\n".join(textwrap.fill(note, _WIDTH) for note in self.notes)


def power_table(
    study: Study, source: str, planned: PlannedDifferences, wanted: float | None
) -> PowerTable:
    """Return what comparisons can show, and for `wanted` (on the scale of the score) what shows it.

    Args:
        study: whose comparisons they are.
        source: what says how much they vary, as text.
        planned: one or more comparisons.
        wanted: a difference to be seen; None for none.
    """
    alpha = _level(study, planned)
    table = pd.DataFrame([_row(entry, alpha, wanted) for entry in planned.entries])
    notes = (*_notes(source, planned, alpha),)
    return PowerTable(source, alpha, wanted, table, planned.entries, notes)


def _level(study: Study, planned: PlannedDifferences) -> float:
    """Return the p of each comparison that Holm's method begins with."""
    return alpha_of(study.evaluate.level) / planned.tests


def power_note(analysis: Analysis) -> str:
    """Return in one line how large differences a run could show; empty where none is planned."""
    return power_sentence(analysis.study, measured_differences(analysis))


def power_sentence(study: Study, planned: PlannedDifferences) -> str:
    """Return the answer in one line; empty where no comparison is planned."""
    if not planned.entries:
        return ""
    entry = planned.entries[_middle(planned.entries)]
    return _sentence(entry, _smallest(entry, _level(study, planned)))


@dataclass(frozen=True)
class StudyDifference:
    """A planned comparison on one task, with what its differences vary by."""

    first: str
    second: str
    task: str
    spread: Spread
    design: Design
    are_experts_known: bool = True
    """Whether the spread says how experts of both roles differ; one expert does not say that."""


@dataclass(frozen=True)
class PlannedDifferences:
    """The planned comparisons of a study, or those of a run that have a p."""

    entries: Sequence[StudyDifference]
    """Those of which it is known what their differences vary by."""

    other_experts: int = 0
    """How many others there are whose two sides have different experts."""

    incomplete: int = 0
    """How many others there are that lack pairs of experts, or have fewer than two items."""

    @property
    def tests(self) -> int:
        """How many are corrected together."""
        return len(self.entries) + self.other_experts + self.incomplete


def measured_differences(analysis: Analysis) -> PlannedDifferences:
    """Return the planned comparisons of a run: a difference is that of models of a pair."""
    by_name = {(c.first, c.second): c for c in contrasts(analysis.study, analysis.models)}
    pools = {model.label: model.pools for model in analysis.models}
    entries, other_experts, incomplete = list[StudyDifference](), 0, 0
    for row in analysis.comparisons:
        if row.family != "primary" or row.p is None:
            continue
        contrast = by_name[row.first, row.second]
        matrix = analysis.shown.matrices[row.task]
        sides = (contrast.first_models, contrast.second_models)
        first, second = (rows_of(matrix, models, row.language) for models in sides)
        differences = _differences(first, second)
        if differences is None:
            differ = have_other_experts(*([pools[name] for name in side] for side in sides))
            other_experts, incomplete = other_experts + differ, incomplete + (not differ)
            continue
        is_binary = bool(np.isin(matrix.to_numpy()[~matrix.isna().to_numpy()], (0, 1)).all())
        tasks, languages, items = differences.shape
        score = float(np.nanmean(second.to_numpy())) if is_binary else None
        spread, design = spread_of(differences, score), Design(items, tasks, languages)
        known = tasks > 1 and languages > 1
        entries.append(StudyDifference(row.first, row.second, row.task, spread, design, known))
    return PlannedDifferences(entries, other_experts, incomplete)


def have_other_experts(
    first: Sequence[Mapping[str, tuple[str, ...]]], second: Sequence[Mapping[str, tuple[str, ...]]]
) -> bool:
    """Return whether the models of two sides, by their pools, differ in the experts of a role.

    A side without the role, such as the base, has no others.
    """
    for role in ("task", "language"):
        of_sides = [
            {name for pools in side for name in pools.get(role, ())} for side in (first, second)
        ]
        if all(of_sides) and of_sides[0] != of_sides[1]:
            return True
    return False


def _differences(first: pd.DataFrame, second: pd.DataFrame) -> Array | None:
    """Return the differences of two sides, shape [task experts, language experts, items].

    None where a pair of experts is missing, or the sides have other experts of a role.
    """
    both = pd.concat([first, second]).dropna(axis="columns")
    names: list[list[str]] = []
    for role in ("task_expert", "language_expert"):
        of_sides = [{*side.index.get_level_values(role)} - {""} for side in (first, second)]
        if of_sides[0] and of_sides[1] and of_sides[0] != of_sides[1]:
            return None
        names.append(sorted(of_sides[0] | of_sides[1]) or [""])
    if both.shape[1] < 2:
        return None
    cube = np.empty((len(names[0]), len(names[1]), both.shape[1]))
    for i, task in enumerate(names[0]):
        for j, language in enumerate(names[1]):
            values = []
            for side in (first, second):
                index = side.index
                is_part = index.get_level_values("task_expert").isin((task, ""))
                is_part &= index.get_level_values("language_expert").isin((language, ""))
                if not is_part.any():
                    return None
                values.append(side.loc[is_part, both.columns].to_numpy().mean(axis=0))
            cube[i, j] = values[0] - values[1]
    return cube


def _row(entry: StudyDifference, alpha: float, wanted: float | None) -> dict[str, Any]:
    spread, design = entry.spread, entry.design
    row = {
        "first": entry.first,
        "second": entry.second,
        "task": entry.task,
        "items": design.items,
        "task_experts": design.task_experts,
        "language_experts": design.language_experts,
        "base_rate": spread.base_rate if spread.is_binary else math.nan,
        "disagreement": spread.disagreement,
        "task_sd": math.sqrt(spread.task) if design.task_experts > 1 else math.nan,
        "language_sd": math.sqrt(spread.language) if design.language_experts > 1 else math.nan,
        "smallest": _smallest(entry, alpha),
        "is_stated": _is_stated(entry),
    }
    if wanted is not None:
        row["items_needed"] = row["experts_needed"] = None
        if row["is_stated"]:
            row["items_needed"] = items_needed(wanted, spread, design, alpha, POWER)
        if entry.are_experts_known and _is_stated(
            replace(entry, design=Design(design.items, 2, 2))
        ):
            row["experts_needed"] = experts_needed(
                wanted, spread, design, _MOST_EXPERTS, alpha, POWER
            )
    return row


def _is_stated(entry: StudyDifference) -> bool:
    score = entry.spread.base_rate
    return entry.design.is_single or score is None or LOWEST <= score <= HIGHEST


def _middle(entries: Sequence[StudyDifference]) -> int:
    """Return the number of the comparison whose standard error is the median."""
    order = sorted(range(len(entries)), key=lambda number: _variance(entries[number]))
    stated = [number for number in order if _is_stated(entries[number])]
    order = stated or order
    return order[(len(order) - 1) // 2]


def _variance(entry: StudyDifference) -> float:
    """Return the variance of the mean difference."""
    spread, design = entry.spread, entry.design
    tasks, languages = design.task_experts, design.language_experts
    pairs = tasks * languages
    variance = (spread.items + spread.rest / pairs) / design.items
    parts = ((spread.task, tasks), (spread.language, languages), (spread.pair, pairs))
    return variance + sum(part / count for part, count in parts if count > 1)


def _sentence(entry: StudyDifference, smallest: float) -> str:
    design = entry.design
    if not _is_stated(entry):
        return "Scores so near 0 or 100 do not say which differences would be seen."
    experts = f"{design.task_experts} × {design.language_experts} experts"
    if math.isnan(smallest):
        return f"With {design.items} items and {experts}, no difference would probably be seen."
    size = f"differences of {percent(smallest)} points or more would probably be seen"
    if design.is_single:
        return (
            f"With {design.items} items and one pair of experts, {size}; they hold for that pair, "
            "not for other experts."
        )
    return f"With {design.items} items and {experts}, {size}."


def _needed_text(difference: float, entry: StudyDifference, row: Mapping[str, Any]) -> str:
    """Return how many items, and how many experts, show a difference."""
    items, experts = (_count(row[name]) for name in ("items_needed", "experts_needed"))
    what = f"{100 * difference:g} points"
    same = "that pair" if entry.design.is_single else "as many experts"
    number = f"about {items} items" if items else "no number of items"
    text = f"{what} would probably be seen with {number} for {same}"
    if not entry.are_experts_known:
        return f"{text}."
    if experts:
        return f"{text}, or on as many items with {experts} × {experts} experts."
    most = f"{_MOST_EXPERTS} × {_MOST_EXPERTS}"
    return f"{text}; on as many items no number of experts up to {most} shows it."


def _smallest(entry: StudyDifference, alpha: float) -> float:
    """Return the smallest difference that is seen; NaN where none is, or none is stated."""
    if not _is_stated(entry):
        return math.nan
    smallest = smallest_difference(entry.spread, entry.design, alpha, POWER)
    return math.nan if smallest is None else smallest


def _notes(source: str, planned: PlannedDifferences, alpha: float) -> Iterator[str]:
    entries = planned.entries
    yield (
        f"A difference is seen if p is below {alpha:.3g}: the study's level over "
        f"{counted(planned.tests, 'planned comparison')}, as Holm's method begins. It is seen with "
        f"a probability of {POWER:.0%}. What differences vary by is {source}."
    )
    for count, what in (
        (planned.other_experts, "whose two sides have different experts"),
        (planned.incomplete, "that lack results of pairs of experts"),
    ):
        if count:
            yield f"Not in the table: {counted(count, 'comparison')} {what}."
    if any(entry.design.is_single for entry in entries):
        yield (
            "One pair of experts does not say how experts differ: such a comparison holds for that "
            "pair, however many items there are."
        )
    for role in ("task", "language"):
        own = int(role == "language")
        if any(_numbers(entry)[own] == 1 < _numbers(entry)[1 - own] for entry in entries):
            yield (
                f"One {role} expert says nothing of how {role} experts differ: the comparison "
                "holds for this one."
            )
    if entries[_middle(entries)].are_experts_known or any({2, 3} & {*_numbers(e)} for e in entries):
        yield (
            "Several experts say what holds for others, too. Two or three of a role say little of "
            "how experts differ: the test has few degrees of freedom, which more items make fewer. "
            "So items do not make up for experts, and the smallest difference may grow with them."
        )
    beyond = dict.fromkeys(e.task for e in entries if not _is_stated(e))
    if beyond:
        yield (
            f"{', '.join(beyond)}: scores below {LOWEST:.0%} or above {HIGHEST:.0%} say too little "
            "of how experts differ, so no difference is stated."
        )


def _numbers(entry: StudyDifference) -> tuple[int, int]:
    return entry.design.task_experts, entry.design.language_experts


def _table_texts(table: pd.DataFrame, difference: float | None) -> Iterator[str]:
    """Yield a table for each task, number of items and experts; rows with equal numbers are one.

    Where all comparisons of all have equal numbers, which the sentence has, only their names.
    """
    heads = ["comparison", "smallest"]
    if difference is not None:
        heads += [f"{name} for {100 * difference:g}" for name in ("items", "experts")]
    groups: dict[str, dict[tuple[str, ...], list[str]]] = {}
    for row in table.to_dict("records"):
        experts = f"{row['task_experts']} × {row['language_experts']} experts"
        texts = [_points(row["smallest"]) if row["is_stated"] else "not stated"]
        if difference is not None:
            count = _count(row["experts_needed"])
            texts += [_count(row["items_needed"]) or "none", f"{count} × {count}" if count else ""]
        names = groups.setdefault(f"{row['task']}, {row['items']} items, {experts}:", {})
        names.setdefault((*texts,), []).append(f"{row['first']} minus {row['second']}")
    if len(groups) == 1 and len(rows := next(iter(groups.values()))) == 1:
        (title,), (names_of_row,) = groups, rows.values()
        yield textwrap.fill(f"Planned on {title} {'; '.join(names_of_row)}.", _WIDTH)
        return
    for title, rows in groups.items():
        used = [n for n, _ in enumerate(heads[1:]) if any(texts[n] for texts in rows)]
        lines = [
            ["\n".join(textwrap.fill(name, _NAME) for name in names), *(texts[n] for n in used)]
            for texts, names in rows.items()
        ]
        yield f"{title}\n\n{text_table([heads[0], *(heads[1 + n] for n in used)], lines)}"


def _points(value: float) -> str:
    return "none" if math.isnan(value) else percent(value)


def _count(value: float | None) -> str:
    """Return a number of items or experts; empty where none shows a difference."""
    return "" if value is None or math.isnan(value) else f"{value:.0f}"
