"""Cells and an evaluator of no model: scores drawn from the cell's key, after a short wait."""

import json
import os
import random
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

from ablations.runner.work import Done, Work
from ablations.scoring.read_lm_eval import wilson_interval
from ablations.scoring.records import Evaluation, EvaluationRequest, Sample, TaskScore
from ablations.study.cells import Cell
from layerswap_method.errors import LayerSwapError
from layerswap_method.layer_swap.placements import build_plan
from tests.waiting import wait_until

TASK = "fake_math"
ITEMS = 20


def make_cells(count: int, *, per_group: int = 1) -> list[Cell]:
    """Return `count` cells, every `per_group` of which share their weights."""
    request = EvaluationRequest(tasks=(TASK,), include_path=Path("/nowhere"))
    return [
        Cell(
            study="fake",
            label=f"bottom_layers={index}",
            kind="recipe",
            values={"bottom_layers": index},
            experts={"task": "math", "language": "swahili", "base": "base"},
            language="sw",
            merge={"merge_method": "layer_swap", "models": [{"model": "/nowhere"}]},
            recipe=None,
            plan=build_plan(8, bottom_layers=1, top_layers=1),
            request=request,
            weights_key=f"w{index // per_group:03d}",
            score_key=f"s{index // per_group:03d}",
            key=f"k{index:03d}",
        )
        for index in range(count)
    ]


def fake_evaluation(work: Work) -> Evaluation:
    """Return what the evaluator says of `work`: the same in every process."""
    rng = random.Random(work.score_key)
    values = [float(rng.random() < 0.5) for _ in range(ITEMS)]
    samples = tuple(
        Sample(
            task=TASK,
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
        task=TASK,
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
        task_versions={TASK: "1"},
        num_fewshot={TASK: 0},
        versions={"fake": "1"},
        elapsed_s=0.01,
    )


@dataclass
class FakeEvaluator:
    """Evaluates work by its label; may wait, raise, or take its process down."""

    delay_s: float = 0.0
    raising: tuple[str, ...] = ()
    dying: tuple[str, ...] = ()
    journal: Path | None = None
    company: int = 1
    """Processes that must have begun before any goes on: none does it all where others are slow."""

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
        time.sleep(self.delay_s)
        if work.label in self.raising:
            raise LayerSwapError(f"{work.label}: the task has raised")
        if work.label in self.dying:
            os.kill(os.getpid(), signal.SIGKILL)
        return Done(fake_evaluation(work), {"load": 0.0, "evaluate": 0.01}, {"weights": "fake"})

    def close(self) -> None:
        self.closed = True


def begun_by(journal: Path) -> set[str]:
    """Return the ids of the processes that have begun an item."""
    return {line.split()[1] for line in journal.read_text().splitlines()}


def scores_on_disk(out: Path) -> dict[str, tuple[bytes, bytes, bytes]]:
    """Return the bytes of every finished cell's scores, samples and recipe."""
    return {
        folder.name: tuple(
            (folder / name).read_bytes() for name in ("scores.json", "samples.jsonl", "merge.yml")
        )
        for folder in sorted((out / "cells").iterdir())
        if not folder.name.startswith(".")
    }


def scores_by_label(out: Path) -> dict[str, tuple[bytes, bytes, bytes]]:
    """Return the bytes of every finished cell's scores, samples and recipe, by its label.

    For real engines: keys hold a hash of the code, which may change under a developer's tests.
    """
    labels = {
        path.parent.name: json.loads(path.read_text())["label"]
        for path in out.glob("cells/[!.]*/cell.json")
    }
    return {labels[key]: found for key, found in scores_on_disk(out).items()}
