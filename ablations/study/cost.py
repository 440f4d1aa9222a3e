"""What running cells will cost: engine starts, loads, checkpoints. Counts; starts no engine.

Cells meet engines as in `ablations.runner.engines`: one after the other, each in the dtype of its
model. Headers, configs and tokenizers are read here, no weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ablations.engines.donor import differences
from ablations.study.cells import Cell
from ablations.study.planning import StudyPlan
from ablations.study.streams import engine_options, unmerged
from layerswap_method.checkpoints.spans import torch_dtype
from layerswap_method.merge_stream import can_stream, donor
from layerswap_method.stream.weight_stream import checkpoint_stream


@dataclass(frozen=True)
class Cost:
    """What the cells take that have no record yet."""

    engine_starts: int
    """Of live engines and fresh ones; with several at once, as if all cells took as long."""

    dtypes: tuple[str, ...]
    """In which live engines run, in the order of the cells."""

    loads: int
    """Cells whose tensors are put into a live engine."""

    checkpoints: int
    """Merges that mergekit-yaml writes to disk."""

    checkpoint_bytes: int
    """Size of their weights, all together."""

    unfit: Mapping[str, int]
    """Why cells need a fresh engine -> how many they are."""


@dataclass(frozen=True)
class _Need:
    """What one cell needs of its engine, and of the disk."""

    dtype: str
    unfit: str | None
    written_bytes: int
    """0 where mergekit-yaml writes no checkpoint for it."""


def cost_of(plan: StudyPlan, cells: Sequence[Cell], *, materialize: bool, jobs: int) -> Cost:
    """Return the cost of `cells`, which have different scores.

    Args:
        plan: the plan that they are of.
        cells: in their order.
        materialize: whether every merge is written to disk.
        jobs: engines at once, 1 or more.
    """
    reader = _NeedReader(plan, materialize=materialize)
    needs = [reader.read(cell) for cell in cells]
    running: dict[int, str | None] = {}
    starts = loads = 0
    for index, need in enumerate(needs):
        place, is_fresh = index % jobs, materialize or need.unfit is not None
        starts += is_fresh or running.get(place) != need.dtype
        loads += not is_fresh
        running[place] = None if is_fresh else need.dtype
    return Cost(
        engine_starts=starts,
        dtypes=tuple(dict.fromkeys(need.dtype for need in needs if need.unfit is None)),
        loads=loads,
        checkpoints=sum(need.written_bytes > 0 for need in needs),
        checkpoint_bytes=sum(need.written_bytes for need in needs),
        unfit=Counter(need.unfit for need in needs if need.unfit is not None),
    )


class _NeedReader:
    """Reads each folder once."""

    def __init__(self, plan: StudyPlan, *, materialize: bool):
        self._materialize = materialize
        self._num_weights = plan.num_weights
        self._options = plan.options
        self._experts = {expert.reference: expert for expert in plan.experts.values()}
        self._base = plan.base.folder
        self._dtypes: dict[Path, str | None] = {}
        self._differences: dict[Path, str] = {}

    def read(self, cell: Cell) -> _Need:
        merge, folder = cell.merge, self._experts[donor(cell.merge)].folder
        stated = merge.get("out_dtype") or merge.get("dtype") or self._dtype(folder)
        base = self._dtype(self._base)
        dtype = engine_options(self._options, stated, base).dtype
        unfit = self._difference(folder) or None
        if dtype == "auto" and stated != base:
            unfit = f"it is a {stated} model and the engine runs {base}"
        is_written = not can_stream(merge) or self._materialize or unfit is not None
        if is_written and (single := unmerged(merge)) is not None:
            is_written = self._experts[single].adapter is not None
        size = 4 if stated is None else torch_dtype(stated.removeprefix("torch.")).itemsize
        runs_in = stated if dtype == "auto" and stated is not None else dtype
        return _Need(runs_in, unfit, self._num_weights * size if is_written else 0)

    def _dtype(self, folder: Path) -> str | None:
        if folder not in self._dtypes:
            self._dtypes[folder] = checkpoint_stream(folder).model_dtype
        return self._dtypes[folder]

    def _difference(self, folder: Path) -> str:
        if folder not in self._differences:
            try:
                found = differences(folder, self._base)
            except Exception:  # a tokenizer that cannot be read: its cells fail and say so
                found = []
            text = f"its {', '.join(found)} (from {folder}) would differ from the engine's"
            self._differences[folder] = text if found else ""
        return self._differences[folder]
