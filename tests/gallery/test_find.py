"""The shipped recipes: found, listed, shown, copied; and their JSON schema."""

import json
import re
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

import layerswap_method
from ablations.cli import main
from ablations.gallery.check import check_recipe
from ablations.gallery.find import (
    FIELDS,
    SCHEMA_FILE,
    SCHEMA_LINE,
    find_recipe,
    read_header,
    recipe_schema,
    schema_text,
)
from layerswap_method.errors import InputError
from tests.standins.recipe_files import RECIPES, ROOT, load

VALIDATOR = jsonschema.Draft202012Validator(recipe_schema())


def run(*words):
    result = CliRunner().invoke(main, ["recipes", *words])
    return result.exit_code, result.output


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


def test_an_unknown_recipe_is_answered_with_the_nearest():
    with pytest.raises(InputError, match=r"no recipe of that name in .*; did you mean 'pocket/lay"):
        find_recipe("pocket/layerswap.yml")


def test_the_list_has_every_recipe_or_those_of_a_language():
    _, _, *rows = (re.split("  +", line) for line in run("list")[1].splitlines())
    assert [f"recipes/{name}.yml" for name, *_ in rows] == sorted(RECIPES)
    assert all(languages and base for _, languages, base, _ in rows)
    code, text = run("list", "--language", "te")
    assert (code, "telugu" in text, "japanese" in text) == (0, True, False)
    code, text = run("list", "--language", "xx")
    assert code == 2
    assert "there are recipes for bn, de, en" in text


def test_show_prints_the_file():
    assert run("show", "pocket/soup") == (0, (ROOT / "recipes/pocket/soup.yml").read_text())


@pytest.mark.parametrize("name", ["mine", "mine/own.yml"])
def test_a_copy_comes_with_its_schema(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, text = run("copy", "community/qwen3_german", name)
    assert code == 0
    recipe, schema = (Path(line) for line in text.splitlines())
    assert recipe.parent == schema.parent == Path("mine")
    assert f"$schema={schema.name}\n" in recipe.read_text()
    assert {found.level for found in check_recipe(recipe, hub=False)} == {"note"}
    code, text = run("copy", "community/qwen3_german", name)
    assert code == 2
    assert "is there already" in text


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_is_valid_has_a_header_and_names_the_schema(recipe):
    assert list(VALIDATOR.iter_errors(load(recipe))) == []
    path = ROOT / recipe
    header = read_header(path.read_text())
    assert tuple(header) == FIELDS
    assert all(header.values())
    (line,) = [each for each in path.read_text().splitlines() if each.startswith(SCHEMA_LINE)]
    assert (
        path.parent / line.removeprefix(SCHEMA_LINE)
    ).resolve() == ROOT / "recipes" / SCHEMA_FILE


def test_the_schema_file_is_what_the_types_give():
    assert (ROOT / "recipes" / SCHEMA_FILE).read_text() == schema_text()
    jsonschema.Draft202012Validator.check_schema(json.loads(schema_text()))


@pytest.mark.parametrize(
    "change",
    [
        {"parameters": {"botom_layers": 1}},
        {"parameters": {"bottom_layers": -1}},
        {"parameters": {"placement": "upper"}},
        {"models": [{"model": "a", "parameters": {"role": "tsak"}}, {"model": "b"}]},
        {"tokeniser": "base"},
        {"base_model": 3},
    ],
)
def test_the_schema_refuses_what_the_types_refuse(change):
    assert list(VALIDATOR.iter_errors({**load("recipes/swahili.yml"), **change}))
