"""`layerswap recipes`: list, show, copy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ablations.cli import main
from ablations.gallery.check import check_recipe
from tests.standins.recipe_files import RECIPES, ROOT


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["recipes", *words])
    return result.exit_code, result.output


def test_the_list_has_every_recipe() -> None:
    rows = json.loads(run("list", "--format", "json")[1])
    assert [f"recipes/{row['recipe']}.yml" for row in rows] == sorted(RECIPES)
    assert all(row["what"] and row["languages"] and row["base"] for row in rows)


def test_the_list_by_language() -> None:
    code, text = run("list", "--language", "te")
    assert code == 0
    assert "telugu" in text
    assert "japanese" not in text
    code, text = run("list", "--language", "xx")
    assert code == 2
    assert "there are recipes for bn, de, en" in text


def test_show_prints_the_file() -> None:
    assert run("show", "pocket/soup") == (0, (ROOT / "recipes/pocket/soup.yml").read_text())


@pytest.mark.parametrize("name", ["mine", "mine/own.yml"])
def test_a_copy_comes_with_its_schema(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
