"""Builds a pocket testbed: pretrains a base, trains experts on it, writes its tasks.

The base is pretrained by `pretraining`, or comes with the package. Its experts are trained as
`layerswap train pocket/math` and `pocket/swahili` train them: by the same code and training files.

What the testbed shows: experts made by SFT from one base, merged and evaluated with the real
tools anywhere. The math expert learns to think before it answers, in English only, and the target
language gains as well; the language expert learns rare words, and no math. Scores lie far from the
floor and far enough apart to be told apart.

What it does not show: real languages or real experts. The world is templated, the model has under
a million weights, and which merge wins says nothing about others.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ablations.machine.fingerprint import fingerprint_of
from ablations.machine.locks import try_claim
from ablations.machine.stages import Stage
from ablations.machine.status_line import status_line
from ablations.machine.whole_files import told_if_unwritable
from ablations.pocket import shipped
from ablations.pocket.config import PocketConfig
from ablations.pocket.tasks import write_tasks
from ablations.train.config import TrainConfig, read_config
from ablations.train.run import EXPERTS, HELD_OUT, LOCK, settings_of, train_expert
from layerswap_method.errors import InputError, LayerSwapError

logger = logging.getLogger(__name__)

VERSION = 2
"""Of the world and the base's training: raised with every change that can change a byte."""

EXPERTS_VERSION = 2
"""Of how experts are trained, beyond what their training file says: raised in the same way."""

MANIFEST = "pocket_stage.json"
DEFAULT_OUT = Path("runs/pocket")
LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors")

CONFIGURATIONS: Mapping[str, str] = {"task": "pocket/math", "language": "pocket/swahili"}
"""Role -> the training file, as `layerswap train` takes it."""

Fill = Callable[[Path], Mapping[str, Any]]
"""Writes the files of a stage into an empty folder; returns what the manifest records."""


class PocketPaths(NamedTuple):
    """Where the parts of a testbed are."""

    root: Path
    base: Path
    task: Path
    """The math expert of the first expert seed."""
    language: Path
    """The language expert of the first expert seed."""
    tasks_dir: Path
    """lm-eval's `include_path`."""


def plan_stages(root: Path, config: PocketConfig, *, retrain: bool = False) -> dict[Stage, Fill]:
    """Return the stages of a testbed: `base`, `task`, `language`, `task-1`, ..., `tasks`.

    A stage's key covers what it depends on.
    """
    plan = config.model_dump(include={"shape", "base", "seed"}, exclude_none=True)
    # A setting that bases once had: without it, those that are there would be trained again.
    plan["base"]["train_embeddings"] = True
    base_key = fingerprint_of(version=VERSION, **plan)
    ships = not retrain and shipped.is_shipped(base_key)
    if ships:
        base_key = fingerprint_of(key=base_key, sha256=shipped.read_note()["sha256"])
    base = Stage(root / "base", base_key, MANIFEST)
    stages: dict[Stage, Fill] = {base: partial(_fill_base, config=config, ships=ships)}
    for index, seed in enumerate(config.expert_seeds):
        for role, training_file in CONFIGURATIONS.items():
            # Measuring and more checkpoints change no weight, and would cost time.
            fixed = (f"seed={seed}", "measure=false", "trainer.save_strategy=epoch")
            training = read_config(training_file, (*fixed, *config.expert_settings))
            training = training.model_copy(update={"base": str(base.folder)})
            settings = settings_of(training)
            key = fingerprint_of(version=EXPERTS_VERSION, base=base_key, settings=settings)
            folder = root / (f"{role}-{index}" if index else role)
            stages[Stage(folder, key, MANIFEST)] = partial(_fill_expert, config=training)
    tasks = root / "tasks"
    evaluation = config.evaluation.model_dump()
    key = fingerprint_of(version=VERSION, evaluation=evaluation, folder=str(tasks))
    return {**stages, Stage(tasks, key, MANIFEST): partial(_fill_tasks, home=tasks, config=config)}


