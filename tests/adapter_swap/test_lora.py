"""The swapped adapter, merged by peft, is the swap of what peft makes of both adapters."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.adapter_swap.by_peft import LINEAR, logits, merged, run, swapped
from tests.standins.merging import merge, recipe
from tests.standins.oracle import Swap, expected, same_bits, stored
from tests.standins.tuned import train_adapter
from tests.standins.zoo import LAYERS

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch_dtype.*"),
    pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to"),
    pytest.mark.filterwarnings("ignore:Model (has|with) `tie_word_embeddings=True`"),
]

SWAP = Swap(LAYERS)
PLAIN = {"target_modules": LINEAR, "r": 2, "lora_alpha": 4}
PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "alike": ({}, {}),
    "ranks": ({"r": 3, "lora_alpha": 7}, {"r": 5, "lora_alpha": 2}),
    "rslora": ({"use_rslora": True, "r": 3}, {}),
    "patterns": (
        {"rank_pattern": {"layers.2.self_attn.q_proj": 3, "v_proj": 1}},
        {"alpha_pattern": {"layers.3.*down_proj": 11}},
    ),
    "targets": ({"target_modules": ["q_proj"]}, {"target_modules": ["k_proj", "up_proj"]}),
    "embeddings": (
        {"target_modules": ["embed_tokens", "k_proj"]},
        {"target_modules": ["lm_head", "embed_tokens"]},
    ),
}

Make = Callable[..., SimpleNamespace]


@pytest.fixture
def make(experts: Any, tmp_path: Path) -> Make:
    """Return a function: configs of both adapters -> base and folders."""

    def pair(
        task: dict[str, Any], language: dict[str, Any], family: str = "llama"
    ) -> SimpleNamespace:
        base = experts(family, dtype=torch.float32).base
        both = {"task": task, "language": language}
        folders = {
            role: train_adapter(base, tmp_path / role, seed, **PLAIN | config)
            for seed, (role, config) in enumerate(both.items())
        }
        return SimpleNamespace(base=base, adapters=folders)

    return pair


def assert_near(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert set(found) == set(wanted)
    for name, tensor in wanted.items():
        bound = 2e-7 * (1 + tensor.abs().max())  # a few steps of float32, which A and B are in
        assert (found[name].double() - tensor.double()).abs().max() <= bound, name


@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize("swap", [SWAP, Swap(LAYERS, 1, 2, 2, 0, "language", 1.0, 2.0)], ids=str)
def test_the_merge_of_the_swap_is_the_swap_of_the_merges(
    kind: str, swap: Swap, make: Make, tmp_path: Path
) -> None:
    given = make(*PAIRS[kind])
    out, _ = swapped(tmp_path, given.base, given.adapters, swap.parameters())
    ours = merged(given.base, out)
    both = {role: merged(given.base, adapter) for role, adapter in given.adapters.items()}
    assert_near(ours, expected(swap, both["task"], both["language"]))
    plain = stored(given.base)
    assert any(not torch.equal(tensor.float(), plain[name]) for name, tensor in ours.items())


@pytest.mark.parametrize("family", ["gpt2", "llama_tied"])
def test_other_families(family: str, make: Make, tmp_path: Path) -> None:
    targets = ["c_attn", "wte"] if family == "gpt2" else ["q_proj", "embed_tokens"]
    config = {"target_modules": targets}
    given = make(config, {**config, "r": 3}, family)
    out, _ = swapped(tmp_path, given.base, given.adapters, SWAP.parameters())
    ours = merged(given.base, out)
    both = {role: merged(given.base, adapter) for role, adapter in given.adapters.items()}
    wanted = expected(SWAP, both["task"], both["language"])
    assert_near(ours, wanted)


def test_it_is_what_mergekit_makes_of_the_same_recipe(make: Make, tmp_path: Path) -> None:
    given = make({"r": 3}, {})
    models = {role: f"{given.base}+{adapter}" for role, adapter in given.adapters.items()}
    document = recipe(models, SWAP.parameters(), given.base)
    out, _ = run(tmp_path / "adapters", document)
    cache = str(tmp_path / "cache")
    wanted = stored(merge(document, tmp_path / "merged", lora_merge_cache=cache))
    found = merged(given.base, out, torch.float32)
    assert_near(found, wanted)
    for name, tensor in wanted.items():
        if SWAP.of_tensor(name) != "average":
            assert same_bits(found[name], tensor), name


def test_swapped_layers_keep_the_matrices(make: Make, tmp_path: Path) -> None:
    given = make({}, {})
    out, lines = swapped(tmp_path, given.base, given.adapters, SWAP.parameters())
    found = load_file(out / "adapter_model.safetensors")
    theirs = {
        role: load_file(adapter / "adapter_model.safetensors")
        for role, adapter in given.adapters.items()
    }
    copied = 0
    for name, tensor in found.items():
        source = SWAP.of_tensor(name)
        if source == "average":
            assert 4 in tensor.shape
        else:
            copied += 1
            assert same_bits(tensor, theirs[source][name])
    assert copied == 2 * 4 * len(LINEAR)
    config = json.loads((out / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], len(config["rank_pattern"])) == (2, 4, 6)
    assert "adapter: 18 tensors, rank 2 to 4, float32" in lines
    plan = json.loads((out / "layer_swap_plan.json").read_text())
    assert plan["layers"] == ["language", "language", "average", "task", "average", "language"]
    assert plan["adapter"]["ranks"] == [2, 4]
    assert not list(tmp_path.glob(".layerswap-*"))


def test_soups_of_several_experts_and_a_plain_base(make: Make, tmp_path: Path) -> None:
    given = make({"r": 3}, {})
    third = train_adapter(given.base, tmp_path / "third", 9, **PLAIN)
    document = recipe(
        {"task": f"{given.base}+{given.adapters['task']}"}, SWAP.parameters(), given.base
    )
    document["models"] += [
        {"model": f"{given.base}+{folder}", "parameters": {"role": "language", "weight": weight}}
        for folder, weight in ((given.adapters["language"], 1.0), (third, 2.0))
    ]
    out, _ = run(tmp_path / "soup", document)
    one, two = (merged(given.base, folder) for folder in (given.adapters["language"], third))
    soup = {name: (tensor + 2 * two[name]) / 3 for name, tensor in one.items()}
    assert_near(
        merged(given.base, out), expected(SWAP, merged(given.base, given.adapters["task"]), soup)
    )
    document["models"][1:] = [{"model": str(given.base), "parameters": {"role": "language"}}]
    out, _ = run(tmp_path / "reverted", document)
    plain = {name: tensor.double() for name, tensor in stored(given.base).items()}
    wanted = expected(SWAP, merged(given.base, given.adapters["task"]), plain)
    assert_near(merged(given.base, out), wanted)


@pytest.mark.parametrize("parameters", [{"weighting": "magnitude"}, {"placement": "delta_share"}])
def test_measured_recipes(parameters: dict[str, str], make: Make, tmp_path: Path) -> None:
    given = make({"r": 4, "lora_alpha": 1}, {"lora_alpha": 0.5})
    models = {role: f"{given.base}+{adapter}" for role, adapter in given.adapters.items()}
    top = {} if "placement" in parameters else {"bottom_layers": 1, "bottom_transition": 2}
    document = recipe(models, parameters | top, given.base)
    out, _ = run(tmp_path / "adapters", document)
    cache = str(tmp_path / "cache")
    wanted = stored(merge(document, tmp_path / "merged", lora_merge_cache=cache))
    assert_near(merged(given.base, out, torch.float32), wanted)
    assert "deltas" in json.loads((out / "layer_swap_plan.json").read_text())


def test_an_adapter_of_no_scale_changes_nothing(make: Make, tmp_path: Path) -> None:
    given = make({}, {})
    file = given.adapters["language"] / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"lora_alpha": 0}))
    out, _ = swapped(tmp_path, given.base, given.adapters, SWAP.parameters())
    plain = {name: tensor.double() for name, tensor in stored(given.base).items()}
    wanted = expected(SWAP, merged(given.base, given.adapters["task"]), plain)
    assert_near(merged(given.base, out), wanted)


def test_sixteen_bits_stay_where_they_are_exact(make: Make, tmp_path: Path) -> None:
    given = make({}, {})
    for folder in given.adapters.values():
        from safetensors.torch import save_file

        file = folder / "adapter_model.safetensors"
        save_file({name: tensor.bfloat16() for name, tensor in load_file(file).items()}, file)
    both = {role: merged(given.base, adapter) for role, adapter in given.adapters.items()}
    for weight, rank, dtype in (
        (1.0, None, torch.bfloat16),
        (1.0, 4, torch.bfloat16),
        (2.0, None, torch.float32),
    ):
        swap = Swap(LAYERS, w_lang=weight)
        place = tmp_path / f"{weight}-{rank}"
        out, _ = swapped(place, given.base, given.adapters, swap.parameters(), rank)
        found = load_file(out / "adapter_model.safetensors")
        assert {tensor.dtype for tensor in found.values()} == {dtype}
        assert_near(merged(given.base, out), expected(swap, both["task"], both["language"]))


def test_a_lower_rank_is_the_nearest_and_its_error_is_said(make: Make, tmp_path: Path) -> None:
    given = make({"r": 3}, {"r": 4})
    parameters = {"placement": "soup"}
    exact, _ = swapped(tmp_path / "exact", given.base, given.adapters, parameters)
    out, lines = swapped(tmp_path / "cut", given.base, given.adapters, parameters, rank=3)
    plain, whole, cut = stored(given.base), merged(given.base, exact), merged(given.base, out)
    record = json.loads((out / "layer_swap_plan.json").read_text())["adapter"]["cut"]
    assert record["rank"] == 3
    assert len(record["tensors"]) == LAYERS * len(LINEAR)
    missing = total = 0.0
    for name, said in record["tensors"].items():
        change = (whole[name] - plain[name].double()).numpy()
        values = np.linalg.svd(change, compute_uv=False)
        best = float(np.sqrt((values[3:] ** 2).sum()))
        found = float((whole[name] - cut[name]).norm())
        assert found == pytest.approx(best, rel=1e-4)
        assert said == pytest.approx(best / np.linalg.norm(change), rel=1e-4)
        assert said > 0.05
        missing, total = missing + best**2, total + float((change**2).sum())
    assert record["relative_error"] == pytest.approx((missing / total) ** 0.5, rel=1e-4)
    assert any(
        line.startswith("rank 3: 18 of 18 tensors cut; relative error of the whole change 0.")
        for line in lines
    )
    assert json.loads((out / "adapter_config.json").read_text())["rank_pattern"] == {}
    _, lines = swapped(tmp_path / "none", given.base, given.adapters, parameters, rank=7)
    assert "rank 7: no tensor has a higher rank; all are exact" in lines


def test_peft_runs_it_unmerged(make: Make, tmp_path: Path) -> None:
    given = make({"r": 3}, {"use_rslora": True})
    out, _ = swapped(tmp_path, given.base, given.adapters, SWAP.parameters())
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(given.base, dtype=torch.float32)
    model.load_state_dict(merged(given.base, out, torch.float32))
    with torch.no_grad():
        wanted = model(input_ids=torch.tensor([[3, 11, 12, 13, 40]])).logits
    found = logits(given.base, out)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert (found - logits(given.base, given.adapters["task"])).abs().max() > 0.01
