"""`layerswap merge` writes the folder that mergekit writes: tensors, config, tokenizer, card."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from tests.merge.conftest import run_merge
from tests.standins.merging import merge, recipe, roles
from tests.standins.oracle import assert_same, stored
from tests.standins.streams import stream_of
from tests.standins.tuned import tune
from tests.stream.test_adapters import make_adapter

__all__ = ["make_adapter"]

SWAP = {"bottom_layers": 2, "top_layers": 1, "bottom_transition": 1}
PARAMETERS: dict[str, dict[str, Any]] = {
    "layers": SWAP,
    "middle": {**SWAP, "placement": "middle"},
    "random": {**SWAP, "placement": "random", "seed": 3},
    "alternating": {"bottom_layers": 2, "top_layers": 1, "placement": "alternating"},
    "soup": {"placement": "soup", "task_weight": 3, "language_weight": 1},
    "norms": {**SWAP, "layer_norms": "average", "task_weight": 0.3},
    "listed": {"placement": "layers", "language_layers": "0-1"},
    "module": {**SWAP, "swap_modules": "attention", "non_layer": "base"},
    "magnitude": {**SWAP, "weighting": "magnitude"},
    "delta_share": {"placement": "delta_share", "delta_threshold": 0.01},
    "delta_share_modules": {"placement": "delta_share", "delta_unit": "module"},
}


def assert_same_folder(ours: Path, theirs: Path) -> None:
    """Fail unless both hold the same files with the same content."""
    assert_same(stored(ours), stored(theirs))
    names = {
        folder: {file.name for file in folder.iterdir() if "safetensors" not in file.name}
        for folder in (ours, theirs)
    }
    assert names[ours] == names[theirs]
    assert {"config.json", "tokenizer.json", "README.md", "generation_config.json"} <= names[ours]
    for name in names[ours]:
        one, other = ((folder / name).read_text(encoding="utf-8") for folder in (ours, theirs))
        if name.endswith(".json"):
            assert json.loads(one) == json.loads(other), name
        elif name == "README.md":  # mergekit lists models in a random order
            assert sorted(one.splitlines()) == sorted(other.splitlines())
        else:
            assert one == other, name


def both(document: dict[str, Any], tmp_path: Path, **options: Any) -> tuple[Path, Path]:
    """Return the folders of one recipe merged both ways; both have one name, for the card."""
    ours, theirs = tmp_path / "ours" / "merged", tmp_path / "theirs" / "merged"
    ours.parent.mkdir()
    done = run_merge(document, ours)
    assert done.exit_code == 0, done.output
    assert "passed on" not in done.output
    return ours, merge(document, theirs, copy_tokenizer=True, **options)


@pytest.mark.parametrize("kind", PARAMETERS)
def test_every_placement(kind: str, trio: SimpleNamespace, tmp_path: Path) -> None:
    document = recipe(roles(trio), PARAMETERS[kind], trio.base)
    assert_same_folder(*both(document, tmp_path))


@pytest.mark.parametrize(
    "dtypes",
    [
        {"dtype": "float16"},
        {"out_dtype": "float32"},
        {"dtype": "float32", "out_dtype": "float16"},
        {"dtype": "float64"},
    ],
    ids=str,
)
def test_every_dtype(dtypes: dict[str, str], trio: SimpleNamespace, tmp_path: Path) -> None:
    assert_same_folder(*both(recipe(roles(trio), SWAP, trio.base) | dtypes, tmp_path))


@pytest.mark.parametrize("parameters", [SWAP, PARAMETERS["magnitude"]], ids=["uniform", "measured"])
def test_soups_of_several_experts(
    parameters: dict[str, Any], trio: SimpleNamespace, tmp_path: Path
) -> None:
    document = recipe(roles(trio), parameters, trio.base)
    for role, seed, weight in (("task", 7, 0.25), ("language", 8, 2), ("language", 9, 1)):
        model = tune(trio.base, tmp_path / f"more{seed}", seed, 0.02, torch.bfloat16)
        more = {"model": str(model), "parameters": {"role": role, "weight": weight}}
        document["models"].append(more)
    assert_same_folder(*both(document, tmp_path))


@pytest.mark.parametrize(
    "parameters",
    [
        {"keep_fraction": 0.5},
        {"threshold": 0.015},
        {"bottom_layers": 2, "revert_modules": "attention"},
    ],
    ids=str,
)
def test_delta_revert(parameters: dict[str, Any], trio: SimpleNamespace, tmp_path: Path) -> None:
    document = {
        "merge_method": "delta_revert",
        "models": [{"model": str(trio.task)}],
        "base_model": str(trio.base),
        "parameters": parameters,
    }
    assert_same_folder(*both(document, tmp_path))


def test_models_of_different_dtypes(
    trio: SimpleNamespace, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A copy keeps its dtype, an average has the wider one, and the user is told."""
    models = {"task": trio.task, "language": tmp_path / "half"}
    tune(trio.base, models["language"], 5, 0.02, torch.float16)
    ours, _ = folders = both(recipe(models, SWAP, trio.base), tmp_path)
    assert_same_folder(*folders)
    dtypes = {tensor.dtype for tensor in stored(ours).values()}
    assert dtypes == {torch.bfloat16, torch.float16, torch.float32}
    told = [line for line in caplog.messages if "the checkpoints have different dtypes" in line]
    assert len(told) == 2
    assert sorted(told[0]) == sorted(told[1])  # they list the models in another order


