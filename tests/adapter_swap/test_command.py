"""`layerswap swap-adapters` as a user calls it: what is logged, written and refused."""

import json

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from ablations.cli import main
from tests.standins.experts import content, left_in
from tests.standins.merging import recipe, write_recipe
from tests.standins.tuned import edited, train_adapter, tune

PARAMETERS = {"bottom_layers": 2, "top_layers": 1, "bottom_transition": 1}
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


@pytest.fixture
def base(experts):
    return experts("llama", dtype=torch.float32).base


@pytest.fixture
def document(base, tmp_path):
    """Return the recipe of two adapters in `tmp_path`."""
    config = {"target_modules": ["q_proj"], "r": 2, "lora_alpha": 4}
    roles = enumerate(("task", "language"))
    made = {role: train_adapter(base, tmp_path / role, seed, **config) for seed, role in roles}
    return recipe({role: f"{base}+{at}" for role, at in made.items()}, PARAMETERS, base)


def call(document, tmp_path, *more, out="out"):
    file = write_recipe(tmp_path / "recipe.yml", document)
    arguments = ["swap-adapters", str(file), "--out", str(tmp_path / out), *more]
    return CliRunner().invoke(main, arguments)


def test_it_reports_what_it_did_and_can_be_called_again(document, base, tmp_path):
    result = call(document | {"dtype": "bfloat16"}, tmp_path, "--rank", "3")
    assert result.exit_code == 0, result.output
    for part in (
        "6 layers: language 0-1,5; average 2; task 3-4",
        "adapter: 6 tensors, rank 2 to 3, float32",
        "rank 3: 1 of 6 tensors cut; relative error of the whole change 0.",
        "dtype bfloat16 is for merged weights",
    ):
        assert part in result.output
    out = tmp_path / "out"
    assert {*content(out)} == {CONFIG, WEIGHTS, "layer_swap_plan.json", "README.md"}
    assert json.loads((out / CONFIG).read_text())["base_model_name_or_path"] == str(base)
    assert "██▒··█" in (out / "README.md").read_text()
    assert "rank 2 to 4" in call(document, tmp_path).output
    document["models"][0]["model"] = f"{base}+{out}"
    result = call(document, tmp_path, out="again")
    assert "adapter: 6 tensors, rank 2 to 6, float32" in result.output
    assert not left_in(tmp_path)


def config_with(**changes):
    return lambda document, base, root: edited(root / "task", CONFIG, **changes)


def without_adapters(*names):
    """Return an edit that puts whole fine-tunes in the place of the last adapters."""

    def edit(document, base, root):
        for name, entry in zip(reversed(names), reversed(document["models"]), strict=False):
            entry["model"] = str(tune(base, root / name, 3))

    return edit


def not_finite(document, base, root):
    tensors = load_file(root / "task" / WEIGHTS)
    tensors[next(name for name in tensors if "layers.3" in name)][0, 0] = torch.nan
    save_file(tensors, root / "task" / WEIGHTS)


def nothing_left(document, base, root):
    document["models"][0]["model"] = str(base)
    document["parameters"] = {"bottom_layers": 0, "top_layers": 0}


def other_base(document, base, root):
    other = tune(base, root / "other", 3)
    document["models"][1]["model"] = f"{other}+{root / 'language'}"


REFUSED = {
    "dora": (config_with(use_dora=True), ["use_dora", "merge_and_unload"]),
    "kind": (config_with(peft_type="IA3"), ["peft_type is IA3", "LORA and PREFIX_TUNING"]),
    "kinds": (config_with(peft_type="PREFIX_TUNING"), ["must be of one kind", "LORA"]),
    "base": (other_base, ["is not the base_model", "other"]),
    "full": (without_adapters("full"), ["full", "layerswap merge"]),
    "none": (without_adapters("one", "two"), ["BASE+ADAPTER", "layerswap merge"]),
    "nothing": (nothing_left, ["would change nothing", "take other layers"]),
    "nan": (not_finite, ["task", "layers.3", "NaN"]),
    "method": (lambda d, *_: d.update(merge_method="linear"), ["layer_swap only"]),
    "tokenizer": (lambda d, *_: d.update(tokenizer={"source": "base"}), ["tokenizer:"]),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_what_is_refused(fault, document, base, tmp_path):
    edit, parts = REFUSED[fault]
    edit(document, base, tmp_path)
    result = call(document, tmp_path)
    assert (result.exit_code, type(result.exception)) == (2, SystemExit), result.output
    assert all(part in result.output for part in parts), result.output
    assert not (tmp_path / "out").exists()
    assert not left_in(tmp_path)
