"""`delta_revert` where tensors are stored otherwise than Llama's: rows by hand, in float64."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from layerswap_method.errors import InputError
from tests.delta.experts import rewritten
from tests.standins.merging import merge
from tests.standins.oracle import READERS, layer_number, stored
from tests.standins.zoo import make_model

FAMILIES = ["llama", "gpt2", "phi3", "mixtral", "qwen3_vl"]
THRESHOLD = 5e-3


def uneven(base: Path, to: Path) -> Path:
    """Write an expert that moved the last axis's entries by different amounts, and its rows too."""
    generator = torch.Generator().manual_seed(7)

    def edit(name: str, tensor: torch.Tensor) -> torch.Tensor:
        across = torch.rand(tensor.shape[-1:], generator=generator)
        down = torch.rand(tensor.shape[:1] + (1,) * (tensor.ndim - 1), generator=generator)
        noise = torch.randn(tensor.shape, generator=generator)
        return (tensor.float() + 0.03 * across * down * noise).to(tensor.dtype)

    return rewritten(base, to, edit)


def stays(name: str, expert: torch.Tensor, base: torch.Tensor, family: str) -> torch.Tensor:
    """Return which weights keep the expert's value: rows of one input feature each."""
    change = (expert.double() - base.double()).abs()
    if change.ndim == 1:
        mean = change.mean().reshape(1)
    elif change.ndim == 3:  # [experts, out, in]
        mean = change.mean(dim=1, keepdim=True)
    elif family == "gpt2" and re.search(r"(c_attn|c_proj|c_fc)\.weight$", name):
        mean = change.mean(dim=1, keepdim=True)  # [in, out]
    else:
        mean = change.mean(dim=0, keepdim=True)
    assert bool(((mean - THRESHOLD).abs() > 1e-8).all()), "too near to tell"
    return (mean >= THRESHOLD).expand(change.shape)


@pytest.fixture(scope="module", params=FAMILIES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    family: str = request.param
    root = tmp_path_factory.mktemp(family)
    base = make_model(family, root / "base", 1, dtype=torch.float32)
    expert = uneven(base, root / "expert")
    document = {
        "merge_method": "delta_revert",
        "models": [{"model": str(expert)}],
        "base_model": str(base),
        "parameters": {"threshold": THRESHOLD, "bottom_layers": 1, "revert_modules": "norm"},
    }
    return family, expert, base, merge(document, root / "merged")


def is_whole(name: str, family: str) -> bool:
    """Whether the recipe names the tensor's layer or module: the text decoder's only."""
    layer = layer_number(name)
    if layer is None or "visual" in name:
        return False
    return layer == 0 or (
        bool(re.search(r"\.(?:\w*layernorm|ln_\d|\w*norm\w*)\.\w+$", name))
        and ("self_attn" not in name)
    )


def test_every_row_is_the_side_that_its_change_says(case: Any) -> None:
    family, expert, base, merged = case
    read = READERS.get(family, stored)
    ours, theirs, found = read(expert), read(base), stored(merged)
    assert set(found) <= set(ours)
    kept = 0
    mixed = 0
    for name, tensor in found.items():
        keep = stays(name, ours[name], theirs[name], family)
        if is_whole(name, family):
            keep = torch.zeros_like(keep)
        assert torch.equal(tensor, torch.where(keep, ours[name], theirs[name])), name
        kept += int(keep.sum())
        mixed += int(bool(keep.any()) and not bool(keep.all()))
    assert mixed > len(found) / 4, "the rows had no choice to make"
    plan: Mapping[str, Any] = json.loads((merged / "delta_revert_plan.json").read_text())
    assert plan["kept"]["kept_weights"] == kept
    assert plan["kept"]["weights"] == sum(tensor.numel() for tensor in found.values())


def test_the_result_loads(case: Any, loads: Any) -> None:
    loads(case[3])


def test_encoder_decoders_are_refused(tmp_path: Path) -> None:
    base = make_model("t5", tmp_path / "base", 1, dtype=torch.float32)
    document = {
        "merge_method": "delta_revert",
        "models": [{"model": str(uneven(base, tmp_path / "expert"))}],
        "base_model": str(base),
        "parameters": {"bottom_layers": 1},
    }
    with pytest.raises(InputError, match="one text decoder"):
        merge(document, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()
