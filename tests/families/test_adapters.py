"""`base+adapter` references: the swap of models that mergekit first merges with their adapters."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from layerswap_method.mergekit_plugin.adapter_copies import RECORD
from safetensors.torch import load_file, save_file

from layerswap_method.errors import InputError
from tests.standins.merging import merge, recipe
from tests.standins.oracle import Swap, assert_same, average, round_once, stored
from tests.standins.tuned import train_adapter
from tests.standins.zoo import LAYERS

SWAP = Swap(LAYERS)
RANK, ALPHA = 2, 6
TARGETS = ["q_proj", "v_proj", "down_proj"]

pytestmark = pytest.mark.filterwarnings("ignore:.*torch_dtype.*")


@pytest.fixture(scope="session")
def adapted(experts: Any, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Return a float32 base and a peft adapter a role, both matrices random."""
    root = tmp_path_factory.mktemp("adapters")
    base = experts("llama", dtype=torch.float32).base
    config = {"r": RANK, "lora_alpha": ALPHA, "target_modules": TARGETS}
    folders = {
        role: train_adapter(base, root / role, seed, **config)
        for seed, role in enumerate(("task", "language"))
    }
    return SimpleNamespace(base=base, **folders)


def merged_by_hand(base: Path, adapter: Path) -> dict[str, torch.Tensor]:
    """Return base + alpha/r * B @ A in float64."""
    weights = {name: tensor.double() for name, tensor in stored(base).items()}
    matrices = {
        name.removeprefix("base_model.model."): tensor.double()
        for name, tensor in load_file(adapter / "adapter_model.safetensors").items()
    }
    downs = [name for name in matrices if name.endswith("lora_A.weight")]
    assert len(downs) == LAYERS * len(TARGETS)
    for name in downs:
        up = matrices[name.replace("lora_A", "lora_B")]
        target = name.replace("lora_A.weight", "weight")
        weights[target] = weights[target] + ALPHA / RANK * up @ matrices[name]
    return weights


def assert_close(found: dict[str, Any], wanted: dict[str, torch.Tensor], ulps: float) -> None:
    """Fail where a float32 tensor is more than `ulps` float32 steps of its largest value away."""
    assert set(found) == set(wanted)
    for name, tensor in wanted.items():
        assert found[name].dtype == torch.float32
        step = torch.finfo(torch.float32).eps * tensor.abs().max()
        assert (found[name].double() - tensor).abs().max() <= ulps * step, name


def test_adapters_on_both_sides(adapted: Any, loads: Any, tmp_path: Path) -> None:
    models = {role: f"{adapted.base}+{getattr(adapted, role)}" for role in ("task", "language")}
    document = recipe(models, SWAP.parameters(), adapted.base)
    out = merge(document, tmp_path / "merged", lora_merge_cache=str(tmp_path / "cache"))
    task, language = (merged_by_hand(adapted.base, getattr(adapted, r)) for r in models)
    wanted = {}
    for name, tensor in task.items():
        source = SWAP.of_tensor(name)
        both = (tensor + language[name]) / 2
        wanted[name] = {"task": tensor, "language": language[name], "average": both}[source]
        assert any(t in name for t in TARGETS) != torch.equal(tensor, language[name])
    assert_close(stored(out), wanted, ulps=2)
    loads(out)
    # Exactly what the merged copies hold: the swap itself adds no rounding of its own.
    copies = sorted((tmp_path / "cache").iterdir())
    assert len(copies) == 2
    of = {role: stored(next(c for c in copies if f"_{role}_" in c.name)) for role in models}
    exact = {
        name: average(tensor, of["language"][name], SWAP)
        if SWAP.of_tensor(name) == "average"
        else of[SWAP.of_tensor(name)][name]
        for name, tensor in of["task"].items()
    }
    assert_same(stored(out), exact)


@pytest.mark.parametrize("with_adapter", ["task", "language"])
def test_an_adapter_on_one_side(
    with_adapter: str, adapted: Any, experts: Any, tmp_path: Path
) -> None:
    plain = experts("llama", dtype=torch.float32)
    models = {"task": plain.task, "language": plain.language}
    models[with_adapter] = f"{adapted.base}+{getattr(adapted, with_adapter)}"
    out = merge(
        recipe(models, SWAP.parameters(), adapted.base),
        tmp_path / "merged",
        lora_merge_cache=str(tmp_path / "cache"),
    )
    values = {
        role: {name: t.double() for name, t in stored(getattr(plain, role)).items()}
        for role in models
    }
    values[with_adapter] = merged_by_hand(adapted.base, getattr(adapted, with_adapter))
    wanted = {
        name: (tensor + values["language"][name]) / 2
        if SWAP.of_tensor(name) == "average"
        else values[SWAP.of_tensor(name)][name]
        for name, tensor in values["task"].items()
    }
    assert_close(stored(out), wanted, ulps=2)


