"""From nothing to merged and evaluated models: the order of the steps and what is kept of them.

Knows the pocket testbed, the merge program and the runner of studies; how each works is theirs.
"""

from __future__ import annotations

import importlib.metadata
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import layerswap_method
from ablations.engines.backends import describe_backend, resolve_backend
from ablations.engines.options import BackendChoice, EngineOptions
from ablations.evaluate.table import render_table
from ablations.gallery.find import find_recipe, redirect_recipe
from ablations.machine.fingerprint import fingerprint_checkpoint, fingerprint_of
from ablations.machine.mergekit_program import merge
from ablations.machine.progress import Step, tell
from ablations.machine.status_line import status_line
from ablations.pocket.build import PocketPaths, build_pocket
from ablations.pocket.config import PocketConfig
from ablations.runner.records import load_run
from ablations.runner.results import RESULTS_FILE
from ablations.runner.run import RunOptions, check_folder, run_file
from ablations.scoring.records import Evaluation
from ablations.study.experts import ExpertsFile
from ablations.study.files import StudyFile
from ablations.study.schema import Evaluate, Pools, Study
from layerswap_method.algorithm.plan import LayerPlan
from layerswap_method.errors import LayerSwapError
from layerswap_method.layer_swap.drawing import draw_plan
from layerswap_method.layer_swap.report import read_plan

logger = logging.getLogger(__name__)

_RECIPES_POCKET = Path("runs/pocket")
"""The folder that the pocket recipes name."""

TASKS = (
    "pocket_math_sw",
    "pocket_math_en",
    "pocket_translate_en_sw",
    "pocket_translate_sw_en",
    "pocket_comprehension_sw",
    "pocket_facts_sw",
)
_NAME = "quickstart"
_MERGES = {"soup": "pocket/soup.yml", "layer swap": "pocket/layer_swap.yml"}
_FOLDERS = ("merged", "recipes")
"""What is in the run folder before the study is run."""

_OPTIONS = EngineOptions(kv_cache_gib=1, gpu_memory_utilization=0.3)
"""The pocket models are tiny: room is left for whatever else runs on the machine."""

READING = """\
What this shows: experts trained here were merged by mergekit's own mergekit-yaml, and every model
was evaluated by lm-eval on the same items. The task expert learned math in English only: what it
gains in the target language was carried over. The language expert learned words, and no math.
What it does not show: the paper's effect. The models have under a million weights and a templated
world, so which one wins says nothing about real experts. The interval of a score is over items: a
difference within it is no evidence.
"""
NEXT = """\
Next, with real experts (or local folders in their place; each recipe says what it needs):
  mergekit-yaml recipes/swahili.yml ./merged
  layerswap pocket build --preset full     # three pairs of experts, more items
"""


@dataclass(frozen=True)
class QuickstartResult:
    """What the quickstart found."""

    evaluations: Mapping[str, Evaluation]
    """Row name to evaluation, in the order of the table."""

    plan: LayerPlan | None
    """Which layer came from whom in the layer swap."""

    out: Path
    """Folder with `results.json`, the merged models and the records."""

    def report(self, width: int = 100) -> str:
        """Return the table, the plan drawn, and how to read them."""
        table = render_table(self.evaluations, TASKS, strip_prefix="pocket_", width=width)
        level = next(iter(self.evaluations.values())).scores[0].interval
        drawn = "" if self.plan is None else f"The layer swap:\n{draw_plan(self.plan)}\n\n"
        percent = "" if level is None else f" with {100 * level.level:.0f} % intervals"
        return (
            f"Percent{percent}; the target language is sw:\n\n{table}\n\n{drawn}{READING}\n"
            f"Scores: {self.out / RESULTS_FILE}; one record per item: "
            f"{self.out / 'records' / 'KEY' / 'samples.jsonl'}\n\n{NEXT}"
        )


