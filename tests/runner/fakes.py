"""Cells and an engine of no model: scores drawn from the record's key, after a short wait."""

import json
import os
import random
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

from ablations.engines.options import EngineOptions
from ablations.machine.progress import Step, show_step
from ablations.models.find import Expert, find_model
from ablations.requests.known_tasks import KnownTasks
from ablations.requests.resolve import ResolvedTasks, resolve
from ablations.runner.jobs import run_cells
from ablations.runner.work import Work
from ablations.runs.run import load_run
from ablations.scoring.evaluation import (
    Evaluation,
    EvaluationRequest,
    Sample,
    TaskScore,
)
from ablations.statistics.intervals import wilson_interval
from ablations.study.cells import PlannedCell
from ablations.study.identity import folder_state
from ablations.study.made_by import made_by
from layerswap_method.errors import LayerSwapError
from layerswap_method.layer_plan import build_plan
from layerswap_method.methods.read import read_recipe
from tests.waiting import wait_until

TASK = "fake_math"
ITEMS = 20
NOWHERE = read_recipe({"merge_method": "passthrough", "models": [{"model": "/nowhere"}]})


def make_cells(count, *, per_group=1, tasks=(TASK,)):
    """Return `count` cells, every `per_group` of which share their weights."""
    alike = {
        "kind": "recipe",
        "experts": {"task": "math", "language": "swahili", "base": "base"},
        "language": "sw",
        "recipe": NOWHERE,
        "plan": build_plan(8, bottom_layers=1, top_layers=1),
        "made_by": "files",
        "donor": None,
        "resolved": _unread(EvaluationRequest(tasks=tuple(tasks))),
    }
    return [
        PlannedCell(
            **alike,
            label=f"bottom_layers={index}",
            values={"bottom_layers": index},
            weights_key=f"w{index // per_group:03d}",
            record_keys={task: key_of(index // per_group, task) for task in tasks},
        )
        for index in range(count)
    ]


def key_of(group, task=TASK):
    """Return the record's key of a task of the cells of a group."""
    return f"s{group:03d}{'' if task == TASK else f'-{task}'}"


def work_of(request, merge=None, name="x"):
    """Return the work of a single model on the one task of a request.

    One that names no folder is of a task that is not there, for what reads none.
    """
    (task,) = request.tasks
    resolved = resolve(request) if request.include_path else _unread(request)
    keys = {"weights_key": f"w {name}", "record_keys": {task: f"s {name}"}, "resolved": resolved}
    keys |= {"made_by": "files", "donor": None}
    recipe = NOWHERE if merge is None else read_recipe(merge)
    if merge is not None:
        keys["made_by"] = made_by(recipe, {name: find_model(name) for name in recipe.references})
    cell = PlannedCell(label=name, kind="recipe", values={}, experts={}, recipe=recipe, **keys)
    return Work(cell, task)


def _unread(request):
    return ResolvedTasks(request, KnownTasks(()), request.tasks, skipped={}, groups={})


def plan_of(*experts, options=None):
    """Return a plan of experts as they are now, the first of which is the base."""
    folders = [folder for e in experts for folder in (e.folder, e.adapter) if folder is not None]
    return SimpleNamespace(
        backend="hf",
        options=options or EngineOptions(batch_size=8),
        base=experts[0],
        experts={expert.name: expert for expert in experts},
        cells=(),
        merges={},
        states={str(folder): folder_state(folder) for folder in folders},
    )


def passthrough(expert: Expert):
    return {"merge_method": "passthrough", "models": [{"model": expert.reference}]}


def fake_evaluation(work):
    """Return what the engine says of `work`: the same in every process."""
    rng = random.Random(work.key)
    values = [float(rng.random() < 0.5) for _ in range(ITEMS)]
    alike = {"task": work.task, "filter": "none", "answers": ("x",)}
    alike |= {f"{name}_hash": name[0] for name in ("doc", "prompt", "target")}
    samples = tuple(
        Sample(
            **alike,
            doc_id=index,
            prompts=(f"what is {index}?\u2028",),
            target=str(index),
            responses=(str(rng.random()),),
            values={"exact_match": value},
        )
        for index, value in enumerate(values)
    )
    hits = int(sum(values))
    score = TaskScore(
        task=work.task,
        metric="exact_match",
        filter="none",
        n=ITEMS,
        value=hits / ITEMS,
        interval=wilson_interval(hits, ITEMS, 0.95),
        stderr=None,
        is_share=True,
        higher_is_better=True,
    )
    return Evaluation(
        model=work.cell.label,
        backend="hf",
        versions={"fake": "1"},
        elapsed_s=0.01,
        scores=(score,),
        samples=samples,
        task_versions={work.task: "1"},
        num_fewshot={work.task: 0},
    )


def evaluations(cell):
    """Return task -> what the engine says of a cell."""
    return {task: fake_evaluation(Work(cell, task)) for task in cell.record_keys}


@dataclass
class FakeEngine:
    """Evaluates work by its label; may wait, raise, or take its process down."""

    delay_s: float = 0.0
    raising: dict[str, Exception] = field(default_factory=dict)
    """Label, or record's key -> what is raised."""

    dying: tuple[str, ...] = ()
    journal: Path | None = None
    company: int = 1
    """Processes that must have begun before any goes on: none does it all where others are slow."""

    seen: list[str] = field(default_factory=list)

    def __call__(self):
        return self

    def evaluate(self, work):
        label = work.cell.label
        self.seen.append(work.key)
        if self.journal is not None:
            with self.journal.open("a") as file:
                file.write(f"{work.key} {os.getpid()}\n")
            wait_until(lambda: len({pid for _, pid in journal_of(self.journal)}) >= self.company)
        for done in range(0, ITEMS, 5):
            show_step(Step(work.task, done, ITEMS))
            time.sleep(self.delay_s / 4)
        if error := self.raising.get(label, self.raising.get(work.key)):
            raise error
        if label in self.dying:
            os.kill(os.getpid(), signal.SIGKILL)
        return fake_evaluation(work), {"weights": "fake"}

    def close(self):
        """Nothing is open."""


RAISES = LayerSwapError("the task has raised")


def run(out, cells, engine=None, **options):
    """Run cells in this process, or as `options` say."""
    return run_cells(out, cells, engine or FakeEngine(), **{"progress": False, **options})


def journal_of(path):
    """Return key and process of everything that was begun."""
    return [tuple(line.split()) for line in path.read_text().splitlines()]


def scores_on_disk(out):
    """Return the scores of every record, and the lines of its items."""
    found = {}
    for file in sorted((out / "records").glob("[!.]*")):
        head, _, items = file.read_text(encoding="utf-8").partition("\n")
        found[file.stem] = json.loads(head)["evaluation"]["scores"], items
    return found


def scores_by_label(out):
    """Return the scores and items of every cell by its label, task after task."""
    found = scores_on_disk(out)
    return {
        cell.label: tuple(part for record in cell.task_records for part in found[record.key])
        for cell in load_run(out).cells
    }
