"""Wrong recipes and models: one table, and one text from all who read a recipe."""

from __future__ import annotations

import re

import pydantic
import pytest
import yaml
from click.testing import CliRunner
from mergekit.config import MergeConfiguration

from ablations.cli import main as layerswap
from ablations.gallery.check import check_recipe
from layerswap_method.errors import InputError
from layerswap_method.mergekit_plugin.program import _merge as program_merge
from tests.mergekit_plugin.conftest import write_recipe
from tests.standins.merging import linear_recipe, revert_recipe


def checked(path):
    """Return the errors of `layerswap check`."""
    found = check_recipe(path, hub=False)
    return [finding.message for finding in found if finding.level == "error"]


def without_place(text):
    """Return a message without its file: mergekit hands over what it has read, not from where."""
    return re.sub(r"^(Error: )?(\S* ?recipe|\S*\.yml): (cannot be read: )?", "", text).strip()


def assert_one_text(document, tmp_path, merge, *, form=True):
    """Fail unless every reader of a recipe refuses it in one text and nothing is written.

    Returns that text. With `form` false the YAML or the models are wrong, which a configuration
    alone cannot tell.
    """
    path = write_recipe(tmp_path / "recipe.yml", document)
    out = tmp_path / "refused" / "merged"
    with pytest.raises(InputError) as raised:
        program_merge([str(path), str(out)])
    said = raised.value.message
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    if form:
        with pytest.raises(InputError) as raised:
            MergeConfiguration.model_validate(content)
        assert raised.value.message == said
    for result in (
        merge(document),
        CliRunner().invoke(layerswap, ["merge", str(path), str(out)]),
    ):
        assert result.exit_code == 2, result.output
        assert without_place(result.output) == without_place(f"Error: {said}")
        assert "Traceback" not in result.output
    problems = raised.value.problems or (said,)
    assert {without_place(problem) for problem in problems} <= {*map(without_place, checked(path))}
    assert not out.parent.exists()
    return said


PARAMETERS = [
    ({"botom_layers": 2}, ["parameters.botom_layers", "did you mean 'bottom_layers'"]),
    ({"bottom_layers": 2.5}, ["parameters.bottom_layers", "whole number", "2.5"]),
    ({"bottom_layers": True}, ["parameters.bottom_layers", "whole number", "True"]),
    ({"bottom_layers": None}, ["parameters.bottom_layers", "is empty", "drop the line"]),
    ({"bottom_layers": [0, 5]}, ["parameters.bottom_layers", "[0, 5]"]),
    ({"seed": {"filter": "a"}}, ["parameters.seed", "whole number"]),
    ({"top_layers": -1}, ["parameters.top_layers", "0 or more", "-1"]),
    ({"task_weight": "1"}, ["parameters.task_weight", "write 1"]),
    ({"task_weight": "1e-3"}, ["parameters.task_weight", "write 0.001"]),
    ({"language_weight": "1e-6"}, ["parameters.language_weight", "write 1.0e-06"]),
    ({"language_weight": "heavy"}, ["parameters.language_weight", "number", "'heavy'"]),
    ({"language_weight": float("inf")}, ["parameters.language_weight", "finite"]),
    ({"task_weight": 0, "language_weight": 0}, ["both 0"]),
    ({"placement": "midle"}, ["parameters.placement", "did you mean 'middle'"]),
    ({"placement": "layers"}, ["needs language_layers"]),
    ({"placement": "layers", "language_layers": 3}, ["language_layers", '"3"']),
    ({"placement": "layers", "language_layers": [0, 1]}, ["parameters.language_layers", "[0, 1]"]),
    ({"placement": "layers", "language_layers": "0", "bottom_layers": 1}, ["bottom_layers has no"]),
    ({"language_layers": "0-1"}, ["language_layers has no effect", "placement: layers"]),
    ({"placement": "soup", "bottom_layers": 5, "top_transition": 1}, ["have no effect", "soup"]),
    ({"placement": "delta_share", "top_layers": 1}, ["top_layers has no effect"]),
    ({"placement": "delta_share", "swap_modules": "mlp"}, ["swap_modules: mlp", "delta_unit"]),
    ({"placement": "delta_share", "delta_blend": 1.5}, ["parameters.delta_blend", "1.5"]),
    ({"placement": "delta_share", "delta_blend": 1, "task_weight": 0}, ["nothing to average"]),
    (
        {"placement": "delta_share", "delta_threshold": 0.1, "delta_dominance": 0.1},
        ["delta_threshold and delta_dominance", "drop one"],
    ),
    ({"delta_unit": "module"}, ["delta_unit has no effect", "placement: delta_share"]),
    ({"non_layer": "avg"}, ["parameters.non_layer", "'avg'"]),
    ({"role": "task"}, ["parameters.role", "it belongs under models[].parameters"]),
    ({"plan": "llllllll"}, ["parameters.plan", "unknown key"]),
    ({1: 2}, ["parameters[1]", "strings"]),
    ([], ["parameters", "not []"]),
]
MODELS = [
    ({}, {}, ["has no role; write role: task"]),
    ({"parameters": {"rol": "task"}}, {}, ["models[0].parameters.rol", "did you mean 'role'"]),
    ({"parameters": {"role": "tsk"}}, {}, ["models[0].parameters.role", "did you mean 'task'"]),
    ({"parameters": {"role": "base"}}, {}, ["models[0].parameters.role", "base_model:"]),
    ({"parameters": {"role": {"value": "task"}}}, {}, ["models[0].parameters.role", "{'value'"]),
    ({"parameters": {"role": "task", "weight": -1}}, {}, ["models[0].parameters.weight", "-1"]),
    ({"parameters": {"role": "task", "weight": [1]}}, {}, ["models[0].parameters.weight", "[1]"]),
    ({"parameters": {"role": "task", "weight": 0}}, {}, ["weights of role task sum to 0"]),
    ({"parameters": {"role": "task", "weight": "1e-6"}}, {}, ["parameters.weight", "1.0e-06"]),
    ({"parameters": {"role": "task", "weight": 10**400}}, {}, ["models[0].parameters.weight"]),
    ({"parameters": {"role": "task", "top_layers": 2}}, {}, ["top_layers", "under parameters"]),
    ({"parameters": {"role": "language"}}, {}, ["no model with role: task"]),
    ({"model": 3}, {}, ["models[0].model", "3"]),
    ({"model": ""}, {}, ["models[0].model"]),
    ({"model": "c++x"}, {}, ["models[0].model: ", "a model's path is empty"]),
    ({"model": "a+b+c"}, {}, ["models[0].model: a+b+c", "MODEL+ADAPTER"]),
    ({"model": "a@b@c"}, {}, ["models[0].model: a@b@c", "PATH@REVISION"]),
]
TOP = [
    ({"base_model": None}, ["base_model is missing", "write base_model:"]),
    ({"base_model": ""}, ["base_model"]),
    ({"tokeniser": "base"}, ["tokeniser: unknown key", "did you mean 'tokenizer"]),
    ({"layer_swap_source": "task"}, ["layer_swap_source: unknown key"]),
    ({1: 2}, ["[1]"]),
    ({"models": []}, ["no model with role: task"]),
    ({"models": 3}, ["models: ", "3"]),
    ({"models": [3, None]}, ["models[0]", "models[1]"]),
    ({"models": [{"parameters": {}}]}, ["models[0].model is missing"]),
    ({"slices": [{"sources": []}]}, ["slices: ", "write models: in place of"]),
    ({"modules": {"default": {}}}, ["modules: ", "write models: in place of"]),
    ({"dtype": 16}, ["dtype: ", "16"]),
    ({"dtype": "bfloat61"}, ["dtype: ", "did you mean 'bfloat16'"]),
    ({"out_dtype": "half"}, ["out_dtype: ", "'half'"]),
    ({"tokenizer": 3}, ["tokenizer: ", "3"]),
]


