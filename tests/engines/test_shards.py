"""What each of several workers reads of a tensor: its own part, as vLLM's loaders cut it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ablations.engines.lazy import LazyTensor
from layerswap_method.tensors import MixReader
from tests.standins.merging import merge_of_folder


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_parts_of_all_workers_are_the_tensor(model: Path, dim: int, workers: int) -> None:
    """A fake group: no vLLM, but its way of cutting (narrow, then copy into the parameter)."""
    mixes = merge_of_folder(model).tensors
    name = "model.layers.0.mlp.gate_proj.weight"
    whole = MixReader(mixes[name]).read()
    parts = []
    for rank in range(workers):
        size = whole.shape[dim] // workers
        given = LazyTensor(MixReader(mixes[name])).narrow(dim, rank * size, size)
        assert isinstance(given, LazyTensor)  # nothing was read yet
        parameter = torch.empty(given.shape, dtype=given.dtype)
        parameter.copy_(given)
        parts.append(parameter)
    assert torch.equal(torch.cat(parts, dim=dim), whole)
    assert workers == 1 or not torch.equal(parts[0], parts[1])
