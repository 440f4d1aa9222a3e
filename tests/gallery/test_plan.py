"""`layerswap plan` says what the merge does."""

import pytest
import torch
import yaml
from click.testing import CliRunner

from ablations.cli import main
from ablations.gallery.plan import supply_of
from layerswap_method.errors import InputError
from tests.recipes.expected import REVERTS, SWAPS
from tests.standins import merging
from tests.standins.recipe_files import ROOT, layer_count
from tests.standins.tuned import tune
from tests.standins.zoo import make_model

TENSORS = {
    "attention": "model.layers.{}.self_attn.q_proj.weight",
    "mlp": "model.layers.{}.mlp.up_proj.weight",
    "norms": "model.layers.{}.input_layernorm.weight",
}


def plan(*arguments):
    result = CliRunner().invoke(main, ["plan", *map(str, arguments)])
    return result.exit_code, result.output


@pytest.mark.parametrize("recipe", SWAPS)
def test_every_shipped_swap_as_the_tests_of_the_merges_expect_it(recipe):
    expected = SWAPS[recipe]
    supply = supply_of(str(ROOT / recipe), expected.layers)
    assert supply.outside == expected.non_layer
    for part, name in TENSORS.items():
        column = supply.columns.get(part, supply.columns.get("layers"))
        wanted = [expected.source(name.format(layer)) for layer in range(expected.layers)]
        assert list(column) == wanted, part


@pytest.mark.parametrize("recipe", [r for r, e in REVERTS.items() if e.layers])
def test_reverts_of_whole_layers(recipe):
    depth = layer_count("runs/pocket/task" if "/pocket/" in recipe else "8B")
    supply = supply_of(str(ROOT / recipe), depth)
    back = {i for i, source in enumerate(supply.columns["layers"]) if source == "base"}
    assert back == REVERTS[recipe].layers
    assert supply.outside == "task"


def test_the_text():
    assert plan("literal_norms", "--layers", "8") == (
        0,
        "task: MergeBench/Llama-3.1-8B_math\n"
        "language: Lugha-Llama/Lugha-Llama-8B-wura\n"
        "  layer     0 |    |   7\n"
        "  attention   █████·██\n"
        "  mlp         █████·██\n"
        "  norms       ▒▒▒▒▒▒▒▒\n"
        "              █ language  ▒ average  · task\n"
        "attention: language 0-4,6-7; task 5\n"
        "mlp: language 0-4,6-7; task 5\n"
        "norms: average 0-7\n"
        "embeddings, final norm, head: average\n",
    )


def test_the_depth_comes_from_a_config_and_a_merge_shows_its_own_plan(tmp_path):
    base = make_model("llama", tmp_path / "base", 0, num_hidden_layers=4, dtype=torch.float32)
    experts = {
        role: tune(base, tmp_path / role, seed) for seed, role in enumerate(("task", "language"))
    }
    recipe = tmp_path / "recipe.yml"
    parameters = {"bottom_layers": 1, "top_layers": 1, "swap_modules": "mlp"}
    document = merging.recipe(experts, parameters, base, dtype="float32")
    recipe.write_text(yaml.safe_dump(document))
    code, text = plan(recipe)
    assert code == 0
    assert "mlp: language 0,3; task 1-2" in text.splitlines()
    merged = merging.merge(document, tmp_path / "merged")
    assert plan(merged) == (0, text)
    document["parameters"] = {"placement": "delta_share"}
    recipe.write_text(yaml.safe_dump(document))
    code, text = plan(recipe)
    assert code == 2
    assert "layerswap plan MERGED_FOLDER" in text
    merging.merge(document, tmp_path / "shares")
    assert plan(tmp_path / "shares")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["baselines/soup"], "linear makes every tensor of all models"),
        (["swahili", "--layers", "6"], "5 + 2 = 7 is more than the model's 6 layers"),
        (["revert/threshold", "--layers", "6"], "which rows go back is measured at the merge"),
        (["swahily"], "did you mean 'swahili.yml'?"),
        ([str(ROOT / "recipes")], "holds no layer_swap_plan.json"),
    ],
)
def test_what_has_no_plan(arguments, message):
    code, text = plan(*arguments)
    assert code == 2
    assert message in text


def test_an_unknown_depth_is_asked_for(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="write --layers N"):
        supply_of("swahili")
