"""Recipes as typed values, without mergekit; what only mergekit can do; references to models."""

import pytest

from layerswap_method.errors import InputError
from layerswap_method.methods.delta_revert import DeltaRevertRecipe
from layerswap_method.methods.layer_swap import LayerSwapRecipe
from layerswap_method.methods.read import (
    LinearRecipe,
    read_own_recipe,
    read_recipe,
    recipe_by_files,
)
from layerswap_method.recipe.references import find_model_files, syntax_problem
from tests.fresh_process import printed
from tests.recipe.test_faults import LINEAR, REVERT, SWAP


def test_a_recipe_is_read_as_it_stands():
    document = SWAP | {"tokenizer": {"source": "union"}, "parameters": {"bottom_layers": 3}}
    recipe = read_recipe(document)
    found = [(m.model, m.parameters.role, m.parameters.weight) for m in recipe.experts]
    assert found == [("task", "task", 1.0), ("language", "language", 1.0)]
    assert recipe.references == ("task", "language", "base")
    assert (recipe.base_model, recipe.parameters.bottom_layers) == ("base", 3)
    assert "tokenizer" in recipe.why_mergekit()
    revert = read_own_recipe(REVERT)
    assert (revert.references, revert.why_mergekit()) == (("task", "base"), None)
    assert isinstance(recipe_by_files(LINEAR), LinearRecipe)
    assert read_own_recipe(LINEAR) is None


def test_reading_a_recipe_imports_neither_mergekit_nor_torch():
    code = f"""
import sys
from layerswap_method.methods.read import read_recipe
for document in ({SWAP!r}, {REVERT!r}, {LINEAR!r}):
    read_recipe(document)
print([name for name in ("mergekit", "torch", "transformers") if name in sys.modules])
"""
    assert printed(code, seed=1).strip() == "[]"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"base_model": "b"}, "base_model"),
        ({"base_model": None}, "base_model"),
        ({"dtype": "float32", "out_dtype": "float16"}, "out_dtype"),
        ({"chat_template": "auto"}, "chat_template"),
        ({"tokenizer_source": "union"}, "tokenizer_source"),
        ({"merge_method": "ties"}, "ties"),
        ({"parameters": {"normalize": False}}, "linear"),
        ({"models": [{"model": "a", "parameters": {"weight": -2}}]}, "negative"),
    ],
    ids=str,
)
def test_what_only_mergekit_can_do(change, reason):
    document = LINEAR | change
    assert recipe_by_files(document) is None
    recipe = read_recipe(document)
    assert reason in (recipe if isinstance(recipe, str) else recipe.why_mergekit())


def test_the_keys_are_those_of_mergekit():
    from mergekit.config import InputModelDefinition, MergeConfiguration

    for ours in (LayerSwapRecipe, DeltaRevertRecipe, LinearRecipe):
        assert set(ours.model_fields) == set(MergeConfiguration.model_fields)
    (entry, _) = LayerSwapRecipe.model_fields["models"].annotation.__args__
    assert set(entry.model_fields) <= set(InputModelDefinition.model_fields)


def test_references_and_where_they_lead(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m" / "task").mkdir(parents=True)
    (tmp_path / "m" / "file").write_text("x")
    found = find_model_files("m/task").folder  # though it has the form of a hub id
    assert found == tmp_path / "m" / "task"
    for reference, parts in (
        ("m/tsk", ["m/tsk", "'task'"]),
        ("m/file", ["is a file", "write its folder"]),
        ("./nowhere", ["no such folder", str(tmp_path)]),
        ("/no/where/at/all", ["no such folder"]),
        ("~nobody/task", ["no such folder"]),
        ("owner/name", ["owner/name", "the hub says"]),
        ("m/task+m/task", ["adapter_config.json", "is not a PEFT adapter"]),
        ("m/task+/no/such/adapter", ["/no/such/adapter: no such folder"]),
        ("a+b+c", ["MODEL+ADAPTER"]),
        ("a+", ["empty"]),
    ):
        with pytest.raises(InputError) as caught:
            find_model_files(reference)
        assert all(part in caught.value.message for part in parts), caught.value.message
    monkeypatch.chdir(tmp_path / "m" / "task")
    with pytest.raises(InputError, match="run the command there"):
        find_model_files("m/task")
    assert syntax_problem("base@main+adapter@v2") is None
