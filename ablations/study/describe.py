"""A study's plan as text: its cells with their layers, and what is left to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ablations.drawing.text_table import wrapped
from ablations.engines.backends import describe_start
from ablations.study.cells import ExpandedCell, PlannedCell
from ablations.study.planning import StudyPlan
from layerswap_method.checkpoint.stored import torch_dtype
from layerswap_method.errors import counted, size_text
from layerswap_method.hub.downloads import describe_needs
from layerswap_method.layer_plan import draw_line


def describe_study_plan(
    plan: StudyPlan,
    cells: Sequence[PlannedCell],
    *,
    materialize: bool,
    missing: Mapping[str, str] | None = None,
) -> str:
    """Return the plan: experts, notes, cells with their layers drawn, cost.

    Args:
        plan: the plan.
        cells: those of it that ``--only`` leaves.
        materialize: whether every merge is written to disk.
        missing: their `unfinished_records`, key -> task; None for all of their records.
    """
    study = plan.study
    keys = list(dict.fromkeys(cell.weights_key for cell in plan.cells))
    if missing is None:
        missing = {key: task for cell in cells for task, key in cell.record_keys.items()}
    done = {cell.label for cell in cells if missing.keys().isdisjoint(cell.record_keys.values())}
    width = max(len(cell.label) for cell in cells)
    legend = "layers from the input side; █ language, ▒ average, · task"
    if any(cell.plan is not None and "base" in cell.plan.sources for cell in cells):
        legend += ", ○ base"
    lines = [f"study {study.name}: {study.question}"]
    if study.source:
        lines.append(f"  source: {study.source}")
    lines += [
        *(f"  {name}: {expert.reference}" for name, expert in plan.experts.items()),
        *(wrapped(f"note: {note}", first="  ", indent="    ") for note in plan.notes),
        *(f"  {line}" for line in describe_needs(plan.needs)),
        "",
        f"{counted(len(cells), 'cell')} ({legend}):",
    ]
    for cell in cells:
        place = f"{keys.index(cell.weights_key) + 1:3d}  {cell.weights_key[:8]}"
        ended = "  finished" if cell.label in done else ""
        lines.append(f"  {place}  {cell.label:{width}}  {_layers(cell)}{ended}")
    if not missing:
        return "\n".join([*lines, "", "cost: none; every task of these cells is finished"])
    todo = {cell.weights_key: cell for cell in reversed(cells) if cell.label not in done}
    lines += [
        "",
        f"cost: {counted(len(missing), 'evaluation')} for {counted(len(cells), 'cell')}, on "
        f"{plan.backend} in {plan.options.dtype}",
        f"  engine: {describe_start(plan.backend, plan.options)}",
        f"  tasks: {', '.join(dict.fromkeys(missing.values()))}; "
        f"items per task: {study.evaluate.limit or 'all'}",
        f"  models to load: {len(todo)}",
        _disk(plan, todo.values(), materialize=materialize),
    ]
    return "\n".join(lines)


def _disk(plan: StudyPlan, todo: Iterable[PlannedCell], *, materialize: bool) -> str:
    """Return which merges become checkpoints: those that no running engine can take."""
    adapted = {expert.reference for expert in plan.experts.values() if expert.adapter is not None}
    sizes = []
    for cell in todo:
        is_written = cell.made_by == "mergekit" or (materialize and cell.made_by == "files")
        if is_written and cell.recipe.unmerged in (None, *adapted):
            dtype = (cell.recipe.written_dtype or plan.options.dtype).removeprefix("torch.")
            sizes.append(plan.num_weights * (4 if dtype == "auto" else torch_dtype(dtype).itemsize))
    total = size_text(sum(sizes))
    return f"  checkpoints written to disk: {len(sizes)} ({total} in all, one at a time)"


def _layers(cell: ExpandedCell) -> str:
    if cell.plan is not None:
        return draw_line(cell.plan)
    if cell.recipe.needs_deltas:
        return "(by the experts' changes, measured at the merge)"
    return "(unmerged)" if cell.kind == "base" else f"({cell.recipe.merge_method})"