def build_pocket(
    out: Path = DEFAULT_OUT,
    config: PocketConfig | None = None,
    *,
    force: bool = False,
    retrain: bool = False,
) -> PocketPaths:
    """Train what is missing in `out` and return where everything is.

    Args:
        out: folder of the testbed; created if need be.
        config: what to build; None for the quickstart preset.
        force: whether to build every stage anew.
        retrain: whether to train the base even where it ships with the package.

    Raises:
        InputError: a folder in the way was not written by a build, another build is running, or
            the base that ships with the package is damaged.
        LayerSwapError: a training failed.
    """
    config = config or PocketConfig()
    root = Path(out).resolve()
    stages = plan_stages(root, config, retrain=retrain)
    claim = try_claim(root, ".lock")
    if claim is None:
        raise InputError(f"another build is writing to {root}; wait for it to end")
    try:
        for stage in stages:
            stage.prepare()
        missing = [stage for stage in stages if force or not stage.is_done()]
        names = ", ".join(stage.name for stage in missing)
        logger.info("%s: %s", root, f"to build: {names}" if names else "up to date, nothing to do")
        for stage in missing:
            try:
                with told_if_unwritable(stage.folder), status_line(), _on_one_thread():
                    stage.write(stages[stage])
            except LayerSwapError as error:
                raise LayerSwapError(
                    f"making {stage.name!r} failed: {error}. Finished stages are kept: run the "
                    "same command again to continue"
                ) from error
    finally:
        claim.release()
    return PocketPaths(root, root / "base", root / "task", root / "language", root / "tasks")


@contextmanager
def _on_one_thread() -> Iterator[None]:
    """Compute on one thread of the CPU until the block ends: the same bytes everywhere.

    Two threads gain nothing at these sizes, and their order of summation is not fixed.
    """
    import torch
    from accelerate.state import AcceleratorState

    threads, before = torch.get_num_threads(), os.environ.get("ACCELERATE_USE_CPU")
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    os.environ["ACCELERATE_USE_CPU"] = "true"
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(is_deterministic)
        torch.set_num_threads(threads)
        os.environ.pop("ACCELERATE_USE_CPU")
        if before is not None:
            os.environ["ACCELERATE_USE_CPU"] = before
        # It remembers for the whole process that the CPU trains.
        AcceleratorState._reset_state(reset_partial_state=True)


def _fill_base(folder: Path, *, config: PocketConfig, ships: bool) -> dict[str, Any]:
    from ablations.pocket.pretraining import base_batches, build_model, save_checkpoint, train

    model = build_model(config.shape, config.seed)
    if ships:
        shipped.load_into(model)
        save_checkpoint(model, folder)
        return {"seed": config.seed, "shipped": shipped.WEIGHTS.name}
    interval = shipped.LOSS_INTERVAL
    losses: list[float] = []
    for loss in train(model, base_batches(config), config.base):
        losses.append(loss)
        if len(losses) % (10 * interval) == 0:
            logger.info("base: step %d of %d, loss %.2f", len(losses), config.base.steps, loss)
    save_checkpoint(model, folder)
    parts = [losses[at : at + interval] for at in range(0, len(losses), interval)]
    means = [round(sum(part) / len(part), 4) for part in parts]
    versions = {name: importlib.metadata.version(name) for name in LIBRARIES}
    record = {"seed": config.seed, "loss_interval_steps": interval, "losses": means}
    return {**record, "versions": versions}


def _fill_expert(folder: Path, *, config: TrainConfig) -> dict[str, Any]:
    train_expert(config, folder, keep_checkpoints=False)
    for file in folder.iterdir():
        # The folder gets another name when it is whole, so a path in it would be wrong.
        if file.name in (EXPERTS, HELD_OUT) or file.name.startswith(LOCK):
            file.unlink()
    return {"seed": config.seed}


def _fill_tasks(folder: Path, *, config: PocketConfig, home: Path) -> dict[str, Any]:
    write_tasks(folder, home, config.evaluation)
    return {"seed": config.evaluation.seed}
