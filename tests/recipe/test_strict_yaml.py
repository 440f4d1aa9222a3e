"""Reading YAML: every key once, plain values only, no aliases, and one message with the line."""

import ast
import time
from pathlib import Path

import pytest

from layerswap_method.errors import InputError
from layerswap_method.methods.read import read_recipe_file
from layerswap_method.recipe.strict_yaml import parse_yaml, read_yaml

ROOT = Path(__file__).parents[2]


def test_plain_values_are_what_yaml_makes_of_them():
    text = "a: [1, 2.5, yes, null, x]\nb: &b {c: 1, d: 2}\ne: {<<: *b, d: 3}\n"
    assert parse_yaml(text, "F") == {
        "a": [1, 2.5, True, None, "x"],
        "b": {"c": 1, "d": 2},
        "e": {"c": 1, "d": 3},  # a key next to << is no second one
    }
    assert parse_yaml("# nothing\n", "F") is None
    assert parse_yaml("a: !function x.y", "F", tags=["!function"]) == {"a": "x.y"}


def test_every_key_that_stands_twice_is_named_with_both_lines():
    text = "limit: 3\nname: x\nlimit: 300\nevaluate:\n  - tasks: [a]\n    'tasks': [b]\n"
    with pytest.raises(InputError) as caught:
        parse_yaml(text, "study.yml")
    assert caught.value.exit_code == 2
    assert len(caught.value.problems) == 2
    for problem, parts in zip(
        caught.value.problems,
        (["line 3", "'limit'", "line 1"], ["line 6", "'tasks'", "line 5"]),
        strict=True,
    ):
        assert all(part in problem for part in (*parts, "drop one"))


TWICE = ["1: a\n0x1: b", "1: a\ntrue: b", "a: {b: 1, b: 1}", "x: [{a: 1, a: 2}]"]
BOMB = "a: &a [x, x]\n" + "".join(
    f"{b}: &{b} [*{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}]\n"
    for a, b in zip("abcdefghijklm", "bcdefghijklmn", strict=True)
)
"""H12: 600 bytes that stand for 10^13 values."""


@pytest.mark.parametrize(
    ("text", "part"),
    [
        *((text, "again") for text in TWICE),
        ("a: !!python/object/apply:os.getcwd []", "line 1: the tag !!python/object/apply"),
        ("a: 1\nb: !function x.y", "line 2: the tag !function"),
        ("a: 1\n? !x y\n: 1", "line 2: the tag !x"),
        ("a: 1\nb: [", "line 2"),
        ("a: 1\n---\nb: 2", "line 2"),
        ("? [a]\n: b", "line 1"),
        ("a: 2024-99-99", "month"),
        ("a: " + "[" * 5000, "nested too deeply"),
        ("\0", "unacceptable character"),
        (BOMB, "alias *a"),
        ("models: &m [*m]", "alias *m"),
        ("a: &a {b: *a}", "alias *a"),
        ("a: &a {b: 1}\n*a : 1", "alias *a"),
    ],
    ids=lambda text: text[:20],
)
def test_what_is_no_plain_yaml_is_one_message_at_once(text, part, tmp_path):
    start = time.monotonic()
    with pytest.raises(InputError) as caught:
        parse_yaml(text, "F")
    assert caught.value.message.startswith("F: ")
    assert part in caught.value.message
    assert "\n" not in caught.value.message
    (tmp_path / "recipe.yml").write_text(text)
    with pytest.raises(InputError, match=r"recipe\.yml"):
        read_recipe_file(tmp_path / "recipe.yml")
    assert time.monotonic() - start < 10


def test_merge_keys_may_not_become_a_bomb_either():
    text = "a: &a {x: 1}\n" + "".join(
        f"{b}: &{b} {{<<: [{', '.join(['*' + a] * 9)}]}}\n"
        for a, b in zip("abcdefghijklm", "bcdefghijklmn", strict=True)
    )
    start = time.monotonic()
    try:
        found = parse_yaml(text, "F")
    except InputError:
        found = {"n": {"x": 1}}
    assert found["n"] == {"x": 1}
    assert time.monotonic() - start < 10


@pytest.mark.parametrize(
    ("content", "part"),
    [(b"\x80\x81", "UTF-8"), (None, "No such file"), ("folder", "Is a directory")],
)
def test_a_file_that_cannot_be_read_is_named_once(tmp_path, content, part):
    path = tmp_path / "study.yml"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        path.mkdir()
    with pytest.raises(InputError, match=part) as caught:
        read_yaml(path)
    assert caught.value.message.count(str(path)) == 1


def test_yaml_is_read_in_one_place():
    readers = {
        path.relative_to(ROOT).as_posix()
        for package in ("ablations", "layerswap_method")
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "yaml"
        and ("load" in node.attr.lower() or node.attr in ("compose", "parse"))
    }
    # A file of lm-eval's has tags (`!function`) that plain values do not.
    assert readers <= {"layerswap_method/recipe/strict_yaml.py", "ablations/tasks/contents.py"}
