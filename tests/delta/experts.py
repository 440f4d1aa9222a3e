"""Experts near a base: checkpoints of every family with a little noise on every weight."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from layerswap_method.deltas.pair import DeltaPair, open_pair
from layerswap_method.recipe.references import Model
from tests.standins.tuned import tune
from tests.standins.zoo import make_model


def fine_tuned(
    base: Path,
    to: Path,
    seed: int,
    scale: float = 1e-3,
    dtype: torch.dtype | None = None,
    changes: Callable[[str], bool] = lambda name: True,
) -> Path:
    """Write an expert: the base with noise on the tensors that `changes` says, in `dtype`."""
    return tune(base, to, seed, lambda name: scale if changes(name) else 0.0, dtype)


def pair_of(expert: Path, base: Path, adapter: Path | None = None) -> DeltaPair:
    """Open an expert beside its base, each called as its folder."""
    sides = (Model(expert.name, expert, adapter=adapter), Model(base.name, base))
    return open_pair(*sides)


def family_pair(family: str, folder: Path, dtype: torch.dtype = torch.float32) -> tuple[Path, Path]:
    """Return (expert, base) of a tiny model of a family."""
    base = make_model(family, folder / "base", 1, dtype=dtype)
    return fine_tuned(base, folder / "expert", 2), base
