"""Every recipe says what it is, in one order, and its command names the recipe itself."""

from __future__ import annotations

import re

import pytest

from ablations.gallery.schema import FILE
from ablations.paper.published import published_tables
from tests.recipes.documents import FIELDS, RECIPES, ROOT, command, header, is_hub_id, load
from tests.recipes.documents import references as references_of
from tools.gallery_tables import outdated

PUBLISHED = published_tables()["tables"].values()


def test_the_recipes_are_found() -> None:
    assert len(RECIPES) >= 30
    stray = [p for p in ROOT.glob("recipes/**/*") if p.suffix in (".yaml", ".json")]
    assert [path.name for path in stray] == [FILE], "the tests look at *.yml only"


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
        (source,) = re.findall(r"Table \d", text)
        (table,) = [each for each in PUBLISHED if each["source"] == source]
        rows = [row["values"] for row in table["rows"] if row["name"].split()[0] in text]
        assert figures <= {f"{value:.1f}" for values in rows for value in values}


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe_sets_what_mergekit_would_guess(recipe: str) -> None:
    document = load(recipe)
    assert document["base_model"], "else config and tokenizer come from a model drawn at random"
    assert document["dtype"] in ("float32", "bfloat16")
    for reference in references_of(recipe):
        for part in reference.parts():
            local = part.startswith("./") or part.startswith("runs/")
            assert is_hub_id(part) != (local and part.count("/") > 1), part


@pytest.mark.parametrize("recipe", RECIPES)
def test_languages_are_codes(recipe: str) -> None:
    codes = dict(header(recipe))["Languages"].split(", ")
    assert codes
    assert set(codes) <= {"en", "sw", "te", "bn", "ja", "de", "it", "ro", "es", "zh"}


@pytest.mark.parametrize("recipe", [r for r in RECIPES if "/community/" in r])
def test_community_recipes_say_that_the_experts_are_not_verified(recipe: str) -> None:
    fields = dict(header(recipe))
    for name in ("Needs", "Expected"):
        assert "experts not verified by us" in " ".join(fields[name].split())


def test_the_gallery_is_up_to_date() -> None:
    """Else: python -m tools.gallery_tables --write."""
    assert outdated(ROOT / "recipes") == {}


def test_the_table_lists_every_recipe_once() -> None:
    table = (ROOT / "recipes/README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[`([^`]+)`\]\(([^)]+)\)", table, re.MULTILINE)
    assert all(name == link for name, link in listed)
    assert sorted(f"recipes/{name}" for name, _ in listed) == RECIPES
