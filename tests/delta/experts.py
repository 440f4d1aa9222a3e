"""Experts near a base: checkpoints of every family with a little noise on every weight."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from layerswap_method.checkpoints.model_files import StreamInput
from layerswap_method.deltas.open_pair import open_pair
from layerswap_method.deltas.pair import DeltaPair
from tests.standins.zoo import make_model

Edit = Callable[[str, torch.Tensor], torch.Tensor]


def rewritten(folder: Path, to: Path, edit: Edit) -> Path:
    """Copy a checkpoint to `to` with every tensor edited; the files hold the same tensors."""
    shutil.copytree(folder, to)
    files = sorted(to.glob("*.safetensors"))
    assert files
    for file in files:
        with safe_open(file, "pt") as opened:
            metadata = opened.metadata()
        tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
        save_file({n: edit(n, t).contiguous() for n, t in tensors.items()}, file, metadata)
    return to


def fine_tuned(
    base: Path,
    to: Path,
    seed: int,
    scale: float = 1e-3,
    dtype: torch.dtype | None = None,
    changes: Callable[[str], bool] = lambda name: True,
) -> Path:
    """Write an expert: the base with noise on the tensors that `changes` says, in `dtype`."""
    generator = torch.Generator().manual_seed(seed)

    def edit(name: str, tensor: torch.Tensor) -> torch.Tensor:
        noise = scale * torch.randn(tensor.shape, generator=generator)
        changed = tensor.float() + noise if changes(name) else tensor.float()
        return changed.to(dtype or tensor.dtype)

    return rewritten(base, to, edit)


def pair_of(expert: Path, base: Path, adapter: Path | None = None) -> DeltaPair:
    """Open an expert beside its base, each called as its folder."""
    sides = (StreamInput(expert.name, expert, adapter=adapter), StreamInput(base.name, base))
    return open_pair(*sides)


def family_pair(family: str, folder: Path, dtype: torch.dtype = torch.float32) -> tuple[Path, Path]:
    """Return (expert, base) of a tiny model of a family."""
    base = make_model(family, folder / "base", 1, dtype=dtype)
    return fine_tuned(base, folder / "expert", 2), base
