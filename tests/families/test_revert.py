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
from tests.standins.merging import merge, revert_recipe
from tests.standins.oracle import READERS, layer_number, row_change, stored
from tests.standins.tuned import uneven
from tests.standins.zoo import make_model

FAMILIES = ["llama", "gpt2", "phi3", "mixtral", "qwen3_vl"]
THRESHOLD = 5e-3


def stays(name: str, expert: torch.Tensor, base: torch.Tensor, family: str) -> torch.Tensor:
    """Return which weights keep the expert's value: rows of one input feature each."""
    change = row_change(name, expert, base, family)
    assert bool(((change - THRESHOLD).abs() > 1e-8).all()), "too near to tell"
    return (change >= THRESHOLD).expand(expert.shape)


@pytest.fixture(scope="module", params=FAMILIES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    family: str = request.param
    root = tmp_path_factory.mktemp(family)
    base = make_model(family, root / "base", 1, dtype=torch.float32)
    expert = uneven(base, root / "expert", 0.03)
    parameters = {"threshold": THRESHOLD, "bottom_layers": 1, "revert_modules": "norm"}
    document = revert_recipe(expert, base, parameters)
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
    expert = uneven(base, tmp_path / "expert", 0.03)
    document = revert_recipe(expert, base, {"bottom_layers": 1})
    with pytest.raises(InputError, match="one text decoder"):
        merge(document, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()
