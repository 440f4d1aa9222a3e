"""Recipes as typed documents, without mergekit: every problem at once, and a JSON schema."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from layerswap_method.errors import InputError
from layerswap_method.methods.delta_revert import DeltaRevertRecipe
from layerswap_method.methods.layer_swap import LayerSwapRecipe
from layerswap_method.recipe import document as shared
from tests.fresh_process import printed

SWAP: dict[str, Any] = {
    "merge_method": "layer_swap",
    "base_model": "base",
    "models": [
        {"model": "math", "parameters": {"role": "task"}},
        {"model": "swahili", "parameters": {"role": "language", "weight": 2}},
        {"model": "base", "parameters": None},
    ],
    "parameters": {"bottom_layers": 3},
    "tokenizer": {"source": "union", "tokens": {"a": {"source": {"kind": "zero"}, "force": True}}},
}
REVERT: dict[str, Any] = {
    "merge_method": "delta_revert",
    "base_model": "base",
    "models": [{"model": "math"}],
    "parameters": {"bottom_layers": 3},
}


def problems(document: dict[str, Any]) -> list[str]:
    before = copy.deepcopy(document)
    kind: Any = LayerSwapRecipe if document["merge_method"] == "layer_swap" else DeltaRevertRecipe
    with pytest.raises(InputError) as caught:
        kind.read(document)
    assert document == before
    head, *listed = caught.value.message.split("\n  - ")
    return listed or [head.partition(": ")[2]]


def test_a_recipe_is_read_as_it_stands() -> None:
    recipe = LayerSwapRecipe.read(SWAP)
    assert [(m.model, m.parameters.role, m.parameters.weight) for m in recipe.experts] == [
        ("math", "task", 1.0),
        ("swahili", "language", 2.0),
    ]
    assert (recipe.base_model, recipe.parameters.bottom_layers) == ("base", 3)
    revert = DeltaRevertRecipe.read(REVERT)
    assert (revert.expert, revert.base_model) == ("math", "base")
    assert revert.parameters.bottom_layers == 3


def test_reading_a_recipe_imports_neither_mergekit_nor_torch() -> None:
    code = f"""
import sys
from layerswap_method.methods.delta_revert import DeltaRevertRecipe
from layerswap_method.methods.layer_swap import LayerSwapRecipe
LayerSwapRecipe.read({SWAP!r})
DeltaRevertRecipe.read({REVERT!r})
print([name for name in ("mergekit", "torch", "transformers") if name in sys.modules])
"""
    assert printed(code, seed=1).strip() == "[]"


def test_every_problem_of_form_and_meaning_is_named_at_once() -> None:
    document = copy.deepcopy(SWAP)
    document["paramters"] = {}
    document["models"][0] = {"model": "a+b+c", "parameters": {"role": "tsk"}}
    document["models"].append({"model": "other", "paramters": {}})
    document["parameters"] = {"botom_layers": 1, "seed": [1], "role": "task"}
    found = problems({**document, "models": document["models"][1:]})
    assert found == [
        "models[2] has the unknown key 'paramters', which mergekit ignores; did you mean "
        "'parameters'?",
        "unknown parameter 'botom_layers'; did you mean 'bottom_layers'?",
        "role belongs under the parameters: of each model, not at the top",
        "the recipe has the unknown key 'paramters', which mergekit ignores; did you mean "
        "'parameters'?",
        "seed is a list or filter, which mergekit interpolates by layer; write one value",
        "models[2] (other) has no role; write role: task or role: language",
    ]
    assert problems(document)[-3:] == [
        "a+b+c: mergekit reads + as MODEL+ADAPTER, so there is one adapter at most and no path "
        "holds a +; merge the adapters first, or rename the folder",
        "models[0] (a+b+c): role is 'tsk'; it must be one of task, language; did you mean 'task'?",
        "seed is a list or filter, which mergekit interpolates by layer; write one value",
    ]


@pytest.mark.parametrize("document", [SWAP, REVERT], ids=["layer_swap", "delta_revert"])
@pytest.mark.parametrize("key", ["slices", "modules"])
def test_layers_stay_in_their_place(document: dict[str, Any], key: str) -> None:
    assert problems({**document, key: [{"sources": []}]}) == [
        f"{document['merge_method']} keeps every layer in its place; write models: in place of "
        f"{key}:"
    ]


def test_a_revert_recipe_says_what_to_revert() -> None:
    without = {key: value for key, value in REVERT.items() if key != "parameters"}
    for document in (without, {**REVERT, "parameters": None}, {**REVERT, "parameters": {}}):
        (problem,) = problems(document)
        assert problem.startswith("nothing says what to revert; write one of threshold,")


def test_every_problem_of_a_revert_recipe_is_named_at_once() -> None:
    models = [{"model": "math", "parameters": {"role": "task"}}, {"model": "other"}]
    parameters = {"threshold": -1.0, "botom_layers": 1}
    told = problems(
        {**REVERT, "models": models, "parameters": parameters, "tokenizer_source": "union"}
    )
    assert [problem[:40] for problem in told] == [
        "models[0] (math): delta_revert has no ro",
        "unknown parameter 'botom_layers'; did yo",
        "threshold is -1.0; it must be 0 or more",
        "tokenizer_source cannot be used here: ro",
        "models: lists 2 models beside the base_m",
    ]


def test_an_editor_gets_the_keys_and_values_from_the_same_types() -> None:
    schema = LayerSwapRecipe.model_json_schema()
    assert schema["required"] == ["merge_method", "base_model", "models"]
    assert schema["additionalProperties"] is False
    assert "slices" not in schema["properties"]
    spec = schema["$defs"]["LayerSwapSpec"]["properties"]
    assert spec["weighting"]["enum"] == ["uniform", "magnitude"]
    assert "embedding side" in spec["bottom_layers"]["description"]
    revert = DeltaRevertRecipe.model_json_schema()
    assert revert["properties"]["merge_method"]["const"] == "delta_revert"
    assert set(revert["$defs"]["NoParameters"]["properties"]) == set()


def test_the_keys_are_those_of_mergekit() -> None:
    from mergekit.config import InputModelDefinition, MergeConfiguration
    from mergekit.tokenizer.config import TokenEmbeddingConfig, TokenizerConfig

    for ours, theirs in (
        (LayerSwapRecipe, MergeConfiguration),
        (DeltaRevertRecipe, MergeConfiguration),
        (shared.Tokenizer, TokenizerConfig),
        (shared.Token, TokenEmbeddingConfig),
    ):
        assert set(ours.model_fields) == set(theirs.model_fields)
    entry = LayerSwapRecipe.model_fields["models"].annotation.__args__[0]  # type: ignore[union-attr]
    assert set(entry.model_fields) == set(InputModelDefinition.model_fields)
