"""`layerswap swap-adapters` as a user calls it: what is said, written and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from click.testing import CliRunner, Result
from safetensors.torch import load_file, save_file

from ablations.cli import main
from layerswap_method.checkpoint.stored import file_stamp
from tests.standins.merging import recipe
from tests.standins.tuned import train_adapter, tune

PARAMETERS = {"bottom_layers": 2, "top_layers": 1, "bottom_transition": 1}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.standins.zoo import make_model

    return make_model("llama", tmp_path_factory.mktemp("model") / "base", 0, dtype=torch.float32)


@pytest.fixture
def document(base: Path, tmp_path: Path) -> dict[str, Any]:
    """Return the recipe of two adapters in `tmp_path`."""
    for seed, role in enumerate(("task", "language")):
        config = {"target_modules": ["q_proj"], "r": 2, "lora_alpha": 4}
        train_adapter(base, tmp_path / role, seed, **config)
    models = {role: f"{base}+{tmp_path / role}" for role in ("task", "language")}
    return recipe(models, PARAMETERS, base)


def call(document: Any, tmp_path: Path, *more: str, out: str = "out") -> Result:
    file = tmp_path / "recipe.yml"
    file.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
    arguments = ["swap-adapters", str(file), "--out", str(tmp_path / out), *more]
    return CliRunner().invoke(main, arguments)


def test_it_says_what_it_did_and_can_be_called_again(
    document: dict[str, Any], base: Path, tmp_path: Path
) -> None:
    result = call(document | {"dtype": "bfloat16"}, tmp_path, "--rank", "3")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[2] == "6 layers: language 0-1,5; average 2; task 3-4"
    assert lines[4] == "adapter: 6 tensors, rank 2 to 3, float32"
    assert lines[5].startswith("rank 3: 1 of 6 tensors cut; relative error of the whole change 0.")
    assert lines[6] == (
        "dtype: bfloat16 is of merged weights; the adapter keeps its experts' dtype"
    )
    out = tmp_path / "out"
    assert lines[7].startswith(f"{out}: 0.0")
    files = {"adapter_config.json", "adapter_model.safetensors", "layer_swap_plan.json"}
    assert {file.name for file in out.iterdir()} == {*files, "README.md"}
    config = json.loads((out / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(base)
    assert "█" in (out / "README.md").read_text()
    first = load_file(out / "adapter_model.safetensors")
    assert call(document, tmp_path).exit_code == 0
    second = load_file(out / "adapter_model.safetensors")
    assert any(first[name].shape != second[name].shape for name in second)
    assert not list(tmp_path.glob(".layerswap*"))


def test_the_new_adapter_is_read_like_any_other(
    document: dict[str, Any], base: Path, tmp_path: Path
) -> None:
    assert call(document, tmp_path).exit_code == 0
    again = recipe(
        {"task": f"{base}+{tmp_path / 'out'}", "language": f"{base}+{tmp_path / 'language'}"},
        PARAMETERS,
        base,
    )
    result = call(again, tmp_path, out="again")
    assert result.exit_code == 0, result.output
    assert "adapter: 6 tensors, rank 2 to 6, float32" in result.output


def edit_config(**changes: Any) -> Any:
    def edit(document: dict[str, Any], base: Path, tmp_path: Path) -> dict[str, Any]:
        path = tmp_path / "task" / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
        return document

    return edit


def another_base(document: dict[str, Any], base: Path, tmp_path: Path) -> dict[str, Any]:
    other = tune(base, tmp_path / "other", 3)
    document["models"][1]["model"] = f"{other}+{tmp_path / 'language'}"
    return document


def full_expert(document: dict[str, Any], base: Path, tmp_path: Path) -> dict[str, Any]:
    document["models"][1]["model"] = str(tune(base, tmp_path / "full", 3))
    return document


def no_adapter(document: dict[str, Any], base: Path, tmp_path: Path) -> dict[str, Any]:
    copies = [tune(base, tmp_path / name, 3, 0.0) for name in ("one", "two")]
    for entry, folder in zip(document["models"], copies, strict=True):
        entry["model"] = str(folder)
    return document


def nothing_left(document: dict[str, Any], base: Path, tmp_path: Path) -> dict[str, Any]:
    document["models"][0]["model"] = str(base)
    document["parameters"] = {"bottom_layers": 0, "top_layers": 0}
    return document


def not_finite(document: dict[str, Any], base: Path, tmp_path: Path) -> dict[str, Any]:
    file = tmp_path / "task" / "adapter_model.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if "layers.3" in name)
    save_file({**tensors, name: tensors[name] * float("nan")}, file)
    return document


REFUSED = {
    "dora": (edit_config(use_dora=True), "use_dora is set. DoRA divides each row of a weight"),
    "kind": (edit_config(peft_type="IA3"), "peft_type is IA3; known are LORA and PREFIX_TUNING"),
    "kinds": (edit_config(peft_type="PREFIX_TUNING"), "the adapters must be of one kind"),
    "saved": (edit_config(modules_to_save=["lm_head"]), "modules_to_save is set"),
    "base": (another_base, "is not the base_model"),
    "full": (full_expert, "adapters can only be swapped on one base"),
    "none": (no_adapter, "no model of the recipe is BASE+ADAPTER"),
    "nothing": (nothing_left, "the new adapter would change nothing"),
    "nan": (not_finite, "holds NaN or infinite values"),
    "method": (lambda d, *_: d | {"merge_method": "linear"}, "merge_method is 'linear'"),
    "typo": (
        lambda d, *_: d | {"parameters": {"botom_layers": 1}},
        "did you mean 'bottom_layers'?",
    ),
    "tokenizer": (
        lambda d, *_: d | {"tokenizer": {"source": "base"}},
        "tokenizer: is of a whole model and has no effect on adapters; drop it",
    ),
    "dtype": (lambda d, *_: d | {"dtype": "bf16"}, "dtype is 'bf16'; it must be one of"),
    "text": (lambda *_: "- a list", "is no recipe"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_what_is_refused(fault: str, document: dict[str, Any], base: Path, tmp_path: Path) -> None:
    make, message = REFUSED[fault]
    result = call(make(document, base, tmp_path), tmp_path)
    assert result.exit_code == 2, result.output
    assert message in result.output
    assert result.output.splitlines()[0].startswith(("Error: ", "task expert"))
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".layerswap*"))


def test_output_folders_that_are_not_taken(
    document: dict[str, Any], base: Path, tmp_path: Path
) -> None:
    stamp = file_stamp(tmp_path / "task" / "adapter_model.safetensors")
    for out, message in (
        ("task", "one of the merge's inputs"),
        ("task/inside", "is inside"),
        ("recipe.yml", "is a file"),
    ):
        result = call(document, tmp_path, out=out)
        assert (result.exit_code, message in result.output) == (2, True), result.output
    third = train_adapter(base, tmp_path / "third", 7, target_modules=["q_proj"])
    result = call(document, tmp_path, out="third")
    assert "has weights that no merge has written (adapter_model.safetensors)" in result.output
    assert (third / "adapter_config.json").is_file()
    assert file_stamp(tmp_path / "task" / "adapter_model.safetensors") == stamp
