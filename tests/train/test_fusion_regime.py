"""`regime: adapter_fusion` trains from one configuration, goes on, and is measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ablations.train import fusion
from ablations.train.files import read_config
from ablations.train.model import load_base
from ablations.train.run import train_expert
from layerswap_method.errors import InputError
from tests.standins.tuned import train_adapter
from tests.train.runs import weights, write_config


@pytest.fixture(scope="module")
def regime(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("experts")
    targets = {"math": ["q_proj", "down_proj"], "swahili": ["v_proj"]}
    experts = {
        name: str(train_adapter(base, root / name, seed, target_modules=modules))
        for seed, (name, modules) in enumerate(targets.items())
    }
    return {"kind": "adapter_fusion", "experts": experts}


def run(place: Path, base: Path, rows: Path, name: str = "expert", **changes: Any) -> Path:
    config = write_config(place / f"{name}.yml", base, rows, learning_rate=0.01, **changes)
    train_expert(read_config(str(config)), place / name)
    return place / name


def test_it_trains_and_is_measured(
    tmp_path: Path, base: Path, rows: Path, regime: dict[str, Any]
) -> None:
    out = run(tmp_path, base, rows, regime=regime, samples=120, gradient_checkpointing=True)
    record = json.loads((out / "training.json").read_text())
    losses = [each["loss"] for each in record["losses"]]
    assert sum(losses[-8:]) < sum(losses[:8])
    assert set(record["facts"]) == {"drift"}
    assert record["facts"]["drift"] > 0
    model = load_base(base)
    fresh = fusion.build(model, base, {n: Path(p) for n, p in regime["experts"].items()})
    found = fusion.load(load_base(base), out)
    assert found.experts == ("math", "swahili")
    before = dict(fresh.named_parameters())
    assert all(
        not torch.equal(before[name], parameter)
        for name, parameter in found.named_parameters()
        if "key.bias" not in name
    )
    for name, pair in fresh.matrices.items():
        assert all(map(torch.equal, pair, found.matrices[name]))


def test_a_stopped_run_goes_on_to_the_same_weights(
    tmp_path: Path, base: Path, rows: Path, regime: dict[str, Any]
) -> None:
    settings = {"regime": regime, "save_every": 4, "measure": False}
    whole = run(tmp_path, base, rows, "whole", **settings)
    again = run(tmp_path, base, rows, "again", **settings)
    wanted = weights(whole)
    record = json.loads((again / "training.json").read_text())
    assert all(torch.equal(wanted[name], tensor) for name, tensor in weights(again).items())
    assert record["finished"]


def test_the_penalty_is_obeyed(
    tmp_path: Path, base: Path, rows: Path, regime: dict[str, Any]
) -> None:
    found = []
    for penalty in (0.0, 10.0):
        settings = {"regime": {**regime, "value_penalty": penalty}, "measure": False}
        out = run(tmp_path, base, rows, f"p{penalty}", **settings)
        found.append(fusion.load(load_base(base), out).penalty().item())
    assert found[1] < 0.5 * found[0]


def test_what_is_refused(tmp_path: Path, base: Path, rows: Path, regime: dict[str, Any]) -> None:
    experts = {"math": str(tmp_path / "gone")}
    with pytest.raises(InputError, match="no such folder"):
        run(tmp_path, base, rows, regime={**regime, "experts": experts})
    with pytest.raises(InputError, match="no fusion, no prefix and no DoRA"):
        run(tmp_path, base, rows, "select", regime=regime, select={"tasks": ["words"]})
    with pytest.raises(InputError, match="experts"):
        run(tmp_path, base, rows, "none", regime={**regime, "experts": {}})
