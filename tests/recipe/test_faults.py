"""Every fault of a recipe: all problems at once, each with its place, its value and the way out."""

import copy

import pytest

from layerswap_method.errors import InputError
from layerswap_method.methods.read import read_recipe

TASK, LANGUAGE = ({"model": role, "parameters": {"role": role}} for role in ("task", "language"))
SWAP = {
    "merge_method": "layer_swap",
    "base_model": "base",
    "models": [TASK, LANGUAGE, {"model": "base"}],
    "parameters": {},
}
REVERT = {
    "merge_method": "delta_revert",
    "base_model": "base",
    "models": [{"model": "task"}],
    "parameters": {"bottom_layers": 3},
}
LINEAR = {
    "merge_method": "linear",
    "base_model": "a",
    "models": [{"model": name, "parameters": {"weight": 1}} for name in "ab"],
}
SHARE = {"placement": "delta_share"}
PARAMETERS = [
    # what stands under parameters: of a layer_swap, and what its problem names
    ({"botom_layers": 2}, ["parameters.botom_layers", "did you mean 'bottom_layers'"]),
    ({"bottom_layers": True}, ["parameters.bottom_layers", "whole number", "True"]),
    ({"bottom_layers": None}, ["parameters.bottom_layers", "is empty", "drop the line"]),
    ({"top_layers": "2"}, ["parameters.top_layers", "'2'", "write 2"]),
    ({"top_layers": -1}, ["parameters.top_layers", "0 or more", "-1"]),
    ({"language_weight": "1e-6"}, ["parameters.language_weight", "write 1.0e-06"]),
    ({"language_weight": float("inf")}, ["parameters.language_weight", "finite"]),
    ({"task_weight": 0, "language_weight": 0}, ["task_weight and language_weight", "both 0"]),
    ({"placement": "midle"}, ["parameters.placement", "did you mean 'middle'"]),
    ({"placement": "layers"}, ["needs language_layers"]),
    ({"placement": "layers", "language_layers": 3}, ["language_layers", 'in quotes: "3"']),
    ({"placement": "layers", "language_layers": "0", "bottom_layers": 1}, ["bottom_layers has no"]),
    ({"language_layers": "0-1"}, ["language_layers has no effect", "placement: layers"]),
    ({"placement": "soup", "bottom_layers": 5, "top_transition": 1}, ["have no effect", "drop it"]),
    ({**SHARE, "swap_modules": "mlp"}, ["swap_modules: mlp", "delta_unit"]),
    ({**SHARE, "delta_blend": 1.5}, ["parameters.delta_blend", "1.5"]),
    ({**SHARE, "delta_blend": 1.0, "task_weight": 0}, ["delta_blend", "nothing to average"]),
    ({**SHARE, "delta_threshold": 0.1, "delta_dominance": 0.1}, ["delta_dominance", "drop one"]),
    ({"delta_unit": "module"}, ["delta_unit has no effect", "placement: delta_share"]),
    ({"role": "task"}, ["parameters.role", "it belongs under models[].parameters"]),
    ({1: 2}, ["parameters[1]", "strings"]),
    ([], ["parameters", "not []"]),
]
ENTRIES = [
    # the task expert's entry under models:
    ({"parameters": {}}, ["models[0] (task)", "has no role; write role: task"]),
    ({"role": "task"}, ["models[0].role", "under", "parameters"]),
    ({"parameters": {"role": "tsk"}}, ["models[0].parameters.role", "did you mean 'task'"]),
    ({"parameters": {"role": "base"}}, ["models[0].parameters.role", "'task' or 'language'"]),
    ({"parameters": {"role": "task", "wieght": 1}}, ["models[0]", "'weight'"]),
    ({"parameters": {"role": "task", "weight": 10**400}}, ["models[0].parameters.weight"]),
    ({"parameters": {"role": "task", "weight": 0}}, ["weights of role task sum to 0"]),
    ({"parameters": {"role": "task", "top_layers": 2}}, ["top_layers", "under parameters"]),
    ({"parameters": {"role": "language"}}, ["no model with role: task"]),
    ({"model": "c++x"}, ["models[0].model: ", "a model's path is empty"]),
    ({"model": "a+b+c"}, ["models[0].model: a+b+c", "MODEL+ADAPTER"]),
    ({"model": "a@b@c"}, ["models[0].model: a@b@c", "PATH@REVISION"]),
    ({"model": "language"}, ["models[1] (language)", "listed twice"]),
    ({"model": "./base", "parameters": {}}, ["models[0] (./base)", "write it in the same way"]),
]
TOP = [
    ({"base_model": None}, ["base_model is missing", "write base_model: task"]),
    ({"paramters": {}}, ["paramters", "'parameters'"]),
    ({"tokeniser": "base"}, ["tokeniser: unknown key", "did you mean 'tokenizer"]),
    ({1: 2}, ["[1]"]),
    ({"slices": [{"sources": []}]}, ["slices: must be None"]),
    ({"models": []}, ["no model with role: task", "no model with role: language"]),
    ({"models": [3, None]}, ["models[0]", "models[1]"]),
    ({"models": [{"parameters": {}}]}, ["models[0].model is missing"]),
    ({"models": [TASK, LANGUAGE, {"model": "base", "parameters": {"weight": 2}}]}, ["no effect"]),
    ({"dtype": "bfloat61"}, ["dtype: ", "did you mean 'bfloat16'"]),
    (
        {"base_model": "task", "parameters": {"weighting": "magnitude"}},
        ["base_model task", "also the task expert", "pretrained parent"],
    ),
    (
        {"parameters": {"botom_layers": 1, "seed": 1.5}, "dtype": "bf16", "models": [{}]},
        ["4 problems", "bottom_layers", "parameters.seed", "bfloat16", "models[0].model"],
    ),
]
REVERTS = [
    ({"parameters": {}}, ["nothing says what to revert", "keep_fraction"]),
    ({"parameters": {"threshold": float("inf")}}, ["parameters.threshold", "finite"]),
    ({"parameters": {"threshold": 0.1, "keep_fraction": 0.5}}, ["drop one"]),
    ({"parameters": {"keep_fraction": 70}}, ["parameters.keep_fraction", "1 or less", "70"]),
    ({"parameters": {"revert_layers": "4-0"}}, ["revert_layers '4-0'"]),
    ({"parameters": {"revert_modules": "atention"}}, ["did you mean 'attention'"]),
    ({"parameters": {"revert_modules": "mlp,mlp"}}, ["mlp is named twice"]),
    ({"parameters": {"role": "task"}}, ["parameters.role"]),
    ({"tokenizer": {"source": "base"}}, ["tokenizer cannot be used", "drop the line"]),
    ({"base_model": None}, ["base_model is missing"]),
    ({"models": [{"model": "base"}]}, ["lists 0 models", "one expert"]),
    ({"models": [{"model": "./a"}, {"model": "./b"}]}, ["2 models", "takes one expert"]),
    ({"models": [{"model": "a"}, {"model": "./base"}]}, ["models[1] (./base)", "leave it out"]),
]
LINEARS = [
    ({"models": [*LINEAR["models"], LINEAR["models"][0]]}, ["models[2] (a)", "listed twice"]),
    ({"models": [{"model": "a", "parameters": {"weight": 0}}]}, ["sum to 0"]),
]
FAULTS = [
    *((SWAP | {"parameters": changes}, parts) for changes, parts in PARAMETERS),
    *((SWAP | {"models": [TASK | entry, LANGUAGE]}, parts) for entry, parts in ENTRIES),
    *((SWAP | changes, parts) for changes, parts in TOP),
    *((REVERT | changes, parts) for changes, parts in REVERTS),
    *((LINEAR | changes, parts) for changes, parts in LINEARS),
]


@pytest.mark.parametrize(("document", "parts"), FAULTS, ids=lambda each: str(each)[-40:])
def test_a_fault_names_its_place_and_the_way_out(document, parts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base").mkdir()  # ./base is the same model
    before = copy.deepcopy(document)
    with pytest.raises(InputError) as caught:
        read_recipe(document)
    assert repr(document) == repr(before)
    assert caught.value.exit_code == 2
    assert caught.value.message.startswith(f"{document['merge_method']} recipe: ")
    assert all(part in caught.value.message for part in parts), caught.value.message
    assert "pydantic" not in caught.value.message
    assert len(caught.value.message) < 800