def own(experts, changes, first=None):
    document = experts.recipe() | changes
    if first is not None:
        document["models"][0] = {"model": str(experts.task), **first}
    return {key: value for key, value in document.items() if value is not None}


FORMS = [
    *(({"parameters": changes}, None, said) for changes, said in PARAMETERS),
    *((changes, first, said) for first, changes, said in MODELS),
    *((changes, None, said) for changes, said in TOP),
    (
        {"parameters": {"botom_layers": 1, "seed": 1.5}, "tokeniser": "base"},
        {"parameters": {"role": "tsk"}},
        ["4 problems", "bottom_layers", "parameters.seed", "'tokenizer", "models[0].parameters"],
    ),
]


@pytest.mark.parametrize(
    ("changes", "first", "fragments"), FORMS, ids=lambda value: str(value)[:40]
)
def test_a_wrong_layer_swap_recipe(changes, first, fragments, experts, merge, tmp_path):
    said = assert_one_text(own(experts, changes, first), tmp_path, merge)
    assert said.startswith("layer_swap recipe: ")
    for fragment in fragments:
        assert fragment in said, said
    assert "pydantic" not in said
    assert len(said) < 800


REVERTS = [
    ({}, ["nothing says what to revert", "keep_fraction"]),
    ({"treshold": 0.1}, ["parameters.treshold", "did you mean 'threshold'"]),
    ({"threshold": "1e-5"}, ["parameters.threshold", "write 1.0e-05"]),
    ({"threshold": [0.1, 0.2]}, ["parameters.threshold", "[0.1, 0.2]"]),
    ({"threshold": 0.1, "keep_fraction": 0.5}, ["drop one"]),
    ({"keep_fraction": 70}, ["parameters.keep_fraction", "70"]),
    ({"revert_layers": [0, 1]}, ["parameters.revert_layers", "[0, 1]"]),
    ({"revert_layers": 3}, ["parameters.revert_layers", '"3"']),
    ({"revert_modules": "atention"}, ["did you mean 'attention'"]),
    ({"revert_modules": "mlp,mlp"}, ["mlp is named twice"]),
    ({"role": "task"}, ["parameters.role"]),
]


