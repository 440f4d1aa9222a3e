"""The experts of a testbed: shipped configurations of `layerswap train`, on the testbed's base."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ablations.train.config import TrainConfig
from ablations.train.files import read_config
from ablations.train.finish import EXPERTS, HELD_OUT
from ablations.train.run import LOCK, train_expert

CONFIGURATIONS: Mapping[str, str] = {"task": "pocket/math", "language": "pocket/swahili"}
"""Role -> the configuration, as `layerswap train` takes it."""


def expert_config(role: str, seed: int, base: Path, settings: tuple[str, ...] = ()) -> TrainConfig:
    """Return how an expert is trained: as `layerswap train` would, and nothing but the expert kept.

    Args:
        role: `task` or `language`.
        seed: of the run.
        base: in place of the base that the configuration names.
        settings: ``NAME=VALUE`` in place of what the configuration says.

    Raises:
        InputError: for settings that it does not have.
    """
    config = read_config(CONFIGURATIONS[role], (f"seed={seed}", *settings))
    # None of these changes a weight; measuring and more checkpoints would cost time.
    trainer = {**config.trainer, "save_strategy": "epoch"}
    aside = {"base": str(base), "measure": False, "trainer": trainer}
    return config.model_copy(update=aside)


def fill_expert(
    folder: Path, on_step: Callable[[int, float], None], *, config: TrainConfig
) -> dict[str, Any]:
    """Train an expert into `folder`, an empty one: the checkpoint and `training.json`.

    Args:
        folder: where to.
        on_step: called after every step with the number of steps done and the loss.
        config: of `expert_config`.

    Returns:
        The seed.

    Raises:
        InputError: for a base that cannot be loaded.
        LayerSwapError: where the loss is not finite, or something cannot be written.
    """
    train_expert(config, folder, keep_checkpoints=False)
    for file in folder.iterdir():
        # The folder gets another name when it is whole, so a path in it would be wrong.
        if file.name in (EXPERTS, HELD_OUT) or file.name.startswith(LOCK):
            file.unlink()
    return {"seed": config.seed}
