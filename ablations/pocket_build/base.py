"""The base of a testbed: what it sees, from which seeds, and how its folder is filled."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ablations.pocket.batches import Batch, draw_batches
from ablations.pocket.corpora import draw_documents
from ablations.pocket.tokenizer import vocabulary
from ablations.pocket_build import shipped
from ablations.pocket_build.config import PocketConfig

LOSS_INTERVAL = 20
"""Steps over which a recorded loss is averaged."""


def base_batches(config: PocketConfig) -> Iterator[Batch]:
    """Return the endless batches that a base is trained on."""
    stream = draw_documents("base", _derive_seed("base", config.seed), rare=config.base.rare_words)
    return draw_batches(
        stream,
        vocabulary(),
        tokens_per_batch=config.base.tokens_per_batch,
        seed=_derive_seed("base", "batches", config.seed),
        prompt_weight=config.base.prompt_weight,
    )


def _derive_seed(*parts: str | int) -> int:
    """Return a 32-bit seed for a named purpose, so that no two streams share one by accident."""
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def fill_base(
    folder: Path, on_step: Callable[[int, float], None], *, config: PocketConfig, ships: bool
) -> dict[str, Any]:
    """Write the base to `folder`; return its seed and losses, or the name of the shipped file.

    Args:
        folder: an empty one.
        on_step: called after every step with the number of steps done and the loss.
        config: the testbed.
        ships: whether the weights come from the package instead of training.
    """
    from ablations.pocket_build.pretraining import build_model, save_checkpoint, train

    model = build_model(config.shape, config.seed)
    if ships:
        shipped.load_into(model)
        save_checkpoint(model, folder)
        return {"seed": config.seed, "shipped": shipped.WEIGHTS.name}
    losses = train(model, base_batches(config), config.base, on_step)
    save_checkpoint(model, folder)
    parts = [losses[at : at + LOSS_INTERVAL] for at in range(0, len(losses), LOSS_INTERVAL)]
    means = [round(sum(part) / len(part), 4) for part in parts]
    return {"seed": config.seed, "loss_interval_steps": LOSS_INTERVAL, "losses": means}
