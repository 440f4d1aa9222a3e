"""A study's plan as text: its cells with their layers, and what is left to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from ablations.engines.work_size import TaskSize
from ablations.study.cells import Cell
from ablations.study.documents import unmerged
from ablations.study.planning import StudyPlan
from layerswap_method.checkpoint.stored import torch_dtype
from layerswap_method.methods.layer_swap import NAME as LAYER_SWAP
from layerswap_method.methods.read import recipe_by_files
from layerswap_method.plan import draw_line


def counted(count: int, thing: str) -> str:
    """Return ``1 cell`` or ``2 cells``."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def describe_plan(
    plan: StudyPlan,
    *,
    materialize: bool,
    selected: Collection[str] | None = None,
    finished: Collection[str] = (),
    sizes: Mapping[str, TaskSize | str] | None = None,
) -> str:
    """Return the plan: experts, notes, cells with their layers drawn, cost.

    Args:
        plan: the plan.
        materialize: whether every merge is written to disk.
        selected: labels of the cells that ``--only`` leaves; None for all.
        finished: keys of the records that are there.
        sizes: task -> its size; with None, items and tokens are left out.
    """
    study = plan.study
    lines = [f"study {study.name}: {study.question}"]
    lines += [f"  source: {study.source}"] if study.source else []
    lines += [f"  {name}: {expert.reference}" for name, expert in plan.experts.items()]
    lines += [f"  note: {note}" for note in plan.notes]
    groups = plan.groups()
    number = {group[0].weights_key: index for index, group in enumerate(groups, start=1)}
    cells = [cell for cell in plan.cells if selected is None or cell.label in selected]
    done = {cell.label for cell in plan.cells if set(cell.records.values()) <= set(finished)}
    width = max(len(cell.label) for cell in cells)
    legend = "█ language, ▒ average, · task"
    lines += ["", f"{counted(len(cells), 'cell')} (layers from the input side; {legend}):"]
    for cell in cells:
        ended = "  finished" if cell.label in done else ""
        place = f"{number[cell.weights_key]:3d}  {cell.weights_key[:8]}"
        lines.append(f"  {place}  {cell.label:{width}}  {_drawn(cell)}{ended}")
    todo: dict[str, Cell] = {}
    for cell in cells:
        if cell.label not in done:
            todo.setdefault(cell.weights_key, cell)
    left = {
        key: task for cell in cells for task, key in cell.records.items() if key not in finished
    }
    if not left:
        return "\n".join([*lines, "", "cost: none; every task of these cells is finished"])
    return "\n".join(
        [
            *lines,
            "",
            f"cost: {counted(len(left), 'evaluation')} for {counted(len(cells), 'cell')}, on "
            f"{plan.backend} in {plan.options.dtype}",
            f"  tasks: {', '.join(dict.fromkeys(left.values()))}; "
            f"items per task: {study.evaluate.limit or 'all'}",
            f"  models to load: {len(todo)}",
            _disk(plan, [*todo.values()], materialize=materialize),
            *_work(plan, Counter(left.values()), sizes or {}),
        ]
    )


def _disk(plan: StudyPlan, todo: Sequence[Cell], *, materialize: bool) -> str:
    """Return which merges become checkpoints: those that no running engine can take."""
    from rich.filesize import decimal

    adapted = {each.reference for each in plan.experts.values() if each.adapter is not None}
    count = size = 0
    for cell in todo:
        is_streamed = not materialize and recipe_by_files(cell.merge) is not None
        if not is_streamed and unmerged(cell.merge) in (None, *adapted):
            dtype = str(cell.merge.get("out_dtype") or cell.merge.get("dtype") or "auto")
            dtype = plan.options.dtype if dtype == "auto" else dtype.removeprefix("torch.")
            count += 1
            size += plan.num_weights * (4 if dtype == "auto" else torch_dtype(dtype).itemsize)
    return f"  checkpoints written to disk: {count} ({decimal(size)} in all, one at a time)"


def _work(
    plan: StudyPlan, times: Mapping[str, int], sizes: Mapping[str, TaskSize | str]
) -> list[str]:
    known = {task: each for task, each in sizes.items() if isinstance(each, TaskSize)}
    lines = []
    if known:
        items = sum(times[task] * size.items for task, size in known.items())
        prompts = sum(times[task] * size.prompt_tokens for task, size in known.items())
        answers = sum(times[task] * size.answer_tokens for task, size in known.items())
        what = "items with repeats" if plan.study.evaluate.repeats > 1 else "items"
        lines += [
            f"  {what}: {items:,}; tokens: about {prompts:,} in prompts and at most {answers:,} "
            "in answers"
        ]
    uncounted: dict[str, list[str]] = {}
    for task, size in sizes.items():
        if isinstance(size, str):
            uncounted.setdefault(size, []).append(task)
    return [*lines, *(f"  {', '.join(t)}: not counted: {why}" for why, t in uncounted.items())]


def _drawn(cell: Cell) -> str:
    if cell.merge["merge_method"] == LAYER_SWAP and cell.plan is None:
        return "(by the experts' changes, measured at the merge)"
    if cell.plan is None:
        return f"({cell.merge['merge_method']})" if cell.kind != "base" else "(unmerged)"
    return draw_line(cell.plan)
