"""`regime: arrow` puts LoRA experts together; peft's Arrow then routes as its paper says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
from safetensors.torch import load_file

from ablations.train import arrow
from ablations.train.files import read_config
from ablations.train.model import is_ours, load_base, with_adapter
from ablations.train.run import train_expert
from layerswap_method.errors import InputError
from tests.standins.tuned import train_adapter
from tests.train.runs import write_config

TARGETS = ["q_proj", "down_proj"]


@pytest.fixture(scope="module")
def experts(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("experts")
    return {  # of rank 1: peft's search for the direction stops after 15 rounds, near the best
        name: str(train_adapter(base, root / name, seed, r=1, target_modules=TARGETS))
        for seed, name in enumerate(("math", "swahili"))
    }


def run(place: Path, base: Path, rows: Path, experts: dict[str, str], **changes: Any) -> Path:
    out = place / "-".join(experts)
    regime = {"kind": "arrow", "experts": experts}
    config = write_config(place / "arrow.yml", base, rows, regime=regime, **changes)
    train_expert(read_config(str(config)), out)
    return out


def said(model: Any) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model.eval()(input_ids=torch.arange(5, 20)[None]).logits
    return logits


def test_one_expert_alone_is_that_expert(
    tmp_path: Path, base: Path, rows: Path, experts: dict[str, str]
) -> None:
    out = run(tmp_path, base, rows, {"math": experts["math"]})
    assert is_ours(out)
    alone = said(peft.PeftModel.from_pretrained(load_base(base), experts["math"]))
    torch.testing.assert_close(said(with_adapter(load_base(base), out)), alone)
    assert not torch.allclose(said(load_base(base)), alone)


def test_two_are_routed_as_the_paper_says_and_it_is_measured(
    tmp_path: Path, base: Path, rows: Path, experts: dict[str, str]
) -> None:
    out = run(tmp_path, base, rows, experts)
    record = json.loads((out / "training.json").read_text())
    assert record["finished"]
    assert set(record["facts"]) == {"drift"}
    assert record["facts"]["drift"] > 0
    model = with_adapter(load_base(base), out)
    name = "model.layers.0.self_attn.q_proj"
    module, seen = model.get_submodule(name), {}
    module.register_forward_hook(lambda _, given, got: seen.update(given=given[0], got=got))
    said(model)
    x = seen["given"][0].double().numpy()
    shares, changes = [], []
    for folder in experts.values():
        stored = load_file(Path(folder) / "adapter_model.safetensors")
        config = json.loads((Path(folder) / "adapter_config.json").read_text())
        down, up = (
            stored[f"base_model.model.{name}.lora_{side}.weight"].double().numpy() for side in "AB"
        )
        direction = np.linalg.svd(up @ down)[2][0]
        shares.append(np.exp(np.abs(x @ direction)))
        changes.append(config["lora_alpha"] / config["r"] * x @ down.T @ up.T)
    shares = np.stack(shares) / np.sum(shares, axis=0)
    wanted = (shares[..., None] * np.stack(changes)).sum(axis=0)
    got = (seen["got"] - module.base_layer(seen["given"]))[0].detach().double().numpy()
    assert np.abs(wanted).max() > 1e-3
    np.testing.assert_allclose(got, wanted, atol=1e-3 * np.abs(wanted).max())


def test_what_is_refused(tmp_path: Path, base: Path, rows: Path, experts: dict[str, str]) -> None:
    other = str(train_adapter(base, tmp_path / "other", 3, r=1, target_modules=["q_proj"]))
    with pytest.raises(InputError, match=r"proj.lora_A.weight, math has .* other has nothing"):
        run(tmp_path, base, rows, {"math": experts["math"], "other": other})
    with pytest.raises(InputError, match="no such folder"):
        run(tmp_path, base, rows, {"gone": str(tmp_path / "nowhere")})
    with pytest.raises(InputError, match="no Arrow"):
        run(tmp_path, base, rows, experts, select={"tasks": ["words"]})
    out = run(tmp_path, base, rows, experts)
    config = json.loads((out / "adapter_config.json").read_text())
    config["experts"]["third"] = config["experts"]["math"]
    (out / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="no weights of its expert 'third'"):
        with_adapter(load_base(base), out)
    assert not arrow.is_arrow(tmp_path)
