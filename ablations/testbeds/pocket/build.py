"""Builds a pocket testbed: pretrains a base, trains experts on it, writes its tasks.

The base comes with the package, or from `pretraining`; experts are those of `layerswap train
pocket/NAME`. docs/testbeds.md says what the testbed shows and what it does not.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field

from ablations.machine.fingerprint import fingerprint_of, hash_file
from ablations.machine.locks import try_claim
from ablations.machine.progress import Step, show_step, status_line
from ablations.machine.whole_files import Stage, write_errors
from ablations.testbeds.pocket.pretraining import (
    PocketShape,
    Pretraining,
    base_batches,
    build_model,
    pretrain,
    save_checkpoint,
)
from ablations.testbeds.pocket.tasks import write_pocket_tasks
from ablations.train.config import TrainConfig, read_training_file
from ablations.train.folder import CHECKPOINTS
from ablations.train.run import EXPERTS, HELD_OUT, LOCK, settings_of, train_expert
from layerswap_method.errors import InputError, LayerSwapError
from layerswap_method.frozen import Frozen
from layerswap_method.output import FILES

logger = logging.getLogger(__name__)

VERSION = 2
"""Version of the world and the base's training: raised with every change that can change a byte."""

EXPERTS_VERSION = 2
"""Version of the settings that the experts' training files leave open: raised in the same way."""

MANIFEST = "pocket_stage.json"
DEFAULT_OUT = Path("runs/pocket")
WEIGHTS = Path(__file__).parent / "shipped" / "base.safetensors"
"""The base that ships, which saves minutes of pretraining; `make rebuild-base` trains it again: the
same bytes on one machine, nearly the same on another."""

EXPERTS_OF_A_SEED = {
    "task": "math",
    "language": "swahili",
    "task_disjoint": "math_disjoint",
    "language_disjoint": "swahili_disjoint",
}
"""Stage -> training file: each expert in all layers, and in those only that a swap takes."""
Fill = Callable[[Path], Mapping[str, Any] | None]
"""Writes the files of a stage into an empty folder; returns what the manifest records."""

Preset = Literal["quickstart", "tiny", "other_size"]


class PocketConfig(Frozen):
    """Everything that decides the bytes of a pocket testbed. The default is `quickstart`."""

    seed: int = Field(0, ge=0)
    """Seed of the base: first weights and pretraining stream."""
    expert_seeds: tuple[int, ...] = Field((0,), min_length=1)
    """One pair of experts is trained for each seed."""
    shape: PocketShape = PocketShape()
    base: Pretraining = Pretraining()
    expert_settings: tuple[str, ...] = ()
    """``NAME=VALUE`` in place of what the experts' shipped configurations say."""
    items: int = Field(500, ge=1)
    """Test documents of each task."""

    @classmethod
    def preset(cls, name: Preset, **changes: Any) -> PocketConfig:
        """Return a named configuration with some fields changed.

        `quickstart` takes minutes, `tiny` seconds (its scores mean nothing), `other_size` is as
        `quickstart` with another width, depth and number of key heads.
        """
        return cls(**(_PRESETS[name] | changes))


_PRESETS: dict[Preset, dict[str, Any]] = {
    "quickstart": {},
    "other_size": {
        "shape": PocketShape(
            num_layers=6, hidden_size=128, num_heads=4, num_kv_heads=2, intermediate_size=256
        ),
    },
    "tiny": {
        "shape": PocketShape(num_layers=4, hidden_size=32, num_heads=1, intermediate_size=64),
        "base": Pretraining(steps=40, warmup_steps=5, tokens_per_batch=512),
        "expert_settings": ("samples=60", "held_out=2", "batch_size=6", "trainer.warmup_steps=2"),
        "items": 20,
    },
}


class PocketPaths(NamedTuple):
    """Paths of the parts of a testbed."""

    root: Path
    base: Path
    task: Path
    """The math expert of the first expert seed."""
    language: Path
    """The language expert of the first expert seed."""
    tasks_dir: Path
    """lm-eval's `include_path`."""


def stages_of(root: Path, config: PocketConfig, *, retrain: bool = False) -> dict[Stage, Fill]:
    """Return the stages of a testbed: `base`, `task`, `language`, `task-1`, ..., `tasks`.

    Each has what fills it. A stage's key covers what it depends on.
    """
    base_settings = config.model_dump(include={"shape", "base", "seed"}, exclude_none=True)
    # A setting that bases once had: without it, those that are there would be trained again.
    base_settings["base"]["train_embeddings"] = True
    base_key = fingerprint_of(version=VERSION, **base_settings)
    is_shipped = not retrain and is_shipped_base(base_key)
    if is_shipped:
        base_key = fingerprint_of(key=base_key, sha256=read_note()["sha256"])
    base = Stage(root / "base", base_key, MANIFEST)
    stages: dict[Stage, Fill] = {base: partial(_fill_base, config=config, is_shipped=is_shipped)}
    for index, seed in enumerate(config.expert_seeds):
        for role, name in EXPERTS_OF_A_SEED.items():
            # Measuring and more checkpoints change no weight, and would cost time.
            fixed_settings = (f"seed={seed}", "measure=false", "trainer.save_strategy=epoch")
            training = read_training_file(
                f"pocket/{name}", (*fixed_settings, *config.expert_settings)
            )
            training = training.model_copy(update={"base": str(base.folder)})
            settings = settings_of(training)
            key = fingerprint_of(version=EXPERTS_VERSION, base=base_key, settings=settings)
            folder = root / (f"{role}-{index}" if index else role)
            stages[Stage(folder, key, MANIFEST)] = partial(_fill_expert, config=training)
    tasks = root / "tasks"
    key = fingerprint_of(version=VERSION, items=config.items, folder=str(tasks))
    write = partial(write_pocket_tasks, home=tasks, items=config.items)
    return {**stages, Stage(tasks, key, MANIFEST): write}


