"""The commits of hub models in the text of a recipe, of which nothing else changes."""

import pytest

from layerswap_method.recipe.pinned import commits, pinned_text, with_commits
from layerswap_method.recipe.references import Model

KNOWN = {"a/base": "1" * 40, "a/task@main": "2" * 40, "a/adapter": "3" * 40}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("model: a/base # why", f"model: a/base@{'1' * 40} # why"),
        ("model: 'a/base'", f"model: 'a/base@{'1' * 40}'"),
        (
            '{model: "a/base", b: [a/base]}',
            f'{{model: "a/base@{"1" * 40}", b: [a/base@{"1" * 40}]}}',
        ),
        ("é: a/base\n", f"é: a/base@{'1' * 40}\n"),
        ("x: a/task@main+a/adapter", f"x: a/task@{'2' * 40}+a/adapter@{'3' * 40}"),
        ("x: &b a/base\ny: *b", f"x: &b a/base@{'1' * 40}\ny: *b"),
        ("a/base: a/other\nc: a/base2 # a/base", "a/base: a/other\nc: a/base2 # a/base"),
        ("x: |\n  a/base\n", "x: |\n  a/base\n"),
    ],
)
def test_a_hub_id_gets_its_commit_and_all_else_stays(before, after):
    assert pinned_text(before, KNOWN) == after


def test_only_models_of_the_hub_have_commits(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    snapshot = tmp_path / "models--a--b" / "snapshots" / ("4" * 40)
    local = tmp_path / "c" / "d"
    for folder in (snapshot, local):
        folder.mkdir(parents=True)
    models = {
        "a/b": Model("a/b", snapshot),
        "a/b@v1+a/adapter": Model("x", snapshot, snapshot),
        "c/d": Model("c/d", local),
        str(snapshot): Model("folder", snapshot),
    }
    assert commits(models) == dict.fromkeys(("a/b", "a/b@v1", "a/adapter"), "4" * 40)
    assert with_commits({"a": 1}, {}) == {"a": 1}
    assert with_commits({}, {"a/b": "4"}) == {}
