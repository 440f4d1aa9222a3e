"""Recipes that mergekit's own validation refuses: one message in our words, and only for ours."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest
from mergekit.config import MergeConfiguration

from layerswap_method.errors import InputError
from tests.mergekit_plugin.conftest import Experts, Refused

MODELS = [
    {"model": "task", "parameters": {"role": "task"}},
    {"model": "language", "parameters": {"role": "language"}},
]


def model(**changes: Any) -> dict[str, Any]:
    return {"models": [{**MODELS[0], **changes}, MODELS[1]]}


CASES = [
    ({"parameters": {"bottom_layers": None}}, "parameters.bottom_layers is empty; write a value"),
    (model(parameters={"role": None}), "models[0].parameters.role is empty; write a value"),
    (model(parameters={"weight": None}), "models[0].parameters.weight is empty; write a value"),
    ({"parameters": []}, "parameters is []; it must be a block of names and values"),
    ({"parameters": {1: 2}}, "parameters: the name 1 is not text; write it in quotes"),
    ({"parameters": {"seed": {"filter": "a"}}}, "parameters.seed is {'filter': 'a'}, which"),
    ({"models": []}, "it needs models:, slices: or modules:, exactly one of them"),
    ({"models": 3}, "models is 3; it must be a list"),
    ({"models": [3, None]}, "models[0] is 3; it must be a block of names and values"),
    ({"models": [3, None]}, "models[1] is empty; write a value or drop the line"),
    ({"models": [{"parameters": {}}]}, "models[0].model is missing"),
    (model(model=3), "models[0].model is 3; it must be a model's folder or hub id"),
    (model(model="c++x"), "c++x: mergekit reads + as MODEL+ADAPTER"),
    (model(model="a@b@c"), "a@b@c: mergekit reads @ as PATH@REVISION"),
    ({"dtype": 16}, "dtype is 16; it must be text"),
    ({"tokenizer": {}, "tokenizer_source": "base"}, "it has tokenizer_source: and tokenizer:"),
    ({"modules": {"default": {}}, "models": None}, "each entry of modules: needs models: or"),
    ({"models": None, "modles": MODELS}, "unknown key 'modles', which mergekit ignores"),
    ({"merge_method": "Layer_Swap"}, "merge_method is 'Layer_Swap'; did you mean 'layer_swap'?"),
    ({"merge_method": "layerswap"}, "merge_method is 'layerswap'; did you mean 'layer_swap'?"),
    ({"merge_method": "layer-swap"}, "merge_method is 'layer-swap'; did you mean 'layer_swap'?"),
]


def document(changes: dict[str, Any]) -> dict[str, Any]:
    return {"merge_method": "layer_swap", "base_model": "task", "models": MODELS, **changes}


@pytest.mark.parametrize(("changes", "message"), CASES)
def test_what_mergekit_refuses_is_said_shortly(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        MergeConfiguration.model_validate(document(changes))
    assert error.value.message.startswith("layer_swap recipe: ")
    assert message in error.value.message
    assert "pydantic" not in error.value.message
    assert len(error.value.message) < 400


@pytest.mark.parametrize(
    ("name", "meant"), [("layerswap", "layer_swap"), ("delta-reverse", "delta_revert")]
)
def test_a_misspelt_method_through_the_command(
    name: str, meant: str, experts: Experts, refused: Refused
) -> None:
    refused(experts.recipe(merge_method=name), f"{name!r}; did you mean {meant!r}?")


def test_a_recipe_that_mergekit_accepts_is_its_own_object() -> None:
    config = MergeConfiguration.model_validate(document({}))
    assert type(config) is MergeConfiguration
    assert config.parameters is None
    assert MergeConfiguration.model_validate(config) is config


@pytest.mark.parametrize("name", ["linear", "Linear", "nearswap", "graft", None, 3])
def test_other_methods_keep_their_errors(name: object) -> None:
    with pytest.raises(pydantic.ValidationError):
        MergeConfiguration.model_validate(document({"parameters": [], "merge_method": name}))
    with pytest.raises(pydantic.ValidationError):
        MergeConfiguration.model_validate(["layer_swap"])
    if isinstance(name, str):
        with pytest.raises(RuntimeError, match="Exactly one of 'models'"):
            MergeConfiguration.model_validate(document({"models": [], "merge_method": name}))
