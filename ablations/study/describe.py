"""A study's plan as text: its cells with their layers. What it costs is in `cost`."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ablations.engines.work_size import TaskSize
from ablations.study.cells import Cell
from ablations.study.cost import Rates, Running, cost_lines, counted
from ablations.study.planning import StudyPlan
from layerswap_method.drawing import SYMBOLS, draw_line
from layerswap_method.plan import Source


def describe_plan(
    plan: StudyPlan,
    *,
    materialize: bool,
    jobs: int,
    selected: Collection[str] | None = None,
    finished: Collection[str] = (),
    sizes: Mapping[str, TaskSize | str] | None = None,
    rates: Rates | None = None,
) -> str:
    """Return the plan: experts, notes, cells with their layers drawn, cost.

    Args:
        plan: the plan.
        materialize: whether every merge is written to disk.
        jobs: engines at once.
        selected: labels of the cells that ``--only`` leaves; None for all.
        finished: keys of the records that are there.
        sizes: task -> what it asks of a model; None says nothing of items and tokens.
        rates: what earlier records took; None where there are none.
    """
    study, run = plan.study, Running(materialize, jobs)
    lines = [f"study {study.name}: {study.question}"]
    lines += [f"  source: {study.source}"] if study.source else []
    lines += [f"  {name}: {expert.reference}" for name, expert in plan.experts.items()]
    lines += [f"  note: {note}" for note in plan.notes]
    groups = plan.groups()
    number = {group[0].weights_key: index for index, group in enumerate(groups, start=1)}
    cells = [cell for cell in plan.cells if selected is None or cell.label in selected]
    done = {cell.label for cell in plan.cells if set(cell.score_keys.values()) <= set(finished)}
    width = max(len(cell.label) for cell in cells)
    lines += ["", f"{counted(len(cells), 'cell')} (layers from the input side; {_legend()}):"]
    for cell in cells:
        ended = "  finished" if cell.label in done else ""
        place = f"{number[cell.weights_key]:3d}  {cell.weights_key[:8]}"
        lines.append(f"  {place}  {cell.label:{width}}  {_drawn(cell)}{ended}")
    todo: dict[str, Cell] = {}
    for cell in cells:
        if cell.label not in done:
            todo.setdefault(cell.weights_key, cell)
    left = {
        key: task for cell in cells for task, key in cell.score_keys.items() if key not in finished
    }
    return "\n".join(
        [*lines, "", *cost_lines(plan, [*todo.values()], left, len(cells), run, sizes, rates)]
    )


def _drawn(cell: Cell) -> str:
    if cell.recipe is not None and cell.plan is None:
        return "(by the experts' changes, measured at the merge)"
    if cell.plan is None:
        return f"({cell.merge['merge_method']})" if cell.kind != "base" else "(unmerged)"
    return draw_line(cell.plan)


def _legend() -> str:
    shown: tuple[Source, ...] = ("language", "average", "task")  # the base's layers are measured
    return ", ".join(f"{SYMBOLS[name]} {name}" for name in shown)