def test_lora_merge_dtype_rounds_the_copy(adapted: Any, tmp_path: Path) -> None:
    models = {role: f"{adapted.base}+{getattr(adapted, role)}" for role in ("task", "language")}
    document = recipe(models, SWAP.parameters(), models["task"])
    out = merge(
        document,
        tmp_path / "merged",
        lora_merge_cache=str(tmp_path / "cache"),
        lora_merge_dtype="float64",
    )
    task = merged_by_hand(adapted.base, adapted.task)
    found = stored(out)
    name = "model.layers.3.self_attn.q_proj.weight"
    assert SWAP.of_tensor(name) == "task"
    assert found[name].dtype == torch.float64
    assert (found[name] - task[name]).abs().max() < 1e-6 * task[name].abs().max()
    assert not torch.equal(
        round_once(task[name].numpy(), torch.float64), stored(adapted.base)[name]
    )


def test_without_a_cache_folder_nothing_is_written(adapted: Any, tmp_path: Path) -> None:
    models = {role: f"{adapted.base}+{getattr(adapted, role)}" for role in ("task", "language")}
    with pytest.raises(InputError, match=r"add --lora-merge-cache DIR") as raised:
        merge(recipe(models, SWAP.parameters(), adapted.base), tmp_path / "new" / "merged")
    assert "2 problems" in str(raised.value)
    assert not (tmp_path / "new").exists()


def test_an_adapter_where_mergekit_must_infer_the_architecture_is_refused(
    adapted: Any, experts: Any, tmp_path: Path
) -> None:
    given = experts("smollm3")
    train_adapter(given.base, tmp_path / "adapter", r=RANK, target_modules=TARGETS)
    models = {"task": f"{given.base}+{tmp_path / 'adapter'}", "language": given.language}
    with pytest.raises(InputError, match=r"no definition of SmolLM3ForCausalLM .*merge it first"):
        merge(
            recipe(models, SWAP.parameters(), given.base),
            tmp_path / "new" / "merged",
            lora_merge_cache=str(tmp_path / "cache"),
        )
    assert not (tmp_path / "new").exists()


def test_a_broken_adapter_leaves_no_copy_behind(adapted: Any, tmp_path: Path) -> None:
    # mergekit makes the folder of the copy first and takes it for finished the next time.
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "adapter_config.json").write_bytes(
        (adapted.task / "adapter_config.json").read_bytes()
    )
    (broken / "adapter_model.safetensors").write_bytes(b"not safetensors")
    models = {"task": f"{adapted.base}+{broken}", "language": f"{adapted.base}+{adapted.language}"}
    cache = tmp_path / "cache"
    for _ in range(2):
        with pytest.raises(InputError, match=r"adapter_model.safetensors: is damaged"):
            merge(
                recipe(models, SWAP.parameters(), adapted.base),
                tmp_path / "new" / "merged",
                lora_merge_cache=str(cache),
            )
        assert not list(cache.glob("*broken*"))
    assert not (tmp_path / "new").exists()


def test_a_copy_of_another_adapter_or_dtype_is_refused(adapted: Any, tmp_path: Path) -> None:
    """mergekit takes the copy that it finds: the merge would be that of the old adapter."""
    trained = Path(shutil.copytree(adapted.task, tmp_path / "trained"))
    models = {"task": f"{adapted.base}+{trained}", "language": adapted.base}
    document, cache = recipe(models, SWAP.parameters(), adapted.base), tmp_path / "cache"
    first = merge(document, tmp_path / "first", lora_merge_cache=str(cache))
    again = merge(document, tmp_path / "again", lora_merge_cache=str(cache))
    assert_same(stored(again), stored(first))
    (copy,) = cache.iterdir()

    def refused(why: str, **options: Any) -> None:
        with pytest.raises(InputError) as raised:
            merge(document, tmp_path / "out", lora_merge_cache=str(cache), **options)
        assert f"{copy} is out of date: {why}" in raised.value.message
        assert "delete that folder and run the command again" in raised.value.message
        assert not (tmp_path / "out").exists()

    refused(
        "it was made with --lora-merge-dtype none, and this command has float64",
        lora_merge_dtype="float64",
    )
    file = trained / "adapter_model.safetensors"
    save_file({name: tensor * 3 for name, tensor in load_file(file).items()}, file)
    refused(f"{file} has changed since it was made")
    record = copy / RECORD
    record.unlink()  # as of a copy that mergekit made on its own
    refused(f"{file} was written after it was made")
    shutil.rmtree(copy)
    trebled = stored(merge(document, tmp_path / "trebled", lora_merge_cache=str(cache)))
    assert any(not torch.equal(trebled[name], tensor) for name, tensor in stored(first).items())
    record.unlink()
    assert_same(
        stored(merge(document, tmp_path / "same", lora_merge_cache=str(cache))), trebled
    )  # newer than all that it can be made from
    (copy / "model.safetensors").unlink()
    refused("it has no weights")
