"""Fine-tunes of tiny checkpoints, and what their changes are in float64: no code of ours."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]


def stored(folder: Path) -> Tensors:
    """Return every tensor of a checkpoint."""
    tensors: Tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
    return tensors


def tune(
    base: Path,
    folder: Path,
    seed: int,
    scale: Callable[[str], float] | float = 1e-3,
    dtype: torch.dtype = torch.float32,
) -> Path:
    """Write `base` with a normal change of standard deviation `scale` (of each tensor)."""
    shutil.copytree(base, folder, ignore=shutil.ignore_patterns("*.safetensors*"))
    generator = torch.Generator().manual_seed(seed)
    moved = {
        name: (
            tensor.float()
            + torch.randn(tensor.shape, generator=generator)
            * (scale(name) if callable(scale) else scale)
        ).to(dtype)
        for name, tensor in sorted(stored(base).items())
    }
    save_file(moved, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def mean_change(expert: Mapping[str, torch.Tensor], base: Mapping[str, torch.Tensor]) -> float:
    """Return the mean |change| of all input features of all tensors of a Llama, in float64.

    A matrix [out, in] has a row for each of its inputs, the mean over the outputs; a vector is one
    row (arXiv 2410.01335, section 3.2 and Figure 2).
    """
    rows = torch.cat(
        [
            (expert[name].double() - base[name].double()).abs().mean(0).reshape(-1)
            for name in sorted(base)
        ]
    )
    return float(rows.mean())


def layer_of(name: str) -> int | None:
    """Return the decoder layer of a Llama tensor."""
    return int(name.split(".")[2]) if name.startswith("model.layers.") else None
