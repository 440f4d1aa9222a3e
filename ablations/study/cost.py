"""What running cells will cost: engine starts, loads, checkpoints. Counts, and starts nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ablations.study.cells import Cell
from ablations.study.planning import StudyPlan
from ablations.study.streams import unmerged
from layerswap_method.checkpoints.spans import torch_dtype
from layerswap_method.merge_stream import can_stream


@dataclass(frozen=True)
class Cost:
    """What the cells take that have no record yet."""

    engine_starts: int
    """One for each job, or one for each cell where every merge is written to disk."""

    loads: int
    """Cells whose tensors are put into a running engine."""

    checkpoints: int
    """Merges that mergekit-yaml writes to disk."""

    checkpoint_bytes: int
    """Size of their weights, all together."""


def cost_of(plan: StudyPlan, cells: Sequence[Cell], *, materialize: bool, jobs: int) -> Cost:
    """Return the cost of `cells`, which have different scores.

    A model that the running engine refuses (another tokenizer, say) needs an engine of its own,
    which is not counted.

    Args:
        plan: the plan that they are of.
        cells: those to evaluate.
        materialize: whether every merge is written to disk.
        jobs: engines at once, 1 or more.
    """
    adapted = {each.reference for each in plan.experts.values() if each.adapter is not None}
    written = [
        cell
        for cell in cells
        if (materialize or not can_stream(cell.merge)) and unmerged(cell.merge) in (None, *adapted)
    ]
    return Cost(
        engine_starts=len(cells) if materialize else min(jobs, len(cells)),
        loads=0 if materialize else len(cells),
        checkpoints=len(written),
        checkpoint_bytes=plan.num_weights * sum(_bytes_each(plan, cell) for cell in written),
    )


def _bytes_each(plan: StudyPlan, cell: Cell) -> int:
    """Return the bytes of one number in the checkpoint of a merge."""
    stated = cell.merge.get("out_dtype") or cell.merge.get("dtype") or plan.options.dtype
    return 4 if stated == "auto" else torch_dtype(str(stated).removeprefix("torch.")).itemsize
