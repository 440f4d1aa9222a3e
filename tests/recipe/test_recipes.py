"""Recipes as typed values, and their faults: place, value, the way out; references; plain YAML."""

import copy

import pytest

from layerswap_method.errors import InputError
from layerswap_method.merge import merge_from_files
from layerswap_method.methods.delta_revert import DeltaRevertRecipe
from layerswap_method.methods.layer_swap import LayerSwapRecipe
from layerswap_method.methods.linear import LinearRecipe
from layerswap_method.methods.read import file_of_document, read_recipe, read_recipe_file
from layerswap_method.recipe.references import (
    find_model_files,
    model_names,
    named_models,
    syntax_problem,
)
from layerswap_method.recipe.strict_yaml import parse_yaml, read_yaml
from tests.standins.merging import linear_recipe, revert_recipe

TASK, LANGUAGE = ({"model": role, "parameters": {"role": role}} for role in ("task", "language"))
SWAP = {
    "merge_method": "layer_swap",
    "base_model": "base",
    "models": [TASK, LANGUAGE, {"model": "base"}],
    "parameters": {},
}
REVERT = revert_recipe("task", "base", {"bottom_layers": 3})
LINEAR = linear_recipe("ab")


def test_a_recipe_is_read_as_it_stands():
    document = SWAP | {"tokenizer": {"source": "union"}, "parameters": {"bottom_layers": 3}}
    recipe = read_recipe(document)
    found = [(m.model, m.parameters.role, m.parameters.weight) for m in recipe.experts]
    assert found == [("task", "task", 1.0), ("language", "language", 1.0)]
    assert recipe.references == ("task", "language", "base")
    assert (recipe.base_model, recipe.parameters.bottom_layers) == ("base", 3)
    assert "tokenizer" in recipe.why_mergekit()
    revert = read_recipe(REVERT)
    assert (revert.references, revert.why_mergekit()) == (("task", "base"), None)
    assert isinstance(read_recipe(LINEAR), LinearRecipe)


ONE = {"merge_method": "passthrough", "models": [{"model": "a"}]}


@pytest.mark.parametrize(
    ("document", "unmerged"),
    [
        (ONE, "a"),
        (ONE | {"dtype": "float32"}, None),
        (ONE | {"base_model": "a"}, None),
        (ONE | {"models": [{"model": "a", "parameters": {"scale": 2}}]}, None),
        (LINEAR, None),
        (SWAP, None),
    ],
)
def test_a_model_that_is_left_as_it_is_is_told_from_a_merge(document, unmerged):
    assert read_recipe(document).unmerged == unmerged


def test_a_recipe_is_written_as_it_was_read():
    """The typed value knows the defaults; the document says what was written, in its order."""
    document = {"models": [TASK, LANGUAGE], **SWAP, "dtype": "torch.bfloat16"}
    recipe = read_recipe(document)
    assert recipe.document == document
    assert list(recipe.document) == ["models", "merge_method", "base_model", "parameters", "dtype"]
    assert recipe.why_mergekit() is None
    assert recipe.written_dtype == "bfloat16"
    assert not read_recipe(SWAP | {"tokenizer_source": None}).makes_tokenizer
    aligned = read_recipe(SWAP | {"tokenizer_source": "base"})
    assert aligned.aligns_tokens
    assert isinstance(aligned, LayerSwapRecipe)
    assert aligned.why_mergekit() is not None
    with pytest.raises(InputError, match="did you mean"):
        read_recipe(SWAP | {"parameters": {"botom_layers": 1}})


MERGEKIT_ONLY = [
    ({"base_model": "b"}, "base_model"),
    ({"base_model": None}, "base_model"),
    ({"dtype": "float32", "out_dtype": "float16"}, "out_dtype"),
    ({"chat_template": "auto"}, "chat_template"),
    ({"tokenizer_source": "union"}, "tokenizer_source"),
    ({"merge_method": "ties"}, "ties"),
    ({"parameters": {"normalize": False}}, "linear"),
    ({"models": [{"model": "a", "parameters": {"weight": -2}}]}, "negative"),
]


@pytest.mark.parametrize(("change", "reason"), MERGEKIT_ONLY, ids=str)
def test_what_only_mergekit_can_do(change, reason, tmp_path):
    written = read_recipe(LINEAR | change)
    assert reason in written.why_mergekit()
    assert written.document == LINEAR | change
    assert {*written.references} == {*named_models(LINEAR | change)}
    file = file_of_document(LINEAR | change)
    out = str(tmp_path / "new" / "out")
    assert reason in merge_from_files(file, out, pytest.fail, pytest.fail)  # finds no model
    assert list(tmp_path.iterdir()) == []


