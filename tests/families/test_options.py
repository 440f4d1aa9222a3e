"""mergekit's own options: none changes a tensor. And the merge in memory, without a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from layerswap_method.errors import LayerSwapError
from tests.standins.merging import merge, recipe, revert_recipe, roles
from tests.standins.oracle import READERS, Swap, assert_same, expected, stored
from tests.standins.zoo import LAYERS

SWAP = Swap(LAYERS)

OPTIONS: list[dict[str, Any]] = [
    {"lazy_unpickle": True},
    {"out_shard_size": 3000},
    {"clone_tensors": True},
    {"async_write": True, "write_threads": 2},
    {"low_cpu_memory": True},
    {"write_model_card": False},
    {"quiet": False},
    {"num_threads": 1, "random_seed": 3},
    {"allow_crimes": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(o))
def test_no_option_changes_a_tensor(
    options: dict[str, Any], experts: Any, loads: Any, tmp_path: Path
) -> None:
    given = experts("llama")
    out = merge(recipe(roles(given), SWAP.parameters()), tmp_path / "merged", **options)
    assert_same(stored(out), expected(SWAP, stored(given.task), stored(given.language)))
    assert (len(list(out.glob("*.safetensors"))) > 1) == ("out_shard_size" in options)
    assert (out / "mergekit_config.yml").is_file() == options.get("write_model_card", True)
    loads(out)


def test_a_pickled_output_holds_the_same(experts: Any, tmp_path: Path) -> None:
    import torch

    given = experts("llama")
    out = merge(
        recipe(roles(given), SWAP.parameters()), tmp_path / "merged", safe_serialization=False
    )
    found = torch.load(out / "pytorch_model.bin", weights_only=True)
    assert_same(found, expected(SWAP, stored(given.task), stored(given.language)))


def test_sharded_experts(experts: Any, tmp_path: Path) -> None:
    given = experts("llama", shard="4KB")
    assert len(list(given.task.glob("*.safetensors"))) > 3
    out = merge(recipe(roles(given), SWAP.parameters()), tmp_path / "merged")
    assert_same(stored(out), expected(SWAP, stored(given.task), stored(given.language)))


def plan_in_memory(planner: Any) -> list[Any]:
    """Return the tasks of a merge without files.

    With pydantic of today `MergePlanner.plan_in_memory` of mergekit 0.1.5 fails for every method
    (it validates a task against the abstract `Task[Tensor]`); then the same without validation.
    """
    from mergekit.io.tasks import ReturnTensor

    try:
        return list(planner.plan_in_memory())
    except TypeError as error:
        if "abstract class Task" not in str(error):
            raise
    return [
        ReturnTensor.model_construct(weight_info=weight, tensor_task=task, dtype=None)
        for weight, task in planner._tensors
    ]


def merged_in_memory(document: dict[str, Any]) -> dict[str, Any]:
    """Return the tensors of a recipe that mergekit's own planner plans: the kernel works alone."""
    from mergekit.architecture import get_architecture_info
    from mergekit.config import MergeConfiguration
    from mergekit.graph import Executor
    from mergekit.options import MergeOptions
    from mergekit.plan import MergePlanner

    config = MergeConfiguration.model_validate(document)
    options = MergeOptions(quiet=True)
    planner = MergePlanner(
        config,
        get_architecture_info(config, options),
        options=options,
        out_model_config=config.base_model.config(),
    )
    return {
        task.weight_info.name: tensor
        for task, tensor in Executor(plan_in_memory(planner), "cpu", "cpu").run(quiet=True)
        if tensor is not None
    }


@pytest.mark.parametrize("family", ["llama", "gpt2", "mixtral", "opt", "mistral3_vl", "qwen3_vl"])
@pytest.mark.parametrize("non_layer", ["average", "base"])
def test_the_kernel_alone_gives_the_same_tensors(family: str, non_layer: str, experts: Any) -> None:
    given = experts(family)
    swap = Swap(LAYERS, non_layer=non_layer)
    merged = merged_in_memory(recipe(roles(given), swap.parameters(), given.base))
    read = READERS.get(family, stored)
    assert_same(merged, expected(swap, read(given.task), read(given.language), read(given.base)))


def test_the_kernel_alone_in_another_dtype(experts: Any) -> None:
    import torch

    given = experts("llama")
    merged = merged_in_memory(recipe(roles(given), SWAP.parameters(), dtype="float32"))
    wanted = expected(SWAP, stored(given.task), stored(given.language), dtype=torch.float32)
    assert_same(merged, wanted)


def test_the_kernel_alone_reverts_layers(experts: Any) -> None:
    given = experts("llama")
    parameters = {"bottom_layers": 1, "revert_modules": "norm"}
    document = revert_recipe(given.task, given.base, parameters)
    task, base = stored(given.task), stored(given.base)
    back = {name for name in task if "layers.0." in name or "layernorm" in name}
    assert 0 < len(back) < len(task)
    wanted = {name: (base if name in back else task)[name] for name in task}
    assert_same(merged_in_memory(document), wanted)


def test_a_planner_of_another_mergekit_is_refused(
    experts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mergekit.plan import MergePlanner

    monkeypatch.setattr(MergePlanner, "plan_tensor", lambda self, weight, more: None)
    with pytest.raises(
        LayerSwapError, match=r"MergePlanner\.plan_tensor is not the one of"
    ) as info:
        merge(recipe(roles(experts("llama")), SWAP.parameters()), tmp_path / "new" / "merged")
    assert info.value.exit_code == 1
    assert not (tmp_path / "new").exists()


def test_a_recipe_read_twice_gives_the_same_merge(experts: Any, tmp_path: Path) -> None:
    # mergekit rewrites `models:` into `modules:` in the configuration that it was given.
    from mergekit.config import MergeConfiguration
    from mergekit.merge import run_merge
    from mergekit.options import MergeOptions

    given = experts("llama")
    config = MergeConfiguration.model_validate(
        recipe(roles(given), {**SWAP.parameters(), "non_layer": "base"}, given.base)
    )
    options = MergeOptions(quiet=True, copy_tokenizer=False)
    for name in ("first", "second"):
        run_merge(config, str(tmp_path / name), options)
    assert_same(stored(tmp_path / "second"), stored(tmp_path / "first"))
