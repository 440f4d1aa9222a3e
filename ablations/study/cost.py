"""What running a study will take: engines, items, tokens, memory, time. Knows no engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from layerswap_method.methods.read import recipe_by_files

from ablations.engines.work_size import TaskSize, cache_bytes
from ablations.study.cells import Cell
from ablations.study.documents import unmerged
from ablations.study.planning import StudyPlan
from layerswap_method.checkpoint.stored import torch_dtype


@dataclass(frozen=True)
class Running:
    """How the cells are run."""

    materialize: bool
    """Whether every merge is written to disk."""

    jobs: int
    """Engines at once."""


@dataclass(frozen=True)
class Rates:
    """What earlier records of the same engine and model size took."""

    item_s: Mapping[str, float]
    """Task -> seconds an item."""

    model_s: float
    """Seconds a model, on average, for its merge, load and start."""

    records: int
    """How many records this is from."""


def counted(count: int, thing: str) -> str:
    """Return ``1 cell`` or ``2 cells``."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def cost_lines(
    plan: StudyPlan,
    todo: Sequence[Cell],
    left: Mapping[str, str],
    cells: int,
    run: Running,
    sizes: Mapping[str, TaskSize | str] | None,
    rates: Rates | None,
) -> list[str]:
    """Return the cost of what is left of a study.

    Args:
        plan: the study.
        todo: a cell for each model that is not finished.
        left: key of a record to be -> its task.
        cells: how many cells were chosen.
        run: how they are run.
        sizes: task -> its size, or why that is not known; None leaves the lines out.
        rates: what earlier records took; None where there are none.
    """
    if not left:
        return ["cost: none; every task of these cells is finished"]
    # A model that the running engine refuses needs one of its own, which is not counted.
    adapted = {each.reference for each in plan.experts.values() if each.adapter is not None}
    written = [
        cell
        for cell in todo
        if (run.materialize or recipe_by_files(cell.merge) is None)
        and unmerged(cell.merge) in (None, *adapted)
    ]
    size = plan.num_weights * sum(_bytes_each(plan, cell) for cell in written)
    starts = len(todo) if run.materialize else min(run.jobs, len(todo))
    lines = [
        f"cost: {counted(len(left), 'evaluation')} for {counted(cells, 'cell')}, on "
        f"{plan.backend} in {plan.options.dtype}",
        f"  tasks: {', '.join(dict.fromkeys(left.values()))}; "
        f"items per task: {plan.study.evaluate.limit or 'all'}",
        f"  engine starts: {starts}; loads into a live engine: "
        f"{0 if run.materialize else len(todo)}",
        f"  checkpoints written by mergekit: {len(written)} ({_size(size)} in all, one at a time)",
    ]
    if sizes is None:
        return lines
    times = Counter(left.values())
    known = {task: each for task, each in sizes.items() if isinstance(each, TaskSize)}
    lines += _work(times, known, plan.study.evaluate.repeats)
    lines += [
        f"  {task}: not counted: {why}" for task, why in sizes.items() if isinstance(why, str)
    ]
    lines += _memory(plan, known)
    return [*lines, _time(times, known, len(todo), run.jobs, rates)]


def _work(times: Mapping[str, int], sizes: Mapping[str, TaskSize], repeats: int) -> list[str]:
    if not sizes:
        return []
    items = sum(times[task] * size.items for task, size in sizes.items())
    prompts = sum(times[task] * size.prompt_tokens for task, size in sizes.items())
    answers = sum(times[task] * size.answer_tokens for task, size in sizes.items())
    what = "items with repeats" if repeats > 1 else "items"
    return [
        f"  {what}: {items:,}; tokens: about {prompts:,} in prompts and at most {answers:,} in "
        "answers"
    ]


def _memory(plan: StudyPlan, sizes: Mapping[str, TaskSize]) -> list[str]:
    dtype = plan.options.dtype
    if not plan.num_weights or dtype == "auto":
        return []
    number_bytes = torch_dtype(dtype).itemsize
    weights = plan.num_weights * number_bytes
    longest = max((size.longest for size in sizes.values()), default=0)
    each = cache_bytes(plan.base.folder, number_bytes)
    if not longest or each is None:
        return [f"  memory of an engine: {_size(weights)} for weights, and its cache"]
    batch = plan.options.batch_size
    cache = each * batch * longest
    shown = f"{_size(weights + cache)}: weights {_size(weights)}, and {_size(cache)} of cache"
    return [f"  memory of an engine: at least {shown} for {batch} sequences of {longest} tokens"]


def _time(
    times: Mapping[str, int],
    sizes: Mapping[str, TaskSize],
    models: int,
    jobs: int,
    rates: Rates | None,
) -> str:
    unknown = [task for task in times if task not in sizes or task not in (rates or _NONE).item_s]
    if rates is None or len(unknown) == len(times):
        return (
            "  time: not known yet: no earlier record of these tasks has this engine and model "
            "size; a short run (--limit 5) measures it"
        )
    asked = sum(
        times[task] * sizes[task].items * rates.item_s[task]
        for task in times
        if task not in unknown
    )
    seconds = (asked + models * rates.model_s) / jobs
    without = f", without {', '.join(unknown)} (no record yet)" if unknown else ""
    return (
        f"  time: about {_duration(seconds)}{without}, from {counted(rates.records, 'record')} of "
        "this engine and model size"
    )


_NONE = Rates({}, 0.0, 0)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def _bytes_each(plan: StudyPlan, cell: Cell) -> int:
    """Return the bytes of one number in the checkpoint of a merge."""
    stated = cell.merge.get("out_dtype") or cell.merge.get("dtype") or plan.options.dtype
    return 4 if stated == "auto" else torch_dtype(str(stated).removeprefix("torch.")).itemsize


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return ""
