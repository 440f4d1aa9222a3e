"""Recipes as typed values, without mergekit: every problem at once, a JSON schema, references."""

import copy

import pytest

from layerswap_method.errors import InputError
from layerswap_method.methods.delta_revert import MODULES, DeltaRevertRecipe, RevertSpec
from layerswap_method.methods.layer_swap import LayerSwapRecipe
from layerswap_method.methods.read import (
    LinearRecipe,
    read_own_recipe,
    read_recipe,
    recipe_by_files,
)
from layerswap_method.recipe.references import find_model_files, syntax_problem
from tests.fresh_process import printed

SWAP = {
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
REVERT = {
    "merge_method": "delta_revert",
    "base_model": "base",
    "models": [{"model": "math"}],
    "parameters": {"bottom_layers": 3},
}
LINEAR = {
    "merge_method": "linear",
    "base_model": "a",
    "models": [{"model": name, "parameters": {"weight": 1}} for name in "ab"],
}


def problems(document):
    before = copy.deepcopy(document)
    with pytest.raises(InputError) as caught:
        read_recipe(document)
    assert document == before
    assert caught.value.exit_code == 2
    assert caught.value.message.startswith(f"{document['merge_method']} recipe: ")
    return caught.value.problems


def test_a_recipe_is_read_as_it_stands():
    recipe = read_recipe(SWAP)
    assert isinstance(recipe, LayerSwapRecipe)
    found = [(m.model, m.parameters.role, m.parameters.weight) for m in recipe.experts]
    assert found == [("math", "task", 1.0), ("swahili", "language", 2.0)]
    assert recipe.references == ("math", "swahili", "base")
    assert (recipe.base_model, recipe.parameters.bottom_layers) == ("base", 3)
    assert "tokenizer" in recipe.why_mergekit()
    revert = read_own_recipe(REVERT)
    assert isinstance(revert, DeltaRevertRecipe)
    assert (revert.references, revert.why_mergekit()) == (("math", "base"), None)
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
        ({"models": [{"model": "a", "parameters": {"weight": -1}}, LINEAR["models"][1]]}, "sum to"),
        (
            {"models": [{"model": "a", "parameters": {"weight": -2}}, LINEAR["models"][1]]},
            "negative",
        ),
    ],
    ids=str,
)
def test_what_only_mergekit_can_do(change, reason):
    document = LINEAR | change
    if "sum to" in reason:
        assert any(reason in problem for problem in problems(document))
        return
    assert recipe_by_files(document) is None
    recipe = read_recipe(document)
    assert reason in (recipe if isinstance(recipe, str) else recipe.why_mergekit())


def swap_with(**changes):
    return copy.deepcopy(SWAP) | changes


def model_with(**entry):
    return swap_with(models=[*SWAP["models"][1:], {"model": "math", **entry}])


