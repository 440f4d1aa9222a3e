"""Recipes as typed values; references to models; YAML: every key once, plain values, no aliases."""

import pytest

from layerswap_method.errors import InputError
from layerswap_method.methods.delta_revert import DeltaRevertRecipe
from layerswap_method.methods.layer_swap import LayerSwapRecipe
from layerswap_method.methods.read import (
    LinearRecipe,
    read_own_recipe,
    read_recipe,
    read_recipe_file,
    recipe_by_files,
)
from layerswap_method.recipe.references import find_model_files, syntax_problem
from layerswap_method.recipe.strict_yaml import parse_yaml, read_yaml
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
def test_what_only_mergekit_can_do(change, reason):
    assert recipe_by_files(LINEAR | change) is None
    recipe = read_recipe(LINEAR | change)
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
    assert caught.value.exit_code == 2
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
    (grown("[x, x]", "[{}]"), "alias *a"),  # H12: 600 bytes that stand for 10^13 values
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
