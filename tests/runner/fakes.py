"""Cells and an evaluator of no model: scores drawn from the cell's key, after a short wait."""

import json
import os
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ablations.machine.progress import Step, tell
from ablations.runner import records
from ablations.runner.work import Done, Work
from ablations.scoring.intervals import wilson_interval
from ablations.scoring.records import Evaluation, EvaluationRequest, Sample, TaskScore
from ablations.study.cells import Cell
from layerswap_method.errors import LayerSwapError
from layerswap_method.plan import build_plan
from tests.waiting import wait_until

TASK = "fake_math"
ITEMS = 20


def make_cells(count: int, *, per_group: int = 1, tasks: Sequence[str] = (TASK,)) -> list[Cell]:
    """Return `count` cells, every `per_group` of which share their weights."""
    request = EvaluationRequest(tasks=tuple(tasks), include_path=Path("/nowhere"))
    return [
        Cell(
            label=f"bottom_layers={index}",
            kind="recipe",
            values={"bottom_layers": index},
            experts={"task": "math", "language": "swahili", "base": "base"},
            language="sw",
            merge={"merge_method": "layer_swap", "models": [{"model": "/nowhere"}]},
            plan=build_plan(8, bottom_layers=1, top_layers=1),
            request=request,
            weights_key=f"w{index // per_group:03d}",
            records={task: key_of(index // per_group, task) for task in tasks},
        )
        for index in range(count)
    ]


def key_of(group: int, task: str = TASK) -> str:
    """Return the score key of a task of the cells of a group."""
    return f"s{group:03d}{'' if task == TASK else f'-{task}'}"


def fake_evaluation(work: Work) -> Evaluation:
    """Return what the evaluator says of `work`: the same in every process."""
    rng = random.Random(work.score_key)
    values = [float(rng.random() < 0.5) for _ in range(ITEMS)]
    samples = tuple(
        Sample(
            task=work.task,
            filter="none",
            doc_id=index,
            prompts=(f"what is {index}?\u2028",),
            target=str(index),
            responses=(str(rng.random()),),
            answers=("x",),
            values={"exact_match": value},
            doc_hash="d",
            prompt_hash="p",
            target_hash="t",
        )
        for index, value in enumerate(values)
    )
    score = TaskScore(
        task=work.task,
        metric="exact_match",
        filter="none",
        value=sum(values) / ITEMS,
        is_share=True,
        interval=wilson_interval(int(sum(values)), ITEMS, 0.95),
        stderr=None,
        n=ITEMS,
        higher_is_better=True,
    )
    return Evaluation(
        model=work.label,
        backend="hf",
        scores=(score,),
        samples=samples,
        task_versions={work.task: "1"},
        num_fewshot={work.task: 0},
        versions={"fake": "1"},
        elapsed_s=0.01,
    )


def evaluations(cell: Cell) -> dict[str, Evaluation]:
    """Return task -> what the evaluator says of a cell."""
    works = [
        Work(cell.records[task], cell.weights_key, cell.label, cell.merge, request)
        for task, request in cell.requests.items()
    ]
    return {work.task: fake_evaluation(work) for work in works}


@dataclass
class FakeEvaluator:
    """Evaluates work by its label; may wait, raise, or take its process down."""

    delay_s: float = 0.0
    raising: tuple[str, ...] = ()
    dying: tuple[str, ...] = ()
    journal: Path | None = None
    company: int = 1
    """Processes that must have begun before any goes on: none does it all where others are slow."""

    wrong: tuple[str, ...] = ()
    """Score keys that the check at the end finds wrong."""

    seen: list[str] = field(default_factory=list)
    closed: bool = False

    def __call__(self) -> "FakeEvaluator":
        return self

    def evaluate(self, work: Work) -> Done:
        self.seen.append(work.score_key)
        if self.journal is not None:
            with self.journal.open("a") as file:
                file.write(f"{work.score_key} {os.getpid()}\n")
            wait_until(lambda: len(begun_by(self.journal)) >= self.company)
        for done in range(0, ITEMS, 5):
            tell(Step(work.task, done, ITEMS))
            time.sleep(self.delay_s / 4)
        if work.label in self.raising:
            raise LayerSwapError(f"{work.label}: the task has raised")
        if work.label in self.dying:
            os.kill(os.getpid(), signal.SIGKILL)
        return Done(fake_evaluation(work), {"load": 0.0, "evaluate": 0.01}, {"weights": "fake"})

    def check(self) -> dict[str, str]:
        return dict.fromkeys(self.wrong, "the engine forgot its weights")

    def close(self) -> None:
        self.closed = True


def begun_by(journal: Path) -> set[str]:
    """Return the ids of the processes that have begun an item."""
    return {line.split()[1] for line in journal.read_text().splitlines()}


def scores_on_disk(out: Path) -> dict[str, tuple[Any, ...]]:
    """Return the scores of every record, and the lines of its items."""
    found = {}
    for file in sorted((out / "records").glob("[!.]*")):
        head, _, items = file.read_text(encoding="utf-8").partition("\n")
        found[file.stem] = json.loads(head)["evaluation"]["scores"], items
    return found


def scores_by_label(out: Path) -> dict[str, tuple[Any, ...]]:
    """Return the scores and items of every cell by its label, task after task."""
    found = scores_on_disk(out)
    return {
        cell.label: tuple(part for task in cell.tasks for part in found[task.key])
        for cell in records.load_run(out).cells
    }