def test_the_keys_are_those_of_mergekit():
    from mergekit.config import InputModelDefinition, MergeConfiguration

    for ours in (LayerSwapRecipe, DeltaRevertRecipe, LinearRecipe):
        assert set(ours.model_fields) == set(MergeConfiguration.model_fields)
    (entry, _) = LayerSwapRecipe.model_fields["models"].annotation.__args__
    assert set(entry.model_fields) <= set(InputModelDefinition.model_fields)


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
    ({"task_weight": 1e-40, "language_weight": 1e-40}, ["sum to 2e-40", "nearer to 1"]),
    ({"task_weight": 1e308, "language_weight": 1e308}, ["sum to inf", "nearer to 1"]),
    ({"language_weight": float("nan")}, ["parameters.language_weight", "finite"]),
    ({"placement": "midle"}, ["parameters.placement", "did you mean 'middle'"]),
    ({"placement": "layers"}, ["needs language_layers"]),
    ({"placement": "layers", "language_layers": 3}, ["language_layers", 'in quotes: "3"']),
    (
        {"placement": "layers", "language_layers": "0-4", 7: None, "9-10": None},
        ['parameters: write the list in quotes: language_layers: "0-4,7,9-10"'],
    ),
    ({"placement": "layers", "language_layers": "0", "bottom_layers": 1}, ["bottom_layers has no"]),
    ({"language_layers": "0-1"}, ["language_layers has no effect", "placement: layers"]),
    ({"placement": "soup", "bottom_layers": 5, "top_transition": 1}, ["have no effect", "drop it"]),
    ({**SHARE, "swap_modules": "mlp"}, ["swap_modules: mlp", "delta_unit"]),
    ({**SHARE, "delta_blend": 1.0, "task_weight": 0}, ["delta_blend", "nothing to average"]),
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
    ({"model": "a+b+c"}, ["models[0].model: a+b+c", "MODEL+ADAPTER"]),
    ({"model": "a@b@c"}, ["models[0].model: a@b@c", "PATH@REVISION"]),
    ({"model": "language"}, ["models[1] (language)", "listed twice"]),
    ({"model": "./base", "parameters": {}}, ["models[0] (./base)", "write it in the same way"]),
]
HUGE = {"model": "a", "parameters": {"role": "task", "weight": 1e308}}
TOP = [
    ({"base_model": None}, ["base_model is missing", "write base_model: task"]),
    ({"tokeniser": "base"}, ["tokeniser: unknown key", "did you mean 'tokenizer"]),
    (
        {"slices": [{"sources": []}]},
        ["slices: has no use here, as every layer keeps its place; write models: instead"],
    ),
    ({"models": []}, ["no model with role: task", "no model with role: language"]),
    ({"models": [HUGE, {**HUGE, "model": "b"}, LANGUAGE]}, ["of role task sum to inf"]),
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
    ({"parameters": {"threshold": 0.1, "keep_fraction": 0.5}}, ["drop one"]),
    ({"parameters": {"keep_fraction": 70}}, ["parameters.keep_fraction", "1 or less", "70"]),
    ({"parameters": {"revert_layers": "4-0"}}, ["revert_layers '4-0'"]),
    ({"parameters": {"revert_modules": "atention"}}, ["did you mean 'attention'"]),
    ({"parameters": {"revert_modules": "mlp,mlp"}}, ["mlp is named twice"]),
    ({"tokenizer": {"source": "base"}}, ["tokenizer cannot be used", "drop the line"]),
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
    assert caught.value.message.startswith(f"{document['merge_method']} recipe: ")
    assert all(part in caught.value.message for part in parts), caught.value.message
    assert "pydantic" not in caught.value.message
    assert len(caught.value.message) < 800


def test_references_and_where_they_lead(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m" / "task").mkdir(parents=True)
    for name in ("file", "adapter_config.json", "adapter_model.bin"):
        (tmp_path / "m" / name).write_text("x")
    found = find_model_files("m/task").folder  # though it has the form of a hub id
    assert found == tmp_path / "m" / "task"
    for reference, parts in (
        ("m/tsk", ["m/tsk", "'task'"]),
        ("m/file", ["is a file", "write its folder"]),
        ("./nowhere", ["no such folder", str(tmp_path)]),
        ("/no/where/at/all", ["no such folder"]),
        ("~nobody/task", ["no such folder"]),
        ("owner/name", ["owner/name", "HF_HUB_OFFLINE is set", "hf download owner/name"]),
        ("m/task+m/task", ["adapter_config.json", "is not a PEFT adapter"]),
        ("m/task+m", ["adapter_model.safetensors", "a pickle"]),
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


def grown(first, item):
    """Return a document in which each of 13 anchors stands for nine of the one before."""
    pairs = zip("abcdefghijklm", "bcdefghijklmn", strict=True)
    lines = (f"{b}: &{b} " + item.format(", ".join([f"*{a}"] * 9)) for a, b in pairs)
    return "\n".join([f"a: &a {first}", *lines])


def test_plain_values_are_what_yaml_makes_of_them():
    text = "a: [1, 2.5, yes, null, x]\nb: &b {c: 1, d: 2}\ne: {<<: *b, d: 3}\n"
    assert parse_yaml(text, "F") == {
        "a": [1, 2.5, True, None, "x"],
        "b": {"c": 1, "d": 2},
        "e": {"c": 1, "d": 3},  # a key next to << is no second one
    }
    assert parse_yaml("# nothing\n", "F") is None


def test_every_key_that_stands_twice_is_named_with_both_lines():
    text = "limit: 3\nname: x\nlimit: 300\nevaluate:\n  - tasks: [a]\n    'tasks': [b]\n"
    with pytest.raises(InputError) as caught:
        parse_yaml(text, "study.yml")
    wanted = (["line 3", "'limit'", "line 1"], ["line 6", "'tasks'", "line 5"])
    for problem, parts in zip(caught.value.problems, wanted, strict=True):
        assert all(part in problem for part in (*parts, "drop one"))


NOT_PLAIN = [
    ("1: a\n0x1: b", "again"),
    ("x: [{a: 1, a: 2}]", "again"),
    ("a: !!python/object/apply:os.getcwd []", "line 1: the tag !!python/object/apply"),
    ("a: 1\nb: !function x.y", "line 2: the tag !function"),
    ("a: 1\n? !x y\n: 1", "line 2: the tag !x"),
    ("a: 1\nb: [", "line 2"),
    ("a: 1\n---\nb: 2", "line 2"),
    ("? [a]\n: b", "line 1"),
    ("a: 2024-99-99", "month"),
    ("a: " + "[" * 3000, "nested too deeply"),
    ("\0", "unacceptable character"),
    (grown("[x, x]", "[{}]"), "alias *a"),  # 600 bytes that stand for 10^13 values
    ("models: &m [*m]", "alias *m"),
    ("a: &a {b: 1}\n*a : 1", "alias *a"),
]


@pytest.mark.parametrize(("text", "part"), NOT_PLAIN, ids=lambda text: text[:20])
def test_what_is_no_plain_yaml_is_one_message_at_once(text, part, tmp_path):
    with pytest.raises(InputError) as caught:
        parse_yaml(text, "F")
    assert caught.value.message.startswith("F: ")
    assert part in caught.value.message
    assert "\n" not in caught.value.message
    (tmp_path / "recipe.yml").write_text(text)
    with pytest.raises(InputError, match=r"recipe\.yml"):
        read_recipe_file(tmp_path / "recipe.yml")


def test_merge_keys_may_not_become_a_bomb_either():
    try:
        found = parse_yaml(grown("{x: 1}", "{{<<: [{}]}}"), "F")
    except InputError:
        found = {"n": {"x": 1}}
    assert found["n"] == {"x": 1}


def test_a_file_that_cannot_be_read_is_named_once(tmp_path):
    (tmp_path / "bytes").write_bytes(b"\x80\x81")
    (tmp_path / "folder").mkdir()
    cases = {"bytes": "UTF-8", "absent": "No such file", "folder": "Is a directory"}
    for name, part in cases.items():
        with pytest.raises(InputError, match=part) as caught:
            read_yaml(tmp_path / name)
        assert caught.value.message.count(str(tmp_path / name)) == 1


@pytest.mark.parametrize(
    ("references", "names"),
    [
        (["./runs/math-expert/"], ["math-expert"]),
        (["./base+./out/spanish-lora"], ["spanish-lora"]),
        (["org/Model-8B@1f2e", "~/Model"], ["Model-8B", "Model"]),
        (["a/one/merged", "a/two/merged", "b"], ["one/merged", "two/merged", "b"]),
        # Adapters of two bases, revisions: nothing at the end of the path tells them apart.
        (["a+lora", "b+lora"], ["a+lora", "b+lora"]),
        (["org/m@1", "org/m@2"], ["org/m@1", "org/m@2"]),
        (["other/taken"], ["other/taken"]),
    ],
)
def test_a_model_is_called_by_the_end_of_its_path(references, names):
    assert model_names(references, {"taken"}) == dict(zip(references, names, strict=True))


def test_a_folder_that_ends_in_dots_has_the_name_of_its_place(tmp_path, monkeypatch):
    (tmp_path / "mine" / "deep").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "mine")
    assert model_names(["."]) == {".": "mine"}
    assert model_names(["deep/.."]) == {"deep/..": "mine"}
