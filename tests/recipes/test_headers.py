"""Every recipe says what it is, in one order, and its command names the recipe itself."""

from __future__ import annotations

import re

import pytest

from tests.recipes.documents import FIELDS, RECIPES, ROOT, command, header, is_hub_id, load
from tests.recipes.documents import references as references_of

# arXiv 2410.01335, MGSM 8-shot: the whole rows of Tables 1 and 2 (mean and max) and of Table 6.
PUBLISHED = {
    "1": {
        "Swahili": "24.8 24.7 29.5 29.3 32.4 32.8 25.6 32.0 36.4 37.2",
        "Telugu": "12.0 20.0 20.1 20.9 22.7 23.0 22.4 24.0 26.4 27.6",
        "Bengali": "29.2 33.5 38.3 36.8 37.1 38.7 35.2 44.4 38.4 40.4 45.2",
        "Japanese": "33.6 35.9 42.7 38.7 38.5 40.1 36.8 44.8 40.0 40.8 43.2",
    },
    "2": {"Swahili": "24.8 24.7 29.5 32.1 29.3 32.4 32.8 25.6 32.0 36.4 37.2"},
    "6": {
        "Swahili": "29.3 32.4 32.8 29.6",
        "Telugu": "20.9 22.7 22.0 21.2",
        "Bengali": "36.8 37.1 40.4 36.0",
        "Japanese": "38.7 38.5 39.2 41.6",
    },
}


def test_the_recipes_are_found() -> None:
    assert len(RECIPES) >= 30
    stray = [p for p in ROOT.glob("recipes/**/*") if p.suffix in (".yaml", ".json")]
    assert stray == [], "the tests look at *.yml only"


@pytest.mark.parametrize("recipe", RECIPES)
def test_header_has_every_field_in_order(recipe: str) -> None:
    fields = header(recipe)
    assert [name for name, _ in fields] == FIELDS
    assert all(text.strip() for _, text in fields)
    lines = (ROOT / recipe).read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("# What:")
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("recipe", RECIPES)
def test_run_line_is_a_command_for_this_recipe(recipe: str) -> None:
    words = command(recipe)
    assert words[:2] == ["mergekit-yaml", recipe]
    assert words[2].startswith(("./merged/", "runs/merged/"))  # both are ignored by git
    outputs = [command(other)[2] for other in RECIPES]
    assert outputs.count(words[2]) == 1


@pytest.mark.parametrize("recipe", RECIPES)
def test_needs_names_every_model_and_the_disk(recipe: str) -> None:
    needs = dict(header(recipe))["Needs"]
    assert re.search(r"\d+ [GM]B\s+of\s+disk", needs)
    adapters = [r.adapter for r in references_of(recipe) if r.adapter is not None]
    assert ("--lora-merge-cache" in needs) == bool(adapters)
    assert ("--lora-merge-cache" in command(recipe)) == bool(adapters)
    for reference in references_of(recipe):
        for part in filter(is_hub_id, reference.parts()):
            assert part in needs
        if reference.model.startswith("runs/pocket/"):
            assert "layerswap pocket build" in needs


@pytest.mark.parametrize("recipe", RECIPES)
def test_expected_quotes_the_paper_and_claims_nothing_else(recipe: str) -> None:
    expected = " ".join(dict(header(recipe))["Expected"].split())
    assert re.search(r"not measured by us", expected, re.IGNORECASE)
    text = re.sub(r"arXiv \d+\.\d+|section \d\.\d", "", expected)
    figures = set(re.findall(r"\d+\.\d+", text))
    if figures:
        (table,) = re.findall(r"Table (\d)", text)
        languages = [name for name in PUBLISHED[table] if name in text]
        published = {value for name in languages for value in PUBLISHED[table][name].split()}
        assert figures <= published


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe_sets_what_mergekit_would_guess(recipe: str) -> None:
    document = load(recipe)
    assert document["base_model"], "else config and tokenizer come from a model drawn at random"
    assert document["dtype"] in ("float32", "bfloat16")
    for reference in references_of(recipe):
        for part in reference.parts():
            local = part.startswith("./") or part.startswith("runs/")
            assert is_hub_id(part) != (local and part.count("/") > 1), part


def test_the_table_lists_every_recipe_once() -> None:
    table = (ROOT / "recipes/README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[`([^`]+)`\]\(([^)]+)\)", table, re.MULTILINE)
    assert all(name == link for name, link in listed)
    assert sorted(f"recipes/{name}" for name, _ in listed) == RECIPES