def test_models_of_different_settings(
    own_trio: SimpleNamespace, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Shapes do not tell a RoPE base: both ways merge, and both name it and `layerswap compat`."""
    file = own_trio.language / "config.json"
    config = json.loads(file.read_text())
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
    file.write_text(json.dumps(config | rope))
    document = recipe({"task": own_trio.task, "language": own_trio.language}, SWAP, own_trio.base)
    assert_same_folder(*both(document, tmp_path))
    told = [line for line in caplog.messages if "have different settings" in line]
    assert len(told) == 2
    for line in told:
        assert f"{own_trio.language} 500000.0" in line
        assert "layerswap compat " in line


def test_linear_and_passthrough(trio: SimpleNamespace, tmp_path: Path) -> None:
    models = [
        {"model": str(trio.task), "parameters": {"weight": 0.3}},
        {"model": str(trio.language), "parameters": {"weight": 1}},
    ]
    linear = {"merge_method": "linear", "base_model": str(trio.task), "models": models}
    (tmp_path / "linear").mkdir()
    assert_same_folder(*both(linear, tmp_path / "linear"))
    alone = {"merge_method": "passthrough", "models": [{"model": str(trio.task)}]}
    (tmp_path / "alone").mkdir()
    assert_same_folder(*both(alone | {"out_dtype": "float16"}, tmp_path / "alone"))


def test_adapters_need_no_merged_copy(
    trio: SimpleNamespace, make_adapter: Any, tmp_path: Path
) -> None:
    adapted = {
        role: f"{trio.base}+{make_adapter(trio.base, role, seed)}"
        for seed, role in enumerate(("task", "language"))
    }
    document = recipe(adapted, SWAP, trio.base)
    assert_same_folder(*both(document, tmp_path, lora_merge_cache=str(tmp_path / "cache")))


def test_three_ways_agree(trio: SimpleNamespace, tmp_path: Path) -> None:
    document = recipe(roles(trio), PARAMETERS["magnitude"], trio.base)
    ours, theirs = both(document, tmp_path)
    streamed = dict(stream_of(document).tensors())
    assert_same(stored(ours), streamed)
    assert_same(stored(theirs), streamed)


def test_a_swap_of_most_of_the_model_is_told_both_ways(
    trio: SimpleNamespace, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    both(recipe(roles(trio), {"bottom_layers": 3, "top_layers": 2}, trio.base), tmp_path)
    told = [line for line in caplog.messages if "more than half of the model" in line]
    assert len(told) == 2
    assert told[0] == told[1]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tokenizer": {"source": "base"}}, "it has tokenizer:"),
        ({"merge_method": "slerp"}, "its method is slerp"),
        (
            {"merge_method": "passthrough", "models": [{"model": "x"}], "base_model": None},
            "what it says of passthrough is more than weights",
        ),
        ({"merge_method": "linear"}, "what it says of linear is more than"),
    ],
)
def test_what_mergekit_must_do_is_passed_on(
    change: dict[str, Any],
    reason: str,
    trio: SimpleNamespace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[list[str]] = []

    def record(command: list[str], check: bool) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        return subprocess.CompletedProcess(command, 3)

    monkeypatch.setattr(subprocess, "run", record)
    document = recipe(roles(trio), SWAP, trio.base) | change
    done = run_merge(document, tmp_path / "out", "--", "--cuda")
    assert done.exit_code == 3
    assert f"is passed on to mergekit-yaml: {reason}" in done.output
    recipe_file, out = str(tmp_path / "recipe.yml"), str(tmp_path / "out")
    assert calls[0][-5:] == [recipe_file, out, "--out-shard-size", "5000000000", "--cuda"]
    refused = run_merge(document, tmp_path / "out", "--verify")
    assert refused.exit_code == 2
    assert "--verify cannot be used: mergekit must merge this recipe" in refused.output


def test_nothing_heavy_is_imported_for_copies(trio: SimpleNamespace, tmp_path: Path) -> None:
    document = recipe(roles(trio), SWAP | {"bottom_transition": 0, "non_layer": "task"}, trio.base)
    document["parameters"] |= {"top_transition": 0}
    (tmp_path / "recipe.yml").write_text(yaml.safe_dump(document), encoding="utf-8")
    code = (
        "import sys; from ablations.cli import main; "
        "main(sys.argv[1:], standalone_mode=False); "
        "assert not {'torch', 'transformers', 'numpy', 'mergekit'} & set(sys.modules)"
    )
    out = tmp_path / "merged"
    command = [sys.executable, "-c", code, "merge", str(tmp_path / "recipe.yml"), str(out)]
    subprocess.run(command, check=True, capture_output=True)
    assert_same(stored(out), dict(stream_of(document).tensors()))
