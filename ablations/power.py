"""How large differences a study can show, by what a finished run varied by or by assumptions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ablations.drawing.text_table import list_table
from ablations.models.find import Expert
from ablations.report.analysis import analyse
from ablations.report.comparisons import rows_of
from ablations.report.contrasts import contrasts, primary_tasks
from ablations.runs.records import Run, load_run
from ablations.statistics.as_text import percent
from ablations.statistics.means_and_p_values import Array, alpha_of
from ablations.statistics.power import (
    Design,
    Spread,
    items_needed,
    power,
    smallest_difference,
    spread_of,
)
from ablations.study.checks import expert_names
from ablations.study.expansion import expand
from ablations.study.files import find_file, read_study
from ablations.study.grouping import derive_models
from ablations.study.schema import Study
from ablations.tasks.names import task_language
from layerswap_method.errors import InputError
from layerswap_method.recipe.references import is_folder

POWER = 0.8
"""Probability with which a difference is to be seen."""

ASSUMED = Spread(items=0.073, rest=0.103, task=0.0712**2, language=0.0343**2, pair=0.0268**2)
"""What differences vary by where nobody has measured it: the medians over the primary comparisons
of ablations/results/real_model, real_model_french and real_model_layers (SmolLM2-135M, math word
problems, 3 x 3 experts); `tests/power/test_power.py` computes them again."""

_ITEMS = (100, 250, 500, 1000)
_EXPERTS = (1, 2, 3, 5)
_MOST_EXPERTS = 30


@dataclass(frozen=True)
class PowerTable:
    """The smallest differences that a study's planned comparisons would probably show.

    `table` has a row for each planned comparison and task: ``first``, ``second``, ``task``,
    ``items``, ``task_experts``, ``language_experts``, ``disagreement`` (variance of one item's
    difference; of right and wrong answers, the share of items on which two models disagree),
    ``task_sd`` and ``language_sd`` (standard deviations between experts; NaN for one expert),
    ``smallest`` (the difference that is seen with a probability of 80 %; NaN where none is) and,
    for a given `difference`, ``items_needed`` and ``experts_needed`` of each role. Differences are
    on the scale of the score. `grid` has the smallest difference by items (rows) and experts of
    each role (columns), for the comparison whose ``smallest`` is the median.
    """

    source: str
    alpha: float
    """Two-sided level of each comparison, divided by their number as Holm's method begins."""

    difference: float | None
    table: pd.DataFrame
    grid: pd.DataFrame
    notes: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """The answer in one line."""
        row = self.table.iloc[_middle(self.table["smallest"])]
        size = f"{row['items']} items and {row['task_experts']} × {row['language_experts']} experts"
        if self.table["smallest"].isna().all():
            return f"With {size}, no difference would probably be seen."
        return (
            f"With {size}, differences of {percent(row['smallest'])} points or more would probably "
            "be seen."
        )

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
        yield self.sentence
        yield list_table(*_table_text(self.table, self.difference), width=80)
        heads = ["items", *(f"{n} × {n} experts" for n in self.grid.columns)]
        rows = [
            [str(items), *map(_points, row)]
            for items, row in zip(self.grid.index, self.grid.to_numpy(), strict=True)
        ]
        yield list_table(heads, rows, width=80)
        yield "\n".join(self.notes)


def power_of(
    place: str, *, items: int | None = None, difference: float | None = None
) -> PowerTable:
    """Return how large differences a study can show.

    Args:
        place: a run folder, whose answers say what differences vary by; or a study, for which
            `ASSUMED` does.
        items: of each task, in place of those of the run, or of the study's limit.
        difference: to be seen, in points; how many items or experts do so is added.

    Raises:
        InputError: for a place that is neither, a study without a number of items, or a run
            without a planned comparison that can be computed.
    """
    wanted = None if difference is None else difference / 100
    if wanted is not None and not 0 < wanted < 1:
        raise InputError(f"--difference is {difference:g}; give points above 0 and below 100")
    if is_folder(Path(place)):
        run = load_run(Path(place))
        study, measured = run.study, [*_measured(run)]
        source = f"measured in {place}"
        if not measured:
            raise InputError(
                f"{place}: no planned comparison has results of whole pairs of experts; "
                "layerswap run finishes it"
            )
    else:
        study = read_study(find_file(place, "study")).study
        source = (
            "assumed: the medians of the shipped results real_model, real_model_french and "
            "real_model_layers (SmolLM2-135M, math word problems)"
        )
        measured = [*_assumed(study, items)]
    alpha = alpha_of(study.evaluate.level) / max(len(measured), 1)
    rows = [_row(entry, items, alpha, wanted) for entry in measured]
    table = pd.DataFrame(rows)
    middle = measured[_middle(table["smallest"])]
    grid = pd.DataFrame(
        {
            n: [_smallest(middle.spread, Design(size, n, n), alpha) for size in _ITEMS]
            for n in _EXPERTS
        },
        index=list(_ITEMS),
    )
    return PowerTable(source, alpha, wanted, table, grid, (*_notes(source, measured, alpha),))


@dataclass(frozen=True)
class _Comparison:
    """A planned comparison on one task, with what its differences vary by."""

    first: str
    second: str
    task: str
    spread: Spread
    design: Design