def run_quickstart(
    out: Path, *, pocket: Path, backend: BackendChoice, limit: int, config: PocketConfig
) -> QuickstartResult:
    """Train (or find) the pocket experts, merge them, evaluate everything.

    Finished work is reused where its inputs have not changed. Progress goes to the
    log of this package.

    Args:
        out: folder for merges, evaluations and `results.json`.
        pocket: folder of the pocket testbed.
        backend: which engine evaluates.
        limit: items per task.
        config: what the testbed is made of.

    Raises:
        LayerSwapError: when a step fails; InputError when the user can mend it.
    """
    chosen = resolve_backend(backend)
    check_folder(out, _NAME, own=_FOLDERS)
    with _step("1/3", f"pocket experts in {pocket} (minutes the first time, on two cores)"):
        paths = build_pocket(pocket, config)
    with _step("2/3", "merges, by mergekit-yaml"), status_line():
        merged = {name: _merge(name, recipe, paths, out) for name, recipe in _MERGES.items()}
    models = {
        "base": paths.base,
        "task expert": paths.task,
        "language expert": paths.language,
        **merged,
    }
    with _step(
        "3/3", f"evaluation by lm-eval, up to {limit} items per task, on {describe_backend(chosen)}"
    ):
        options = RunOptions(
            experts=ExpertsFile(experts={name: str(folder) for name, folder in models.items()}),
            backend=chosen,
        )
        study = StudyFile(Path(f"layerswap {_NAME}"), _study(paths, limit), ())
        with status_line():
            done = run_file(study, out, options).summary
        for label in done.before:
            logger.info("  %s: evaluated before, nothing has changed", label)
        if done.failed:
            raise LayerSwapError("; ".join(f"{k}: {error}" for k, error in done.failed.items()))
    cells = {next(iter(cell.experts.values())): cell for cell in load_run(out).cells}
    evaluations = {name: cells[name].evaluation() for name in models}
    return QuickstartResult(evaluations, read_plan(merged["layer swap"]), out)


def _study(paths: PocketPaths, limit: int) -> Study:
    """Return the study of the models as they are; those that were merged are task experts too."""
    return Study(
        name=_NAME,
        question="What do the pocket models score?",
        baseline=("base", "task_expert", "language_expert"),
        experts=Pools(base="base", task=("task expert", *_MERGES), language=("language expert",)),
        evaluate=Evaluate(
            tasks=TASKS, include_path=str(paths.tasks_dir), limit=limit, options=_OPTIONS
        ),
    )


@contextmanager
def _step(number: str, what: str) -> Iterator[None]:
    """Say that a step begins, and how long it took."""
    logger.info("[%s] %s", number, what)
    started = time.monotonic()
    yield
    logger.info("[%s] done in %.1f s", number, time.monotonic() - started)


def _merge(name: str, recipe_name: str, paths: PocketPaths, out: Path) -> Path:
    """Merge a pocket recipe and return the folder of the result."""
    started = time.monotonic()
    recipe = find_recipe(recipe_name)
    if paths.root != _RECIPES_POCKET.resolve():
        adjusted = out / "recipes" / recipe.name
        redirect_recipe(recipe, _RECIPES_POCKET.as_posix(), paths.root, adjusted)
        logger.info(
            "  %s: the recipe names %s; %s names %s", name, _RECIPES_POCKET, adjusted, paths.root
        )
        recipe = adjusted
    fingerprint = fingerprint_of(
        recipe=recipe.read_text(encoding="utf-8"),
        models=[fingerprint_checkpoint(each) for each in (paths.base, paths.task, paths.language)],
        versions={each: importlib.metadata.version(each) for each in ("mergekit", "torch")},
        method=layerswap_method.METHOD_VERSION,
    )
    folder = out / "merged" / recipe.stem
    tell(Step(f"merging {name} by mergekit-yaml"))
    if merge(recipe, folder, fingerprint=fingerprint):
        logger.info("  %s: mergekit-yaml %s, %.1f s", name, recipe, time.monotonic() - started)
    else:
        logger.info("  %s: merged before from the same inputs, in %s", name, folder)
    return folder
