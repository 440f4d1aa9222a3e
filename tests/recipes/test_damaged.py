"""Recipes that were damaged at random: what `check` finds, the merge refuses; never a traceback."""

import copy
import datetime
import math
import shutil

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from layerswap_method.errors import InputError
from layerswap_method.merge import merge_from_files
from layerswap_method.methods.read import read_recipe_file
from layerswap_method.recipe.references import find_model_files
from tests.standins.command import layerswap
from tests.standins.merging import recipe, revert_recipe, roles

ODD = [
    None,
    True,
    False,
    -1,
    0,
    1,
    3,
    10**30,
    1.5,
    -0.0,
    math.nan,
    math.inf,
    "",
    " ",
    "task",
    "base",
    "average",
    "layers",
    "0-1,3",
    "3-1",
    "auto",
    "float16",
    "a+b+c",
    "@",
    "~",
    "\0",
    "é" * 300,
    [],
    [None],
    [1, 2],
    {},
    {"a": 1},
    {"model": "x"},
    datetime.date(2026, 1, 1),
]
KEYS = ["weight", "role", "placement", "language_layers", "dtype", "tokenizer", "slices", "x", 7]
ZONES = {"bottom_layers": 1, "top_layers": 1, "bottom_transition": 1, "non_layer": "task"}


def places(value):
    """Yield every (holder, key) below a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items if isinstance(value, dict | list) else ():
        yield value, key
        if isinstance(inner, dict | list):
            yield from places(inner)


def damage(data, document):
    """Return the text of a recipe in which one to three things are wrong, or only odd."""
    for _ in range(data.draw(st.integers(0, 3))):
        holder, key = data.draw(st.sampled_from([*places(document)] or [(document, "x")]))
        kind = data.draw(st.sampled_from(["replace", "replace", "remove", "add"]))
        if kind == "add" and isinstance(holder, dict):
            key = data.draw(st.sampled_from(KEYS))
        if kind == "remove":
            holder.pop(key, None) if isinstance(holder, dict) else holder.pop(key)
        else:
            holder[key] = copy.deepcopy(data.draw(st.sampled_from(ODD)))
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    for _ in range(data.draw(st.sampled_from([0, 0, 1, 2]))):
        place = data.draw(st.integers(0, len(text)))
        cut = data.draw(st.integers(0, 3))
        text = (
            text[:place]
            + data.draw(st.text("-: \n\t{}[]'\"#&*!|>%@`é7a", max_size=3))
            + text[place + cut :]
        )
    return text


def merged(path, out):
    """Merge a recipe and return the exit code; mergekit itself merges nothing here."""
    try:
        reason = merge_from_files(read_recipe_file(path), str(out), find_model_files, str)
    except InputError:
        return 2
    return 0 if reason is None else "passed on"


def never_a_traceback(data, trio, folder):
    document = data.draw(
        st.sampled_from(
            [
                recipe(roles(trio), ZONES, trio.base, dtype="float32"),
                revert_recipe(trio.task, trio.base, {"bottom_layers": 1, "threshold": 0.001}),
            ]
        )
    )
    path, out = folder / "recipe.yml", folder / "out"
    path.write_text(damage(data, document), encoding="utf-8")
    checked = layerswap("check", path, "--offline")
    assert checked.exit_code in (0, 2), checked.output
    shutil.rmtree(out, ignore_errors=True)
    code = merged(path, out)
    assert code in (0, 2, "passed on")
    if code != "passed on":
        assert (code, checked.exit_code) in ((0, 0), (2, 2)), checked.output
        assert out.exists() == (code == 0)


@settings(max_examples=60)
@given(st.data())
def test_a_damaged_recipe_is_refused_or_merged(trio, tmp_path_factory, data):
    never_a_traceback(data, trio, tmp_path_factory.getbasetemp())


@pytest.mark.slow
@settings(max_examples=10_000)
@given(st.data())
def test_ten_thousand_damaged_recipes(trio, tmp_path_factory, data):
    never_a_traceback(data, trio, tmp_path_factory.getbasetemp())
