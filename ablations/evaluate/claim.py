"""Does a swap beat both experts and their soup on the pocket? Several bases, several expert pairs.

Builds every base with its pairs, evaluates them as any study does, and draws bases, pairs and
items again for the interval of ``swap - max(task expert, language expert, soup)``. What is done is
kept: the same command goes on. How training or evaluating works is known elsewhere.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ablations.engines.backends import resolve_backend
from ablations.engines.options import BackendChoice, EngineOptions
from ablations.pocket_build.build import PocketPaths, build_pocket
from ablations.pocket_build.config import PocketConfig, Preset
from ablations.runner.records import CellRecord, load_run
from ablations.runner.run import RunOptions, check_folder, run_file
from ablations.study.experts import ExpertsFile
from ablations.study.files import StudyFile
from ablations.study.schema import Evaluate, Pools, Study, Value
from layerswap_method.errors import LayerSwapError

logger = logging.getLogger(__name__)

TARGET, SOURCE = "pocket_math_sw", "pocket_math_en"
GATE = {"pocket_math_en": 0.3, "pocket_translate_sw_en": 0.3}
"""What a base must reach to take part (exact match, a share). Never a score of `TARGET`."""
RIVALS = ("task_expert", "language_expert", "soup")
PLACEMENTS: Mapping[str, Mapping[str, Value]] = {
    "swap": {"placement": "outer"},
    "middle": {"placement": "middle"},
    "random": {"placement": "random"},
}
"""Row of the table -> setting of the recipe: the swap, and as many layers elsewhere."""
_NAME = "pocket_claim"
_OPTIONS = EngineOptions(dtype="float32", kv_cache_gib=1, gpu_memory_utilization=0.3)

Scores = dict[str, dict[str, npt.NDArray[np.float64]]]
"""Row -> task -> ``[pairs, items]``, 0 or 1; one base."""


@dataclass(frozen=True)
class Claim:
    """What was found; scores and differences are shares."""

    scores: tuple[Scores, ...]
    """Of the bases that take part."""
    gated_out: tuple[int, ...]
    """Seeds of the bases that do not."""
    level: float = 0.95
    """Of the intervals."""
    resamples: int = 2000
    """Draws of bases, pairs and items."""

    def gain(self, rows: Sequence[str] = RIVALS, task: str = TARGET) -> tuple[float, float, float]:
        """Return the swap's mean score minus the best mean of `rows`, with its interval.

        The best of `rows` is chosen anew in every draw.
        """
        rng = np.random.default_rng(0)
        names = ("swap", *rows)
        values = np.stack([np.stack([one[name][task] for name in names]) for one in self.scores])
        bases, _, pairs, items = values.shape  # [bases, rows, pairs, items]
        draws = np.empty(self.resamples)
        for draw in range(self.resamples):
            weights = rng.multinomial(items, np.full(items, 1 / items)) / items
            means = values[rng.integers(bases, size=bases)] @ weights
            chosen = rng.integers(pairs, size=(bases, 1, pairs))
            drawn = np.take_along_axis(means, chosen, axis=2).mean(axis=(0, 2))
            draws[draw] = drawn[0] - drawn[1:].max()
        means = values.mean(axis=(0, 2, 3))
        low, high = np.quantile(draws, [(1 - self.level) / 2, (1 + self.level) / 2])
        return float(means[0] - means[1:].max()), float(low), float(high)

    def report(self) -> str:
        """Return the table and the answer."""
        rows = list(self.scores[0])
        lines = [
            "| model | target math | by base | English math |",
            "|---|---|---|---|",
            *(
                f"| {row.replace('_', ' ')} | {_mean(self.scores, row, TARGET):.3f} | "
                f"{' '.join(f'{one[row][TARGET].mean():.3f}' for one in self.scores)} | "
                f"{_mean(self.scores, row, SOURCE):.3f} |"
                for row in rows
            ),
        ]
        pairs, items = self.scores[0]["swap"][TARGET].shape
        compared = [
            (f"max({', '.join(name.replace('_', ' ') for name in RIVALS)})", self.gain()),
            *((name.replace("_", " "), self.gain((name,))) for name in rows if name != "swap"),
        ]
        return "\n".join(
            (
                *lines,
                "",
                f"bases: {len(self.scores)}; pairs each: {pairs}; items: {items}; bases gated out: "
                f"{', '.join(map(str, self.gated_out)) or 'none'}. Target math, swap minus",
                *(
                    f"- {name}: {mean:+.3f} [{low:+.3f}, {high:+.3f}]"
                    for name, (mean, low, high) in compared
                ),
            )
        )


def _mean(scores: Sequence[Scores], row: str, task: str) -> float:
    return float(np.mean([one[row][task].mean() for one in scores]))


def run_claim(
    out: Path, *, bases: int, pairs: int, limit: int, preset: Preset, backend: BackendChoice
) -> Claim:
    """Build, evaluate and compare; finished work is reused.

    Args:
        out: folder for a testbed and a run of each base.
        bases: number of bases, of seeds 0, 1, ...
        pairs: of experts, for each base.
        limit: items of each task.
        preset: of the testbeds.
        backend: what evaluates.

    Raises:
        LayerSwapError: if no base passes the gate, or a part fails.
    """
    chosen = resolve_backend(backend)
    scores: list[Scores] = []
    gated_out: list[int] = []
    for seed in range(bases):
        config = PocketConfig.preset(preset, seed=seed, expert_seeds=tuple(range(pairs)))
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
        if preset != "tiny" and not _passes(cells):
            gated_out.append(seed)
            continue
        scores.append(_collect(cells, pairs))
    if not scores:
        raise LayerSwapError(f"no base of {bases} passes the gate {GATE}; nothing to compare")
    return Claim(tuple(scores), tuple(gated_out))


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
            tasks=(TARGET, *GATE),
            include_path=str(paths.tasks_dir),
            limit=limit,
            options=_OPTIONS,
        ),
    )


def _passes(cells: Sequence[CellRecord]) -> bool:
    base = next(cell for cell in cells if cell.kind == "base")
    reached = {task: float(_values(base, task).mean()) for task in GATE}
    logger.info("  the base scores %s; it must reach %s", reached, GATE)
    return all(reached[task] >= needed for task, needed in GATE.items())


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
