"""Does a swap beat both experts and their soup on the pocket? Several bases, several expert pairs.

Builds every base with its pairs, gates it, and evaluates all as any study does. What is done is
kept: the same command goes on. How training or evaluating works is known elsewhere.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ablations.engines.backends import resolve_backend
from ablations.engines.options import BackendChoice, EngineOptions
from ablations.evaluate.claim_found import (
    GATE,
    RIVALS,
    SOURCE,
    TARGET,
    TRANSLATION,
    Base,
    Claim,
    Scores,
)
from ablations.evaluate.retrieval import measure_retrieval
from ablations.machine.whole_files import write_text
from ablations.pocket.build import PocketPaths, build_pocket
from ablations.pocket.config import PocketConfig, Preset
from ablations.runner.records import CellRecord, load_run
from ablations.runner.run import RunOptions, check_folder, run_file
from ablations.study.experts import ExpertsFile
from ablations.study.files import StudyFile
from ablations.study.schema import Evaluate, Pools, Study, Value
from layerswap_method.errors import LayerSwapError

logger = logging.getLogger(__name__)

RESULT = "claim.json"
"""In the folder of the claim: what was found so far."""
ITEMS_SEED = 20261123
"""Of the test items. No other testbed asks them: they were drawn when bases, experts and swap were
settled, by scores on the items of `ablations.pocket.tasks.Evaluation`."""
PLACEMENTS: Mapping[str, Mapping[str, Value]] = {
    "swap": {"placement": "outer"},
    "middle": {"placement": "middle"},
    "random": {"placement": "random"},
}
"""Row of the table -> setting of the recipe: the swap, and as many layers elsewhere."""
_NAME = "pocket_claim"
_OPTIONS = EngineOptions(dtype="float32", kv_cache_gib=1, gpu_memory_utilization=0.3)


def run_claim(
    out: Path, *, bases: int, pairs: int, limit: int, preset: Preset, backend: BackendChoice
) -> Claim:
    """Build, evaluate and compare; finished work is reused.

    Args:
        out: folder for a testbed and a run of each base, and for `RESULT`.
        bases: number of bases, of seeds 0, 1, ...
        pairs: of experts, for each base.
        limit: items of each task.
        preset: of the testbeds.
        backend: what evaluates.

    Raises:
        LayerSwapError: if no base passes the gate, or a part fails.
    """
    chosen = resolve_backend(backend)
    found = Claim(())
    for seed in range(bases):
        config = PocketConfig.preset(preset, seed=seed, expert_seeds=tuple(range(pairs)))
        items = config.evaluation.model_copy(update={"seed": ITEMS_SEED})
        config = config.model_copy(update={"evaluation": items})
        logger.info("base %d of %d", seed + 1, bases)
        paths = build_pocket(out / f"pocket-{seed}", config)
        run = out / f"run-{seed}"
        check_folder(run, _NAME)
        options = RunOptions(experts=_experts(paths, pairs), backend=chosen)
        study = _study(paths, pairs, limit)
        done = run_file(StudyFile(Path(_NAME), study, ()), run, options).summary
        if done.failed:
            raise LayerSwapError("; ".join(f"{k}: {error}" for k, error in done.failed.items()))
        cells = load_run(run).cells
        reached = _reached(cells, paths.base)
        takes_part = preset == "tiny" or _passes(reached)
        base = Base(seed, reached, takes_part, _collect(cells, pairs))
        found = Claim((*found.bases, base))
        write_text(out / RESULT, found.as_json() + "\n")
    if not found.scores:
        raise LayerSwapError(
            f"no base of {bases} passes the gate; what each reached is in {out / RESULT}"
        )
    return found


def _experts(paths: PocketPaths, pairs: int) -> ExpertsFile:
    names = {f"{role}-{i}": f"{role}-{i}" if i else role for i in range(pairs) for role in _ROLES}
    folders = {name: str(paths.root / folder) for name, folder in names.items()}
    return ExpertsFile(experts={"base": str(paths.base), **folders})


_ROLES = ("task", "language")


def _study(paths: PocketPaths, pairs: int, limit: int) -> Study:
    models = [{"model": role, "parameters": {"role": role}} for role in _ROLES]
    recipe = {
        "merge_method": "layer_swap",
        "models": models,
        "base_model": "base",
        "parameters": {"bottom_layers": 1, "top_layers": 1},  # the paper's {5, 2} of 32, of 8
    }
    settings: list[dict[str, Value]] = [
        {f"experts.{role}": f"{role}-{i}" for role in _ROLES} | dict(placement)
        for placement in PLACEMENTS.values()
        for i in range(pairs)
    ]
    return Study(
        name=_NAME,
        question="Does a swap beat both experts and their soup on target-language math?",
        recipe=recipe,
        baseline=("base", *RIVALS),
        vary=tuple(settings),
        experts=Pools(base="base"),
        evaluate=Evaluate(
            tasks=(TARGET, SOURCE, TRANSLATION),
            include_path=str(paths.tasks_dir),
            limit=limit,
            options=_OPTIONS,
        ),
    )


def _reached(cells: Sequence[CellRecord], base: Path) -> dict[str, float]:
    """Return what the base is gated by, and its retrieval of rare words."""
    cell = next(cell for cell in cells if cell.kind == "base")
    retrieval = measure_retrieval(base)
    reached = {task: float(_values(cell, task).mean()) for task in (SOURCE, TRANSLATION)} | {
        "retrieval_common": retrieval.common,
        "retrieval_rare": retrieval.rare,
    }
    logger.info("  the base: %s", ", ".join(f"{name} {v:.3f}" for name, v in reached.items()))
    return reached


def _passes(reached: Mapping[str, float]) -> bool:
    missed = [f"{name} below {value}" for name, value in GATE.items() if reached[name] < value]
    if missed:
        logger.info("  gated out: %s", ", ".join(missed))
    return not missed


def _collect(cells: Sequence[CellRecord], pairs: int) -> Scores:
    """Return the values of every row; a base counts once a pair."""
    tasks = (TARGET, SOURCE)
    rows: dict[str, list[CellRecord]] = {}
    for cell in cells:
        placement = cell.values.get("placement")
        named = [row for row, setting in PLACEMENTS.items() if setting["placement"] == placement]
        rows.setdefault(named[0] if cell.kind == "recipe" else cell.kind, []).append(cell)
    return {
        row: {
            task: np.stack([_values(found[i % len(found)], task) for i in range(pairs)])
            for task in tasks
        }
        for row, found in rows.items()
    }


def _values(cell: CellRecord, task: str) -> npt.NDArray[np.float64]:
    """Return the exact match of every item, in their order."""
    record = next(each for each in cell.tasks if each.task == task)
    samples = [sample for sample in record.samples() if "exact_match" in sample.values]
    samples.sort(key=lambda sample: sample.doc_id)
    return np.array([sample.values["exact_match"] for sample in samples], dtype=np.float64)
