"""Reading YAML: every key once, plain values only, and one message with the line."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from layerswap_method.errors import InputError
from layerswap_method.recipe.strict_yaml import parse_yaml, read_yaml

ROOT = Path(__file__).parents[2]


def test_plain_values_are_what_yaml_makes_of_them() -> None:
    text = "a: [1, 2.5, yes, null, x]\nb: &b {c: 1, d: 2}\ne: {<<: *b, d: 3}\n"
    assert parse_yaml(text, "F") == {
        "a": [1, 2.5, True, None, "x"],
        "b": {"c": 1, "d": 2},
        "e": {"c": 1, "d": 3},  # a key beside << is no second one
    }
    assert parse_yaml("# nothing\n", "F") is None


def test_every_key_that_stands_twice_is_named_with_both_lines() -> None:
    text = "limit: 3\nname: x\nlimit: 300\nevaluate:\n  - tasks: [a]\n    'tasks': [b]\n"
    with pytest.raises(InputError) as caught:
        parse_yaml(text, "study.yml")
    assert caught.value.exit_code == 2
    assert caught.value.message == (
        "study.yml: 2 problems\n"
        "  - line 3 has the key 'limit' again (first in line 1), and YAML keeps only the last: "
        "drop one of them\n"
        "  - line 6 has the key 'tasks' again (first in line 5), and YAML keeps only the last: "
        "drop one of them"
    )


@pytest.mark.parametrize(
    "text",
    ["1: a\n0x1: b", "1: a\ntrue: b", "a: {b: 1, b: 1}", "x: [{a: 1, a: 2}]"],
)
def test_keys_that_python_takes_for_one_are_one(text: str) -> None:
    with pytest.raises(InputError, match="again"):
        parse_yaml(text, "F")


def test_one_block_under_two_names_is_told_once() -> None:
    with pytest.raises(InputError) as caught:
        parse_yaml("a: &a {b: 1, b: 2}\nc: *a\nd: *a\n", "F")
    assert caught.value.message.count("again") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "a: !!python/object/apply:os.getcwd []",
            "line 1: the tag !!python/object/apply:os.getcwd",
        ),
        ("a: 1\nb: !function x.y", "line 2: the tag !function is not read here"),
        ("a: 1\n? !x y\n: 1", "line 2: the tag !x is not read here"),
        ("a: 1\nb: [", "line 2: while parsing a flow node"),
        ("a: 1\n---\nb: 2", "line 2: expected a single document"),
        ("? [a]\n: b", "line 1: while constructing a mapping, found unhashable key"),
        ("a: 2024-99-99", "month must be in 1..12"),
        ("a: " + "[" * 5000, "nested too deeply"),
        ("\0", "unacceptable character"),
    ],
)
def test_what_is_no_plain_yaml_is_one_message(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_yaml(text, "F")
    assert caught.value.message.startswith("F: ")
    assert message in caught.value.message
    assert "\n" not in caught.value.message


def test_a_further_tag_is_read_as_the_text_after_it() -> None:
    assert parse_yaml("a: !function x.y", "F", tags=["!function"]) == {"a": "x.y"}


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\x80\x81", "it is not UTF-8 text"), (None, "No such file"), ("folder", "Is a directory")],
)
def test_a_file_that_cannot_be_read_is_named_once(
    tmp_path: Path, content: bytes | str | None, message: str
) -> None:
    path = tmp_path / "study.yml"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        path.mkdir()
    with pytest.raises(InputError, match=message) as caught:
        read_yaml(path)
    assert caught.value.message.count(str(path)) == 1


def test_yaml_is_read_in_one_place() -> None:
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
    assert readers == {"layerswap_method/recipe/strict_yaml.py", "ablations/tasks/contents.py"}
