"""`layerswap plan`: the picture and the text say what the merge does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from click.testing import CliRunner

from ablations.cli import main
from ablations.gallery.picture import stacks_of
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


def plan(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["plan", *map(str, arguments)])
    return result.exit_code, result.output


@pytest.mark.parametrize("recipe", SWAPS)
def test_every_shipped_swap_as_the_tests_of_the_merges_expect_it(recipe: str) -> None:
    expected = SWAPS[recipe]
    supply = supply_of(str(ROOT / recipe), expected.layers)
    assert supply.outside == expected.non_layer
    assert supply.num_layers == expected.layers
    for part, name in TENSORS.items():
        column = supply.columns.get(part, supply.columns.get("layers"))
        assert column is not None
        wanted = [expected.source(name.format(layer)) for layer in range(expected.layers)]
        assert list(column) == wanted, part


@pytest.mark.parametrize("recipe", [r for r, e in REVERTS.items() if e.layers])
def test_reverts_of_whole_layers(recipe: str) -> None:
    depth = layer_count("runs/pocket/task" if "/pocket/" in recipe else "8B")
    supply = supply_of(str(ROOT / recipe), depth)
    back = {i for i, source in enumerate(supply.columns["layers"]) if source == "base"}
    assert back == REVERTS[recipe].layers
    assert supply.outside == "task"


def test_the_text() -> None:
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


def test_the_depth_comes_from_a_config_and_a_merge_shows_its_own_plan(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"num_hidden_layers": 4, "dtype": torch.float32}
    base = make_model("llama", tmp_path / "base", 0, **sizes)
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
    code, said = plan(recipe)
    assert code == 2
    assert "layerswap plan MERGED_FOLDER" in said
    merging.merge(document, tmp_path / "shares")
    assert plan(tmp_path / "shares")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["baselines/soup"], "linear makes every tensor of all models"),
        (["swahili", "--layers", "6"], "5 + 2 = 7 is more than the model's 6 layers"),
        (["revert/threshold", "--layers", "6"], "which rows go back is measured at the merge"),
        (["swahily"], "did you mean 'swahili.yml'?"),
        (["swahili", "--layers", "32", "--out", "x.gif"], "ends in .svg, .png, .pdf"),
        ([str(ROOT / "recipes")], "holds no layer_swap_plan.json"),
    ],
)
def test_what_has_no_plan(arguments: list[str], message: str) -> None:
    code, text = plan(*arguments)
    assert code == 2
    assert message in text


def test_an_unknown_depth_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="write --layers N"):
        supply_of("swahili")


def test_a_picture_shows_who_gives_what(tmp_path: Path) -> None:
    task, merged, language = stacks_of(supply_of("swahili_transition", 32))
    assert [stack.title for stack in (task, merged, language)] == [
        "task expert",
        "merged model",
        "language expert",
    ]
    for layer, source in enumerate(merged.columns["layers"]):
        assert (task.columns["layers"][layer] == "task") == (source in ("task", "average"))
        given = language.columns["layers"][layer] == "language"
        assert given == (source in ("language", "average"))
    out = tmp_path / "deeper" / "plan.svg"
    assert plan("swahili", "--layers", "32", "--out", out)[0] == 0
    image = out.read_text()
    assert image.startswith("<?xml")
    language_boxes, average_boxes, key = 7 + 7 + 2, 2, 2 * 2
    assert image.count("fill: url(#") == language_boxes + average_boxes + key
    first = out.read_bytes()
    plan("swahili", "--layers", "32", "--out", out)
    assert out.read_bytes() == first
