"""What a recipe's header says beyond its form (which tests/gallery checks)."""

import re

import pytest

from ablations.paper.published import published_tables
from tests.recipes.documents import RECIPES, ROOT, command, header, is_hub_id, load, references
from tests.recipes.expected import OTHERS, REVERTS, SHARES, SWAPS
from tools.gallery_tables import outdated

PUBLISHED = published_tables()["tables"].values()


def test_no_recipe_escapes():
    for table, method in ((SWAPS | SHARES, "layer_swap"), (REVERTS, "delta_revert")):
        assert sorted(table) == [each for each in RECIPES if load(each)["merge_method"] == method]
    assert sorted([*SWAPS, *SHARES, *REVERTS, *OTHERS]) == RECIPES


@pytest.mark.parametrize("recipe", RECIPES)
def test_run_line_is_a_command_for_this_recipe(recipe):
    words = command(recipe)
    assert words[:2] == ["mergekit-yaml", recipe]
    assert words[2].startswith(("./merged/", "runs/merged/"))  # both are ignored by git
    assert [command(other)[2] for other in RECIPES].count(words[2]) == 1


@pytest.mark.parametrize("recipe", RECIPES)
def test_needs_names_every_model_and_the_disk(recipe):
    needs, document = header(recipe)["Needs"], load(recipe)
    assert re.search(r"\d+ [GM]B of disk", needs)
    has_adapter = any(adapter for _, adapter in references(recipe))
    assert ("--lora-merge-cache" in needs) == has_adapter
    assert ("--lora-merge-cache" in command(recipe)) == has_adapter
    assert document["base_model"], "else config and tokenizer come from a model drawn at random"
    assert document["dtype"] in ("float32", "bfloat16")
    for part in filter(None, (part for pair in references(recipe) for part in pair)):
        is_local = part.startswith(("./", "runs/")) and part.count("/") > 1
        assert is_hub_id(part) != is_local, part
        assert part in needs or is_local
        assert "layerswap pocket build" in needs or "runs/pocket/" not in part


@pytest.mark.parametrize("recipe", RECIPES)
def test_expected_quotes_the_paper_and_claims_nothing_else(recipe):
    expected = header(recipe)["Expected"]
    assert re.search(r"not measured by us", expected, re.IGNORECASE)
    text = re.sub(r"arXiv \d+\.\d+|section \d\.\d", "", expected)
    if figures := set(re.findall(r"\d+\.\d+", text)):
        (source,) = re.findall(r"Table \d", text)
        (table,) = [each for each in PUBLISHED if each["source"] == source]
        rows = [row["values"] for row in table["rows"] if row["name"].split()[0] in text]
        assert figures <= {f"{value:.1f}" for values in rows for value in values}
    if "/community/" in recipe:
        for name in ("Needs", "Expected"):
            assert "experts not verified by us" in header(recipe)[name]


def test_the_gallery_is_up_to_date():
    """Else: python -m tools.gallery_tables --write."""
    assert outdated(ROOT / "recipes") == {}