def build_pocket(
    out: Path = DEFAULT_OUT,
    config: PocketConfig = PocketConfig(),  # noqa: B008 (it is frozen)
    *,
    retrain: bool = False,
) -> PocketPaths:
    """Train what is missing in `out` and return where everything is.

    Args:
        out: folder of the testbed; created if need be.
        config: what to build.
        retrain: whether to train the base even where it ships with the package.

    Raises:
        InputError: a folder in the way was not written by a build, another build is running, or
            the base that ships with the package is damaged.
        LayerSwapError: a training failed.
    """
    root = Path(out).resolve()
    stages = stages_of(root, config, retrain=retrain)
    claim = try_claim(root, ".lock")
    if claim is None:
        raise InputError(f"another build is writing to {root}; wait for it to end")
    try:
        for stage in stages:
            stage.check()
        missing = [stage for stage in stages if not stage.is_done()]
        names = ", ".join(stage.name for stage in missing)
        logger.info("%s: %s", root, f"to build: {names}" if names else "up to date, nothing to do")
        with status_line():
            for done, stage in enumerate(missing):
                position = f"stage {done + 1} of {len(missing)}"
                show_step(Step(position, done, len(missing), unit="stages", scope="command"))
                show_step(Step(f"making {stage.name}"))
                try:
                    with write_errors(stage.folder), _on_one_thread():
                        stage.write(stages[stage])
                except LayerSwapError as error:
                    raise LayerSwapError(
                        f"making {stage.name!r} failed: {error}. Finished stages are kept: run the "
                        "same command again to continue"
                    ) from error
    finally:
        claim.release()
    return PocketPaths(root, root / "base", root / "task", root / "language", root / "tasks")


def read_note() -> Any:
    """Return the note on the shipped weights, ``base.json``.

    ``key`` is of the stage that trained them, ``first_loss`` the mean over 20 steps in nats per
    learned token, ``scores`` task -> exact match (comprehension: accuracy) of its first 300 items.
    """
    return json.loads((Path(__file__).parent / "shipped" / "base.json").read_text(encoding="utf-8"))


def is_shipped_base(key: str) -> bool:
    """Return whether the shipped base is the one of `key`.

    Raises `InputError` if the weights are missing, or are not those that the note names.
    """
    note = read_note()
    if note["key"] != key:
        return False
    sha256 = hash_file(WEIGHTS) if WEIGHTS.is_file() else "no file"
    if sha256 != note["sha256"]:
        raise InputError(
            f"{WEIGHTS}: the base that ships with layerswap should have SHA-256 "
            f"{note['sha256'][:12]}..., and has {sha256[:12]}; install layerswap again"
        )
    return True


@contextmanager
def _on_one_thread() -> Iterator[None]:
    """Compute on one thread of the CPU until the block ends: its order of summation is fixed."""
    import torch
    from accelerate.state import AcceleratorState

    threads = torch.get_num_threads()
    use_cpu = os.environ.get("ACCELERATE_USE_CPU")
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
        if use_cpu is not None:
            os.environ["ACCELERATE_USE_CPU"] = use_cpu
        # accelerate remembers for the whole process that the CPU trains.
        AcceleratorState._reset_state(reset_partial_state=True)


def _fill_base(folder: Path, *, config: PocketConfig, is_shipped: bool) -> dict[str, Any]:
    model = build_model(config.shape, config.seed)
    if is_shipped:
        from safetensors.torch import load_file

        # Embeddings and output matrix are tied.
        model.load_state_dict(load_file(WEIGHTS), strict=False)
        save_checkpoint(model, folder)
        return {"seed": config.seed, "shipped": WEIGHTS.name}
    loss = 0.0
    batches = base_batches(config.base, config.seed)
    for step, loss in enumerate(pretrain(model, batches, config.base)):
        if step % 200 == 0:
            logger.info("base: step %d of %d, loss %.2f", step, config.base.steps, loss)
    save_checkpoint(model, folder)
    return {"seed": config.seed, "loss": round(loss, 4)}


def _fill_expert(folder: Path, *, config: TrainConfig) -> None:
    train_expert(config, folder)
    shutil.rmtree(folder / CHECKPOINTS)
    for file in folder.iterdir():
        # The folder gets another name when it is whole, so a path in it would be wrong; the
        # manifest lists its files.
        if file.name in (EXPERTS, HELD_OUT, FILES) or file.name.startswith(LOCK):
            file.unlink()