def _measured(run: Run) -> Iterator[_Comparison]:
    """Yield the planned comparisons of a run whose differences are there for all its experts."""
    analysis = analyse(run)
    by_name = {(c.first, c.second): c for c in contrasts(analysis.study, analysis.models)}
    for row in analysis.comparisons:
        if row.family != "primary" or row.p is None:
            continue
        contrast = by_name[row.first, row.second]
        matrix = analysis.shown.matrices[row.task]
        sides = (contrast.first_models, contrast.second_models)
        first, second = (rows_of(matrix, models, row.language) for models in sides)
        differences = _differences(first, second)
        if differences is not None:
            is_binary = bool(np.isin(matrix.to_numpy()[~matrix.isna().to_numpy()], (0, 1)).all())
            tasks, languages, items = differences.shape
            yield _Comparison(
                row.first,
                row.second,
                row.task,
                spread_of(differences, is_binary=is_binary),
                Design(items, tasks, languages),
            )


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


def _assumed(study: Study, items: int | None) -> Iterator[_Comparison]:
    """Yield the planned comparisons of a study that nobody has run, with assumed spreads."""
    size = items or study.evaluate.limit
    if size is None:
        raise InputError(
            f"{study.name}: it has no evaluate.limit; say how many items a task has: --items 250"
        )
    experts = {name: Expert(name, Path("/experts", name)) for name in expert_names(study)}
    cells, problems = expand(study, experts, None)
    InputError.raise_any(study.name, problems)
    models = derive_models(study, cells, None)
    labels = {model.label: model.cells for model in models}
    by_label = {cell.label: cell for cell in cells}
    for contrast in contrasts(study, models):
        if not contrast.rival:
            continue
        names = (*contrast.first_models, *contrast.second_models)
        compared = [by_label[label] for name in names for label in labels[name]]
        for code in study.evaluate.languages or {"": ()}:
            # A language's experts are those of its cells, of which the task experts' have none.
            of_code = [cell for cell in compared if not code or cell.language in (None, "", code)]
            counts = (
                len({cell.experts[role] for cell in of_code if role in cell.experts})
                for role in ("task", "language")
            )
            design = Design(size, *(max(count, 1) for count in counts))
            tasks = [*study.evaluate.languages.get(code, ()), *study.evaluate.tasks]
            languages = {task: task_language(task, {}) for task in tasks}
            for task in primary_tasks(study, tasks, code, languages):
                yield _Comparison(contrast.first, contrast.second, task, ASSUMED, design)


def _row(
    entry: _Comparison, items: int | None, alpha: float, wanted: float | None
) -> dict[str, Any]:
    design, spread = entry.design, entry.spread
    if items is not None:
        design = Design(items, design.task_experts, design.language_experts)
    row = {
        "first": entry.first,
        "second": entry.second,
        "task": entry.task,
        "items": design.items,
        "task_experts": design.task_experts,
        "language_experts": design.language_experts,
        "disagreement": spread.disagreement,
        "task_sd": math.sqrt(spread.task) if design.task_experts > 1 else math.nan,
        "language_sd": math.sqrt(spread.language) if design.language_experts > 1 else math.nan,
        "smallest": _smallest(spread, design, alpha),
    }
    if wanted is not None:
        row["items_needed"] = items_needed(wanted, spread, design, alpha, POWER)
        row["experts_needed"] = next(
            (
                count
                for count in range(2, _MOST_EXPERTS + 1)
                if power(wanted, spread, Design(design.items, count, count), alpha) >= POWER
            ),
            None,
        )
    return row


def _middle(smallest: pd.Series) -> int:
    """Return the number of the row whose value is the median, or next to it."""
    return int((smallest - smallest.median()).abs().fillna(math.inf).argmin())


def _smallest(spread: Spread, design: Design, alpha: float) -> float:
    smallest = smallest_difference(spread, design, alpha, POWER)
    return math.nan if smallest is None else smallest


def _notes(source: str, entries: Sequence[_Comparison], alpha: float) -> Iterator[str]:
    yield (
        f"A difference is seen if p is below {alpha:.3g}: the study's level over "
        f"{len(entries)} planned comparisons, as Holm's method begins. It is seen with a "
        f"probability of {POWER:.0%}. What differences vary by is {source}."
    )
    if any(entry.design.is_single for entry in entries):
        yield (
            "With one pair of experts nothing says how experts differ: such a comparison holds for "
            "these experts, however many items there are."
        )
    if any(1 < min(e.design.task_experts, e.design.language_experts) < 4 for e in entries):
        yield (
            "Two or three experts of a role say little of how experts differ: the test has few "
            "degrees of freedom, and more items do not make up for experts."
        )


def _table_text(table: pd.DataFrame, difference: float | None) -> tuple[list[str], list[list[str]]]:
    heads = ["comparison", "task", "items", "experts", "smallest difference"]
    if difference is not None:
        points = percent(difference)
        heads += [f"items for {points}", f"experts for {points}"]
    rows = []
    for row in table.to_dict("records"):
        texts = [
            f"{row['first']} minus {row['second']}",
            row["task"],
            str(row["items"]),
            f"{row['task_experts']} × {row['language_experts']}",
            _points(row["smallest"]),
        ]
        if difference is not None:
            texts += [_count(row["items_needed"]), _count(row["experts_needed"], " × ")]
        rows.append(texts)
    return heads, rows


def _points(value: float) -> str:
    return "none" if math.isnan(value) else percent(value)


def _count(value: float | None, times: str = "") -> str:
    if value is None or math.isnan(value):
        return f"over {_MOST_EXPERTS} × {_MOST_EXPERTS}" if times else "no number does"
    return f"{value:.0f}{times}{value:.0f}" if times else f"{value:.0f}"
