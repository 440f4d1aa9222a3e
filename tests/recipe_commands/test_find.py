"""The shipped recipes: found, listed, copied, drawn."""

import re
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml

import layerswap_method
from ablations.recipe_commands.check import check_recipe
from ablations.recipe_commands.find import FIELDS, command_words, find_recipe, read_recipe_header
from ablations.recipe_commands.recipe_plan import plan_recipe
from ablations.train.config import read_training_file
from layerswap_method.errors import InputError
from tests.standins import merging
from tests.standins.command import told
from tests.standins.fine_tunes import tune
from tests.standins.model_families import make_model
from tests.standins.recipe_files import RECIPES, ROOT

run = partial(told, "recipes")


def test_the_working_directory_comes_first_and_a_wheel_last(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_recipe("pocket/layer_swap.yml").is_absolute()
    mine = tmp_path / "recipes" / "pocket" / "layer_swap.yml"
    mine.parent.mkdir(parents=True)
    mine.write_text("merge_method: layer_swap\n")
    assert find_recipe("pocket/layer_swap.yml").resolve() == mine
    package = tmp_path / "site-packages" / "layerswap_method"
    (package / "_recipes" / "pocket").mkdir(parents=True)
    (package / "_recipes" / "pocket" / "soup.yml").write_text("merge_method: linear\n")
    monkeypatch.setattr(layerswap_method, "__file__", str(package / "__init__.py"))
    assert find_recipe("pocket/soup.yml") == package / "_recipes" / "pocket" / "soup.yml"


@pytest.mark.parametrize("place", ["", "mine/", "./", "{}/"])
def test_the_nearest_name_may_be_that_of_a_file_in_the_folder(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    for folder in (tmp_path, tmp_path / "mine"):
        for name in ("recipe.yml", "notes.txt"):
            (folder / name).write_text("")
    for command in ("check", "train", "plan"):
        code, text = told(command, place.format(tmp_path) + "recipee.yml")
        assert (code, "did you mean 'recipe.yml'?" in text) == (2, True), text
        assert "no such file" in text
        code, text = told(command, place.format(tmp_path) + "note.txt.yml")
        assert (code, "did you mean" in text) == (2, False), text


def test_the_list_has_every_recipe_or_those_of_a_language(tmp_path, monkeypatch):
    _, _, *rows = (re.split("  +", line) for line in run("list")[1].splitlines())
    assert [f"recipes/{name}.yml" for name, *_ in rows] == sorted(RECIPES)
    assert all(languages and base for _, languages, base, _ in rows)
    code, text = run("list", "--language", "te")
    assert (code, "telugu" in text, "japanese" in text) == (0, True, False)
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "notes.yml").write_text("name: x")  # a file of the user's
    monkeypatch.chdir(tmp_path)
    code, text = run("list", "--language", "xx")
    assert (code, "there are recipes for bn, de, en" in text) == (2, True)


@pytest.mark.parametrize("name", ["mine", "mine/own.yml"])
def test_a_recipe_can_be_copied_once(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, text = run("copy", "community/qwen3_german", name)
    assert code == 0
    recipe = Path(text.strip())
    assert recipe.parent == Path("mine")
    assert {found.level for found in check_recipe(recipe, hub=False)} == {"note"}
    code, text = run("copy", "community/qwen3_german", name)
    assert (code, "exists already" in text) == (2, True)
    code, text = run("copy", "community/qwen3_german", f"{recipe}/below.yml")
    assert (code, "is not a folder" in text) == (2, True)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_copy_has_the_command_of_the_recipe_with_its_own_file_and_folder(recipe, tmp_path):
    assert run("copy", recipe, tmp_path / "my own.yml")[0] == 0
    copy = (tmp_path / "my own.yml").read_text()
    words, old = (command_words(read_recipe_header(t)) for t in (copy, (ROOT / recipe).read_text()))
    out = f"{old[2].rpartition('/')[0]}/my own"
    assert words == ["mergekit-yaml", str(tmp_path / "my own.yml"), out, *old[3:]]
    assert not re.search(rf"{re.escape(old[2])}(?![\w/-])", copy)
    assert tuple(read_recipe_header(copy)) == FIELDS
    assert yaml.safe_load(copy) == yaml.safe_load((ROOT / recipe).read_text())


def test_a_copied_training_file_is_what_it_was(tmp_path):
    names = ["regimes/math_lora", "pocket/joint"]  # the others that they name are next to them
    for name in names:
        code, text = run("copy", f"experts/{name}", tmp_path / f"{Path(name).name}.yml")
        assert code == 0
        file = text.strip()
        command = command_words(read_recipe_header(Path(file).read_text()))
        out = f"runs/experts/{Path(file).stem}"
        assert command[:3] == ["layerswap", "train", file]
        assert command[command.index("--out") + 1] == out
        copy, shipped = read_training_file(file), read_training_file(name)
        assert copy.model_dump() == shipped.model_dump()


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_has_a_whole_header(recipe):
    header = read_recipe_header((ROOT / recipe).read_text())
    assert tuple(header) == FIELDS
    assert all(header.values())


plan = partial(told, "plan")


@pytest.mark.parametrize(
    ("recipe", "row", "told"),
    [
        ("pocket/layer_swap_transition", "█▒····▒█", "in-layer norms: block"),
        ("pocket/revert_layers", "○······○", "reverts to: "),
        ("literal_norms", f"█████{25 * '·'}██", "lm_head: average; swapped modules: all"),
    ],
)
def test_a_shipped_recipe_is_drawn(recipe, row, told):
    code, text = plan(recipe, "--layers", len(row))
    assert code == 0
    assert f"  input   {row} output" in text
    assert told in text


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
    assert (code, "mlp     █··█ output" in text) == (0, True)
    assert "attn    ···· output" in text
    merged = merging.merge(document, tmp_path / "merged")
    assert plan(merged) == (0, text)
    document["parameters"] = {"placement": "delta_share"}
    recipe.write_text(yaml.safe_dump(document))
    code, text = plan(recipe)
    assert (code, "layerswap plan MERGED_FOLDER" in text) == (2, True)
    merging.merge(document, tmp_path / "shares")
    assert plan(tmp_path / "shares")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["baselines/soup"], "linear makes every tensor of all models"),
        (["swahili", "--layers", "6"], "5 + 2 = 7 is more than the model's 6 layers"),
        (["revert/threshold", "--layers", "6"], "what comes from where is measured at the merge"),
        (["pocket/layerswap.yml"], "did you mean 'pocket/layer_swap.yml'?"),
        ([str(ROOT / "recipes")], "holds no layer_swap_plan.json"),
    ],
)
def test_what_has_no_plan(arguments, message):
    code, text = plan(*arguments)
    assert (code, message in text) == (2, True)


def test_an_unknown_depth_is_asked_for(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="write --layers N"):
        plan_recipe("swahili")
