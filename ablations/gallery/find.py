"""The shipped recipes: places, headers, list and copies."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import layerswap_method
from ablations.drawing.text_table import text_table
from ablations.machine.whole_files import check_place, write_errors, write_text
from layerswap_method.errors import InputError, nearest
from layerswap_method.methods.layer_swap import LETTERS
from layerswap_method.methods.read import RecipeFile, file_of_document, read_recipe_file
from layerswap_method.recipe.references import is_there

FIELDS = ("What", "Run", "Needs", "Languages", "Source", "Expected", "To change")
"""Fields of the opening comment of a recipe, in this order."""


def find_recipe(name: str) -> Path:
    """Return the shipped recipe `name`: ``pocket/layer_swap.yml``, or that without ``.yml``.

    Looked for in ``./recipes`` (a clone, where the user may have changed it), next to the package
    (an editable install), then inside it (a wheel).

    Raises:
        InputError: when it is in none of them, or is the path of a file that does not exist.
    """
    if name.startswith((".", "/", "~")):
        raise InputError(f"{name}: no such file (the current directory is {Path.cwd()})")
    name, shipped = name.removeprefix("recipes/"), _shipped()
    for file in (name, f"{name}.yml"):
        if file in shipped:
            return shipped[file]
    places = ", ".join(map(str, _roots()))
    raise InputError(
        f"{name}: no such file, and no recipe of that name in {places}{nearest(name, shipped)}"
    )


def recipe_path(name: str | os.PathLike[str]) -> Path:
    """Return the file of a recipe: one of the user's, or a shipped one by its name."""
    path = Path(os.path.expanduser(name))  # noqa: PTH111 - as references
    return path if is_there(path) else find_recipe(str(name))


def open_recipe(recipe: str | os.PathLike[str] | Mapping[str, Any]) -> RecipeFile:
    """Return a recipe: a file, a shipped one by its name, or what a program wrote in its place.

    Raises:
        InputError: where there is none, or it cannot be read.
    """
    if isinstance(recipe, Mapping):
        return file_of_document(recipe)
    return read_recipe_file(recipe_path(recipe))


def is_gallery_file(path: Path) -> bool:
    """Return whether a file is one of the gallery's: next to the package, or inside it."""
    return any(path.resolve().is_relative_to(root.resolve()) for root in _roots()[1:])


def shipped_names() -> list[str]:
    """Return the names of the shipped recipes, and of training files, as `find_recipe` has them."""
    return [name.removesuffix(".yml") for name in _shipped()]


def recipe_files(root: Path) -> list[Path]:
    """Return every recipe below `root`, without the training configurations in `experts`."""
    return [path for path in sorted(root.rglob("*.yml")) if root / "experts" not in path.parents]


def _shipped() -> dict[str, Path]:
    """Return name, such as ``pocket/soup.yml`` -> file, sorted by name."""
    files = {
        path.relative_to(root).as_posix(): path
        for root in reversed(_roots())
        for path in root.rglob("*.yml")
    }
    return dict(sorted(files.items()))


def _roots() -> tuple[Path, ...]:
    package = Path(layerswap_method.__file__).parent
    return Path("recipes"), package.parent / "recipes", package / "_recipes"


def read_recipe_header(text: str) -> dict[str, str]:
    """Return the fields of a recipe's opening comment, each as one line, in the file's order."""
    fields, name = dict[str, str](), ""
    for line in itertools.takewhile(lambda line: line.startswith("#"), text.splitlines()):
        key, colon, rest = line[2:].partition(":")
        if colon and key in FIELDS:
            name, fields[key] = key, rest.strip()
        elif name:
            fields[name] = f"{fields[name]} {line[1:].strip()}".strip()
    return fields


def languages(header: Mapping[str, str]) -> list[str]:
    """Return the language codes that a header names, such as ``["en", "sw"]``."""
    return re.findall(r"[^\s,]+", header.get("Languages", ""))


class ShippedRecipe(NamedTuple):
    """A recipe as the list shows it."""

    name: str
    languages: tuple[str, ...]
    base_model: str
    merge_method: str
    settings: str
    """What it sets, in a few words."""

    path: Path


def list_recipes(language: str | None = None) -> list[ShippedRecipe]:
    """Return the recipes by name, all or those of a language.

    Raises:
        InputError: for a language that no recipe has.
    """
    recipes, known = list[ShippedRecipe](), set[str]()
    for name, path in _shipped().items():
        try:
            _, text, document = read_recipe_file(path)
        except InputError:  # files of training, and other files of the user
            continue
        codes = languages(read_recipe_header(text))
        known.update(codes)
        if language is None or language in codes:
            recipes.append(
                ShippedRecipe(
                    name=name.removesuffix(".yml"),
                    languages=tuple(codes),
                    base_model=str(document.get("base_model", "")),
                    merge_method=str(document["merge_method"]),
                    settings=settings(document).replace("`", ""),
                    path=path,
                )
            )
    if not recipes:
        listed = ", ".join(sorted(known))
        raise InputError(f"no recipe for {language!r}; there are recipes for {listed}")
    return recipes


def describe_recipes(recipes: Sequence[ShippedRecipe]) -> str:
    """Return a table of name, languages, base and settings of recipes."""
    rows = [
        [recipe.name, ", ".join(recipe.languages), recipe.base_model, recipe.settings]
        for recipe in recipes
    ]
    return text_table(("recipe", "languages", "base", "settings"), rows, sides="llll")


def settings(document: Mapping[str, Any]) -> str:
    """Return what a recipe sets, in a few words: `b=5 u=2`, or other parameters by name."""
    method, given = str(document["merge_method"]), document.get("parameters") or {}
    counts = " ".join(
        f"{short}={given[name]}" for name, short in LETTERS.items() if given.get(name)
    )
    others = [f"{name}: {value}" for name, value in given.items() if name not in LETTERS]
    parts = [f"`{method}`" if method != "layer_swap" else "", counts, *others]
    return ", ".join(filter(None, parts))


def copy_recipe(name: str, out: Path) -> Path:
    """Copy a shipped recipe; return the new file.

    `name` is as `find_recipe` takes it, `out` a file ending in ``.yml``, or else a folder.

    Raises:
        InputError: for an unknown recipe, or where the file exists already.
        LayerSwapError: where it cannot be written.
    """
    source = find_recipe(name)
    target = out if out.suffix in (".yml", ".yaml") else out / source.name
    if target.exists():
        raise InputError(f"{target}: exists already; name another file")
    check_place(target)
    with write_errors(target):
        write_text(target, source.read_text(encoding="utf-8"))
    return target