FAULTS = [
    # (recipe, what each of its problems names: the place, the value or name, and the way out)
    (swap_with(paramters={}), [("paramters", "'parameters'")]),
    (swap_with(parameters={"botom_layers": 1}), [("parameters.botom_layers", "'bottom_layers'")]),
    (swap_with(parameters={"top_layers": "2"}), [("parameters.top_layers", "'2'", "write 2")]),
    (swap_with(parameters={"task_weight": "1e-6"}), [("parameters.task_weight", "1.0e-06")]),
    (swap_with(parameters={"seed": [1]}), [("parameters.seed", "[1]")]),
    (swap_with(parameters={"bottom_layers": -1}), [("parameters.bottom_layers", "-1")]),
    (swap_with(parameters={"top_layers": None}), [("parameters.top_layers", "drop the line")]),
    (swap_with(parameters={"role": "task"}), [("parameters.role", "models[].parameters")]),
    (swap_with(parameters={"placement": "midle"}), [("parameters.placement", "'middle'")]),
    (swap_with(parameters={"language_layers": 3}), [("language_layers", 'in quotes: "3"')]),
    (swap_with(parameters={"weighting": "magnitud"}), [("weighting", "'magnitude'")]),
    (swap_with(parameters={"task_weight": float("nan")}), [("parameters.task_weight", "nan")]),
    (
        swap_with(parameters={"botom_layers": 1, "seed": "x"}, dtype="bf16"),
        [("dtype", "'bf16'", "bfloat16"), ("botom_layers",), ("parameters.seed",)],
    ),
    (model_with(parameters={"role": "tsk"}), [("models[2].parameters.role", "'task'")]),
    (model_with(parameters={"role": "base"}), [("models[2].parameters.role", "drop this line")]),
    (model_with(parameters={"role": "task", "wieght": 1}), [("models[2]", "'weight'")]),
    (model_with(role="task"), [("models[2].role", "under", "parameters")]),
    (model_with(), [("models[2] (math)", "role: task"), ("no model with role: task",)]),
    (swap_with(models=[{"model": "a+b+c"}]), [("models[0].model", "MODEL+ADAPTER")]),
    (swap_with(models=[{"model": "a@b@c"}]), [("models[0].model", "PATH@REVISION")]),
    (swap_with(models=[]), [("role: task",), ("role: language",)]),
    (swap_with(base_model=None), [("base_model", "write base_model: math")]),
    (
        swap_with(models=[*SWAP["models"], SWAP["models"][0]]),
        [("models[3] (math)", "listed twice")],
    ),
    (
        swap_with(models=[*SWAP["models"][:2], {"model": "./base"}], base_model="base"),
        [("models[2] (./base)", "write")],
    ),
    (swap_with(slices=[{"sources": []}]), [("slices", "models:")]),
    (swap_with(modules={"text": {}}), [("modules", "models:")]),
    (
        swap_with(base_model="math", parameters={"weighting": "magnitude"}),
        [("base_model math", "pretrained parent")],
    ),
    (swap_with(parameters={"placement": "layers"}), [("language_layers",)]),
    (swap_with(parameters={"placement": "soup", "top_layers": 2}), [("top_layers", "drop it")]),
    (
        swap_with(parameters={"placement": "delta_share", "bottom_layers": 1}),
        [("bottom_layers", "drop it")],
    ),
    (swap_with(parameters={"delta_blend": 0.5}), [("delta_blend", "placement: delta_share")]),
    (
        swap_with(parameters={"placement": "delta_share", "delta_blend": 1.0, "task_weight": 0}),
        [("delta_blend", "nothing to average")],
    ),
    (
        swap_with(
            parameters={
                "placement": "delta_share",
                "delta_threshold": 0.1,
                "delta_dominance": 0.1,
            }
        ),
        [("delta_threshold and delta_dominance", "drop one")],
    ),
    (
        swap_with(parameters={"task_weight": 0, "language_weight": 0}),
        [("task_weight and language_weight",)],
    ),
    *(
        (REVERT | {"parameters": given}, [("nothing says what to revert", "threshold")])
        for given in (None, {})
    ),
    (
        REVERT
        | {
            "models": [*REVERT["models"], {"model": "other", "parameters": {"role": "task"}}],
            "parameters": {"threshold": -1.0, "botom_layers": 2},
        },
        [("models[1]", "role"), ("threshold", "-1"), ("botom_layers", "'bottom_layers'")],
    ),
    (REVERT | {"tokenizer_source": "union"}, [("tokenizer_source", "drop the line")]),
    (REVERT | {"models": [*REVERT["models"], {"model": "b2"}]}, [("2 models", "one expert")]),
    (
        LINEAR | {"models": [*LINEAR["models"], LINEAR["models"][0]]},
        [("models[2] (a)", "listed twice")],
    ),
]


@pytest.mark.parametrize(("document", "wanted"), FAULTS, ids=range(len(FAULTS)))
def test_every_problem_names_its_place_and_the_way_out(document, wanted):
    found = problems(document)
    assert len(found) >= len(wanted)
    for parts in wanted:
        assert any(all(part in text for part in parts) for text in found), (parts, found)


