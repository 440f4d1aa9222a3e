"""The shipped recipes: places, headers, list and copies."""

from __future__ import annotations

import itertools
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import layerswap_method
from ablations.drawing.text_table import list_table
from ablations.machine.whole_files import check_place, write_errors, write_text
from ablations.tasks.catalog import as_code, language_code
from layerswap_method.errors import InputError, nearest
from layerswap_method.methods.layer_swap import LETTERS
from layerswap_method.methods.read import RecipeFile, file_of_document, read_recipe_file
from layerswap_method.recipe.kinds import place_kind
from layerswap_method.recipe.references import is_folder, is_there, working_folder

FIELDS = ("What", "Run", "Needs", "Languages", "Source", "Expected", "To change")
"""Fields of the opening comment of a recipe, in this order."""

_LINE = 84
"""Characters of a command in a line of a header."""


def find_recipe(name: str) -> Path:
    """Return the shipped recipe `name`: ``pocket/layer_swap.yml``, or that without ``.yml``.

    Looked for in ``./recipes`` (a clone, where the user may have changed it), next to the package
    (an editable install), then inside it (a wheel).

    Raises:
        InputError: when it is in none of them, or is the path of a file that does not exist.
    """
    if name.startswith((".", "/", "~")):
        raise InputError(
            f"{name}: no such file{nearest_file(name)} (the current directory is "
            f"{working_folder() or 'gone'})"
        )
    name, shipped = name.removeprefix("recipes/"), _shipped()
    for file in (name, f"{name}.yml"):
        if file in shipped:
            return shipped[file]
    hint = nearest_file(name) or nearest(name, shipped)
    raise InputError(
        f"{name}: no such file, and no shipped recipe of that name{hint}"
        f"{'' if hint else '; layerswap recipes list shows them'}"
    )


def nearest_file(name: str) -> str:
    """Return the hint of `nearest` for a YAML file of the user's that is not there."""
    path = Path(os.path.expanduser(name))  # noqa: PTH111 - as references
    if not is_folder(path.parent):
        return ""
    files = (file for file in path.parent.iterdir() if file.suffix in (".yml", ".yaml"))
    return nearest(path.name, [file.name for file in files])


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
    path = recipe_path(recipe)
    if is_folder(path):
        what = place_kind(path) or "; write the recipe's file in it"
        raise InputError(f"{path}: is a folder{what}")
    return read_recipe_file(path)


def is_gallery_file(path: Path) -> bool:
    """Return whether a file is one of the gallery's: next to the package, inside it, or in a clone.

    A clone's folder ``./recipes`` may be the user's own, so there the name must be a shipped one.
    """
    clone, *shipped = (root.resolve() for root in _roots())
    if any(path.resolve().is_relative_to(root) for root in shipped):
        return True
    if not path.resolve().is_relative_to(clone):
        return False
    return any((root / path.resolve().relative_to(clone)).is_file() for root in shipped)


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


def shipped_root() -> Path:
    """Return the folder of the gallery: next to the package, else inside it."""
    return next(root for root in _roots()[1:] if root.is_dir())


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


def with_field(text: str, name: str, lines: Sequence[str]) -> str:
    """Return a text in whose opening comment the field `name` has these lines."""
    old_lines = text.splitlines(keepends=True)
    end = next((n for n, line in enumerate(old_lines) if line[:1] != "#"), len(old_lines))
    keys = {
        number: key
        for number, line in enumerate(old_lines[:end])
        if (key := line[2:].partition(":")[0]) in FIELDS and ":" in line
    }
    start = next((number for number, key in keys.items() if key == name), None)
    if start is None:
        return text
    stop = next((number for number in keys if number > start), end)
    label = f"# {name}:"
    new_lines = [f"{label if n == 0 else '#':11} {line}\n" for n, line in enumerate(lines)]
    return "".join([*old_lines[:start], *new_lines, *old_lines[stop:]])


def command_lines(words: Sequence[str]) -> list[str]:
    """Return a command as lines of a header, each but the last continued by a backslash."""
    lines = [""]
    for word in map(shlex.quote, words):
        if lines[-1] and len(lines[-1]) + len(word) > _LINE:
            lines[-1] += " \\"
            lines.append(f" {word}")
        else:
            lines[-1] = f"{lines[-1]} {word}" if lines[-1] else word
    return lines


