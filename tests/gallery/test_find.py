"""Finding a shipped recipe and pointing it at another folder."""

from pathlib import Path

import pytest

import layerswap_method
from ablations.gallery.find import find_recipe
from layerswap_method.errors import InputError


def test_the_working_directory_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shipped = find_recipe("pocket/layer_swap.yml")
    assert shipped.is_absolute()
    mine = tmp_path / "recipes" / "pocket" / "layer_swap.yml"
    mine.parent.mkdir(parents=True)
    mine.write_text("merge_method: layer_swap\n")
    assert find_recipe("pocket/layer_swap.yml").resolve() == mine


def test_a_wheel_holds_them_inside_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site-packages" / "layerswap_method"
    (package / "_recipes" / "pocket").mkdir(parents=True)
    (package / "_recipes" / "pocket" / "soup.yml").write_text("merge_method: linear\n")
    monkeypatch.setattr(layerswap_method, "__file__", str(package / "__init__.py"))
    monkeypatch.chdir(tmp_path)
    assert find_recipe("pocket/soup.yml") == package / "_recipes" / "pocket" / "soup.yml"


def test_an_unknown_recipe_is_answered_with_the_nearest() -> None:
    with pytest.raises(
        InputError,
        match=r"no such file, and no recipe of that name in .*; did you mean 'pocket/layer_",
    ):
        find_recipe("pocket/layerswap.yml")