@pytest.mark.parametrize(("parameters", "fragments"), REVERTS)
def test_a_wrong_delta_revert_recipe(parameters, fragments, experts, merge, tmp_path):
    document = revert_recipe(experts.task, experts.base, parameters)
    said = assert_one_text(document, tmp_path, merge)
    assert said.startswith("delta_revert recipe: ")
    for fragment in fragments:
        assert fragment in said, said


def test_structures_that_delta_revert_does_not_take(experts, merge, tmp_path):
    document = revert_recipe(experts.task, experts.base, {"bottom_layers": 1})
    for changes, fragment in (
        ({"tokenizer": {"source": "base"}}, "tokenizer cannot be used"),
        ({"slices": [{"sources": []}]}, "write models: in place of"),
        ({"models": [{"model": str(experts.base)}]}, "lists 0 models"),
        ({"models": [{"model": "./a"}, {"model": "./b"}]}, "takes one expert"),
        ({"models": [{"model": "./a", "parameters": {"role": "task"}}]}, "role"),
    ):
        assert fragment in assert_one_text(document | changes, tmp_path, merge)
    del document["base_model"]
    assert "base_model is missing" in assert_one_text(document, tmp_path, merge)


def test_one_model_in_two_places_however_it_is_written(experts, merge, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(experts.task)
    for other in (str(experts.task), f"{experts.task}/", str(link)):
        document = experts.with_models(None, other)
        assert "is listed twice" in assert_one_text(document, tmp_path, merge)
    document = experts.recipe(base_model=f"{experts.base}/")
    document["models"].append({"model": str(experts.base)})
    said = assert_one_text(document, tmp_path, merge)
    assert f"write it in the same way ({experts.base}/)" in said
    document["models"][2] = {"model": f"{experts.base}/", "parameters": {"weight": 2}}
    assert "weight has no effect on the base" in assert_one_text(document, tmp_path, merge)
    del document["models"][2]["parameters"]
    assert merge(document).exit_code == 0


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("Layer_Swap", "layer_swap"),
        ("layerswap", "layer_swap"),
        ("layer-swap", "layer_swap"),
        ("delta-reverse", "delta_revert"),
    ],
)
def test_near_misses_of_a_methods_name(name, meant, experts, refused, tmp_path):
    document = experts.recipe(merge_method=name)
    said = f"{name!r}; did you mean {meant!r}?"
    refused(document, said)
    path = write_recipe(tmp_path / "recipe.yml", document)
    assert any(said in problem for problem in checked(path))
    merged = CliRunner().invoke(layerswap, ["merge", str(path), str(tmp_path / "out")])
    assert merged.exit_code == 2
    assert said in merged.output


@pytest.mark.parametrize("name", ["linear", "Linear", "nearswap", "graft", None, 3])
def test_other_methods_keep_mergekits_errors(name, experts):
    document = experts.recipe(merge_method=name)
    for wrong in (document | {"parameters": []}, ["layer_swap"]):
        with pytest.raises(pydantic.ValidationError):
            MergeConfiguration.model_validate(wrong)
    if isinstance(name, str):
        with pytest.raises(RuntimeError, match="Exactly one of 'models'"):
            MergeConfiguration.model_validate(document | {"models": []})


def test_what_layerswap_merge_says_of_mergekits_own_methods(experts, tmp_path):
    """mergekit ignores what it does not know."""
    models = [experts.task, experts.language]
    entry = {"model": str(experts.task), "parameters": {"weigth": 1.0}}
    for changes, fragments in (
        ({"parameters": {"botom": 3}}, ["unknown parameter 'botom' of linear"]),
        ({"models": [entry]}, ["unknown parameter 'weigth'", "did you mean 'weight'"]),
        ({"tokeniser": "base"}, ["tokeniser: unknown key"]),
        ({"models": linear_recipe([experts.task] * 2)["models"]}, ["is listed twice"]),
    ):
        path = write_recipe(tmp_path / "recipe.yml", linear_recipe(models) | changes)
        result = CliRunner().invoke(layerswap, ["merge", str(path), str(tmp_path / "out")])
        assert result.exit_code == 2, result.output
        for fragment in fragments:
            assert fragment in result.output
            assert any(fragment in problem for problem in checked(path))
        assert not (tmp_path / "out").exists()


def test_a_key_that_stands_twice_and_an_alias(experts, merge, tmp_path):
    lines = yaml.safe_dump(experts.recipe(), sort_keys=False).splitlines()
    second = next(i for i, line in enumerate(lines, start=1) if "bottom_layers" in line)
    lines[second:second] = ["  bottom_layers: 3"]
    said = assert_one_text("\n".join(lines), tmp_path, merge, form=False)
    assert f"line {second + 1} has the key 'bottom_layers' again (first in line {second})" in said
    alias = yaml.safe_dump(experts.recipe(), sort_keys=False) + "dtype: &x float32\nout_dtype: *x\n"
    assert "alias *x" in assert_one_text(alias, tmp_path, merge, form=False)


def test_a_configuration_that_is_right_is_mergekits_own(experts):
    config = MergeConfiguration.model_validate(experts.recipe())
    assert type(config) is MergeConfiguration
    assert MergeConfiguration.model_validate(config) is config