def command_words(header: Mapping[str, str]) -> list[str]:
    """Return the words of a header's command; [] where it has none that a shell could read."""
    try:
        return shlex.split(header.get("Run", "").replace("\\ ", " "))
    except ValueError:  # a quote without its end
        return []


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
    """Its settings, in a few words."""

    path: Path


def list_recipes(language: str | None = None) -> list[ShippedRecipe]:
    """Return the recipes by name, all or those of a language.

    Raises:
        InputError: for a language that no recipe has.
    """
    language = language and as_code(language)
    recipes, all_codes = list[ShippedRecipe](), set[str]()
    for name, path in _shipped().items():
        try:
            file = read_recipe_file(path)
        except InputError:  # files of training, and other files of the user
            continue
        codes = languages(read_recipe_header(file.text))
        all_codes.update(codes)
        if language is None or language in codes:
            recipes.append(
                ShippedRecipe(
                    name=name.removesuffix(".yml"),
                    languages=tuple(codes),
                    base_model=str(file.document.get("base_model", "")),
                    merge_method=str(file.document["merge_method"]),
                    settings=settings(file.document).replace("`", ""),
                    path=path,
                )
            )
    if not recipes:
        code = language_code(language or "")
        hint = f"; write {code}" if code in all_codes else ""
        raise InputError(
            f"no recipe for {language!r}{hint}; there are recipes for "
            f"{', '.join(sorted(all_codes))}"
        )
    return recipes


def describe_recipes(recipes: Sequence[ShippedRecipe], width: int | None = None) -> str:
    """Return a table of name, languages, base and settings of recipes; see `list_table`."""
    rows = [
        [recipe.name, ", ".join(recipe.languages), recipe.base_model, recipe.settings]
        for recipe in recipes
    ]
    return list_table(("recipe", "languages", "base", "settings"), rows, width)


def settings(document: Mapping[str, Any]) -> str:
    """Return what a recipe sets, in a few words: `b=5 u=2`, or other parameters by name."""
    method, parameters = str(document["merge_method"]), document.get("parameters") or {}
    counts = " ".join(
        f"{short}={parameters[name]}" for name, short in LETTERS.items() if parameters.get(name)
    )
    others = [f"{name}: {value}" for name, value in parameters.items() if name not in LETTERS]
    parts = [f"`{method}`" if method != "layer_swap" else "", counts, *others]
    return ", ".join(filter(None, parts))


def copy_recipe(name: str, out: Path) -> Path:
    """Copy a shipped recipe, or training file, so that it runs where it stands; return the file.

    Its header's command names the copy and an output of its own. `name` is as `find_recipe` takes
    it, `out` a file ending in ``.yml``, or else a folder.

    Raises:
        InputError: for an unknown recipe, or where the file exists already.
        LayerSwapError: where it cannot be written.
    """
    source = find_recipe(name)
    target = new_file(source.name, out)
    text = source.read_text(encoding="utf-8")
    header = read_recipe_header(text)
    with write_errors(target):
        write_text(target, _with_own_command(_with_own_files(text, source), header, target))
    return target


def new_file(name: str, out: Path) -> Path:
    """Return where the copy of a file goes: `out` if it ends in ``.yml``, else `name` in `out`.

    Raises:
        InputError: where it exists already, or cannot be.
    """
    target = out if out.suffix in (".yml", ".yaml") else out / name
    if target.exists():
        raise InputError(f"{target}: exists already; name another file")
    check_place(target)
    return target


def _with_own_command(text: str, header: Mapping[str, str], target: Path) -> str:
    """Return a file's text, whose command names `target` and a folder of its name."""
    words = command_words(header)
    if words[:1] == ["mergekit-yaml"] and len(words) > 2:
        words[1], place = str(target), 2
    elif words[:2] == ["layerswap", "train"] and "--out" in words[:-1]:
        words[2], place = str(target), words.index("--out") + 1
    else:
        return text
    old = words[place]
    words[place] = f"{old.rpartition('/')[0]}/{target.stem}"
    # Other fields name the output, too, such as the command that verifies it.
    text = re.sub(rf"{re.escape(old)}(?![\w/-])", lambda _: shlex.quote(words[place]), text)
    return with_field(text, "Run", command_lines(words))


def _with_own_files(text: str, source: Path) -> str:
    """Return a training file's text, where files next to it are named by their whole paths."""

    def whole(match: re.Match[str]) -> str:
        file = source.parent / match[2]
        return f"{match[1]}: {file.resolve()}" if file.is_file() else match[0]

    return re.sub(r"\b(extends|config): ([^\s{},]+\.yml)", whole, text)
