"""Experts in 16 bits: how much of the delta is the rounding grid, and who is told."""

import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from ablations.delta.analysis import GRID_LIMIT, analyse, delta
from tests.standins.zoo import make_model

NAME = "model.layers.0.mlp.down_proj.weight"


def light_fine_tune(folder, mean, dtype):
    """Write the simulation of a light fine-tune: weights N(0, 0.02) and a change N of `mean` |Δ|.

    Returns (expert, base, correlation of the stored change with the true one).
    """
    base = make_model(
        "llama", folder / "base", 0, dtype=dtype, hidden_size=64, intermediate_size=512
    )
    expert = folder / "expert"
    shutil.copytree(base, expert)
    torch.manual_seed(1)
    ours, theirs, true, stored = {}, {}, [], []
    for name, tensor in load_file(base / "model.safetensors").items():
        weight = (0.02 * torch.randn(tensor.shape)).to(dtype)
        change = mean * (torch.pi / 2) ** 0.5 * torch.randn(tensor.shape)
        theirs[name], ours[name] = weight, (weight.float() + change).to(dtype)
        true.append(change.flatten())
        stored.append((ours[name].float() - weight.float()).flatten())
    save_file(theirs, base / "model.safetensors", {"format": "pt"})
    save_file(ours, expert / "model.safetensors", {"format": "pt"})
    correlation = np.corrcoef(torch.cat(true).numpy(), torch.cat(stored).numpy())[0, 1]
    return expert, base, float(correlation)


@pytest.mark.parametrize(
    ("mean", "changed", "correlation", "grid"),
    [
        *((1e-5, 0.145, 0.51, 0.79), (1.9e-5, 0.26, 0.68, 0.79), (1e-4, 0.73, 0.97, 0.625)),
        (6e-5, 0.595, 0.92, GRID_LIMIT),  # here is the limit
    ],
)
def test_a_light_fine_tune_saved_in_bf16(mean, changed, correlation, grid, tmp_path):
    expert, base, found = light_fine_tune(tmp_path, mean, torch.bfloat16)
    profile = analyse([str(expert)], str(base))[0][0]
    assert found == pytest.approx(correlation, abs=0.01)
    assert profile.share_changed == pytest.approx(changed, abs=0.015)
    assert profile.share_on_grid == pytest.approx(grid, abs=0.02)
    told = list(delta([str(expert)], str(base), out=tmp_path / "out"))
    warned = [line for line in told if line.startswith("Warning:") and "bfloat16" in line]
    assert len(warned) == (profile.share_on_grid >= GRID_LIMIT)
    for line in warned:
        assert f"{profile.share_on_grid:.0%} of its changed weights" in line


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("base_dtype", [None, torch.float32])
def test_the_share_on_the_grid_agrees_with_counting_steps(dtype, base_dtype, tmp_path):
    """Steps between two numbers: how many of all numbers of the format lie between them."""
    expert, base, _ = light_fine_tune(tmp_path, 2e-5, dtype)
    theirs = load_file(base / "model.safetensors")
    if base_dtype is not None:  # a base between the numbers of the format
        theirs = {n: t.float() * (1 + 1e-4 * torch.randn(t.shape)) for n, t in theirs.items()}
        save_file(theirs, base / "model.safetensors", {"format": "pt"})
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype).float()
    every = torch.unique(every[torch.isfinite(every)]).numpy()
    ours = load_file(expert / "model.safetensors")[NAME]
    place = [
        np.searchsorted(every, values.to(dtype).float().numpy()) for values in (ours, theirs[NAME])
    ]
    changed = (ours.float() != theirs[NAME].float()).numpy()
    near = changed & (np.abs(place[0] - place[1]) <= 2)
    profile = analyse([str(expert)], str(base))[0][0]
    (tensor,) = (t for t in profile.tensors.itertuples() if t.name == NAME)
    assert 0.2 < near.sum() / changed.sum() <= 1
    assert tensor.share_on_grid == pytest.approx(near.sum() / changed.sum(), rel=1e-12)


def test_a_float32_expert_has_no_grid(tmp_path):
    expert, base, _ = light_fine_tune(tmp_path, 1e-5, torch.float32)
    profile = analyse([str(expert)], str(base))[0][0]
    assert profile.share_on_grid is None
    assert profile.tensors["share_on_grid"].isna().all()
    assert profile.dtypes == ("float32",)