def test_an_editor_gets_the_keys_and_values_from_the_same_types():
    schema = LayerSwapRecipe.model_json_schema()
    assert schema["required"] == ["merge_method", "base_model", "models"]
    assert schema["additionalProperties"] is False
    assert "slices" not in schema["properties"]
    spec = schema["$defs"]["LayerSwapSpec"]["properties"]
    assert spec["weighting"]["enum"] == ["uniform", "magnitude"]
    assert "embedding side" in spec["bottom_layers"]["description"]
    revert = DeltaRevertRecipe.model_json_schema()
    assert revert["properties"]["merge_method"]["const"] == "delta_revert"


def test_the_keys_are_those_of_mergekit():
    from mergekit.config import InputModelDefinition, MergeConfiguration

    for ours in (LayerSwapRecipe, DeltaRevertRecipe, LinearRecipe):
        assert set(ours.model_fields) == set(MergeConfiguration.model_fields)
    (entry, _) = LayerSwapRecipe.model_fields["models"].annotation.__args__
    assert set(entry.model_fields) <= set(InputModelDefinition.model_fields)


LAYERS = {
    "self_attn.q_proj.weight": "attention",
    "mlp.up_proj.weight": "mlp",
    "input_layernorm.weight": "norm",
    "something.weight": "other",
}


def test_layers_that_go_back_are_the_union_of_every_way_to_name_them():
    spec = RevertSpec(revert_layers="0-4,30,31", bottom_layers=2, top_layers=3)
    assert spec.layers(32) == {0, 1, 2, 3, 4, 29, 30, 31}
    assert RevertSpec(threshold=0.1).layers(8) == frozenset()
    for values, part in (
        ({"bottom_layers": 3, "top_layers": 2}, r"= 5 .*4 layers"),
        ({"revert_layers": "4"}, r"revert_layers .*layer 4"),
    ):
        with pytest.raises(ValueError, match=part):
            RevertSpec(**values).layers(4)


@pytest.mark.parametrize("by_feature", [{}, {"threshold": 0.1}, {"keep_fraction": 0.5}])
def test_a_tensor_goes_back_if_any_set_names_it(by_feature):
    otherwise = "features" if by_feature else "expert"
    spec = RevertSpec(bottom_layers=1, revert_modules="mlp, non_layer", **by_feature)
    layers = spec.layers(4)
    for name, part in LAYERS.items():
        full = f"model.layers.0.{name}"
        assert spec.rule(full, 0, layers) == "base"
        assert spec.rule(full, 3, layers) == ("base" if part == "mlp" else otherwise)
        every = RevertSpec(revert_modules=",".join(MODULES))
        assert every.rule(full, 1, frozenset()) == "base"
    assert spec.rule("model.embed_tokens.weight", None, layers) == "base"
    assert RevertSpec(bottom_layers=1).rule("lm_head.weight", None, layers) == "expert"


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"threshold": 0.1, "keep_fraction": 0.5}, "drop one"),
        ({"threshold": float("inf")}, "finite"),
        ({"keep_fraction": 1.1}, "1 or less"),
        ({"keep_fraction": "0.5"}, "keep_fraction"),
        ({"revert_layers": "4-0"}, "revert_layers '4-0'"),
        ({"revert_modules": "atention"}, "'attention'"),
        ({"revert_modules": "mlp,mlp"}, "mlp is named twice"),
        ({"revert_modules": ""}, "none of"),
    ],
)
def test_what_says_nothing_to_revert(values, part):
    assert any(part in problem for problem in problems(REVERT | {"parameters": values}))


def test_references_and_where_they_lead(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m" / "task").mkdir(parents=True)
    (tmp_path / "m" / "file").write_text("x")
    assert find_model_files("m/task").folder == tmp_path / "m" / "task"  # though it has one slash
    for reference, parts in (
        ("m/tsk", ["m/tsk", "'task'"]),
        ("m/file", ["is a file", "m"]),
        ("./nowhere", ["no such folder", str(tmp_path)]),
        ("/no/where/at/all", ["no such folder"]),
        ("owner/name", ["owner/name", "the hub says"]),
        ("m/task+m/task", ["adapter_config.json"]),
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
