"""Reading YAML: every key once, plain values only, no aliases, and one message with the line."""

import time

import pytest

from layerswap_method.errors import InputError
from layerswap_method.methods.read import read_recipe_file
from layerswap_method.recipe.strict_yaml import parse_yaml, read_yaml


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
    assert parse_yaml("a: !function x.y", "F", tags=["!function"]) == {"a": "x.y"}


def test_every_key_that_stands_twice_is_named_with_both_lines():
    text = "limit: 3\nname: x\nlimit: 300\nevaluate:\n  - tasks: [a]\n    'tasks': [b]\n"
    with pytest.raises(InputError) as caught:
        parse_yaml(text, "study.yml")
    assert caught.value.exit_code == 2
    wanted = (["line 3", "'limit'", "line 1"], ["line 6", "'tasks'", "line 5"])
    for problem, parts in zip(caught.value.problems, wanted, strict=True):
        assert all(part in problem for part in (*parts, "drop one"))


@pytest.mark.parametrize(
    ("text", "part"),
    [
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
    start = time.monotonic()
    try:
        found = parse_yaml(grown("{x: 1}", "{{<<: [{}]}}"), "F")
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
