"""A study's plan as text: its cells with their layers, and what it will cost. Knows no engine."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ablations.study.cells import Cell
from ablations.study.documents import unmerged
from ablations.study.planning import StudyPlan
from layerswap_method.checkpoints.spans import torch_dtype
from layerswap_method.layer_swap.drawing import SYMBOLS, draw_line
from layerswap_method.merge_stream import can_stream


def counted(count: int, thing: str) -> str:
    """Return ``1 cell`` or ``2 cells``."""
    return f"{count} {thing}{'' if count == 1 else 's'}"


def describe_plan(
    plan: StudyPlan,
    *,
    materialize: bool,
    jobs: int,
    selected: Collection[str] | None = None,
    finished: Collection[str] = (),
) -> str:
    """Return the plan: experts, notes, cells with their layers drawn, cost.

    Args:
        plan: the plan.
        materialize: whether every merge is written to disk.
        jobs: engines at once.
        selected: labels of the cells that ``--only`` leaves; None for all.
        finished: keys of the records that are there.
    """
    study = plan.study
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
        [*lines, "", *_cost(plan, [*todo.values()], left, len(cells), materialize, jobs)]
    )


def _cost(
    plan: StudyPlan,
    todo: Sequence[Cell],
    left: Mapping[str, str],
    cells: int,
    materialize: bool,
    jobs: int,
) -> list[str]:
    # A model that the running engine refuses needs one of its own, which is not counted.
    adapted = {each.reference for each in plan.experts.values() if each.adapter is not None}
    written = [
        cell
        for cell in todo
        if (materialize or not can_stream(cell.merge)) and unmerged(cell.merge) in (None, *adapted)
    ]
    size = plan.num_weights * sum(_bytes_each(plan, cell) for cell in written)
    starts = len(todo) if materialize else min(jobs, len(todo))
    return [
        f"cost: {counted(len(left), 'evaluation')} for {counted(cells, 'cell')}, on "
        f"{plan.backend} in {plan.options.dtype}",
        f"  tasks: {', '.join(dict.fromkeys(left.values())) or 'none'}; "
        f"items a task: {plan.study.evaluate.limit or 'all'}",
        f"  engine starts: {starts}; loads into a live engine: {0 if materialize else len(todo)}",
        f"  checkpoints written by mergekit: {len(written)} ({_size(size)} in all, one at a time)",
    ]


def _bytes_each(plan: StudyPlan, cell: Cell) -> int:
    """Return the bytes of one number in the checkpoint of a merge."""
    stated = cell.merge.get("out_dtype") or cell.merge.get("dtype") or plan.options.dtype
    return 4 if stated == "auto" else torch_dtype(str(stated).removeprefix("torch.")).itemsize


def _drawn(cell: Cell) -> str:
    if cell.recipe is not None and cell.plan is None:
        return "(by the experts' changes, measured at the merge)"
    if cell.plan is None:
        return f"({cell.merge['merge_method']})" if cell.kind != "base" else "(unmerged)"
    return draw_line(cell.plan)


def _legend() -> str:
    return ", ".join(f"{SYMBOLS[name]} {name}" for name in reversed(SYMBOLS))


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return ""
