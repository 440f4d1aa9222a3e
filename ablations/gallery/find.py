"""The shipped recipes: where they are, what their headers say, a list, and copies."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import layerswap_method
from ablations.drawing.text_table import text_table
from ablations.gallery.schema import FILE, schema_text
from ablations.machine.whole_files import check_place, told_if_unwritable, write_text
from layerswap_method.errors import InputError, nearest
from layerswap_method.recipe.strict_yaml import parse_yaml

FIELDS = ("What", "Run", "Needs", "Languages", "Source", "Expected", "To change")
"""What the opening comment of a recipe says, in this order."""

SCHEMA_LINE = "# yaml-language-server: $schema="
"""How the line begins that names the JSON schema to an editor."""

_SHORT = {
    "bottom_layers": "b",
    "top_layers": "u",
    "bottom_transition": "t_b",
    "top_transition": "t_u",
}


def find_recipe(name: str) -> Path:
    """Return the shipped recipe `name`: ``pocket/layer_swap.yml``, or that without ``.yml``.

    Looked for in ``./recipes`` (a clone, where the user may have changed it), beside the package
    (an editable install), then inside it (a wheel).

    Raises:
        InputError: when it is in none of them, or is the path of a file that is not there.
    """
    if name.startswith((".", "/", "~")):
        raise InputError(f"{name}: no such file (the current directory is {Path.cwd()})")
    name = name.removeprefix("recipes/")
    for root in _roots():
        for each in (name, f"{name}.yml"):
            if (root / each).is_file():
                return root / each
    places = ", ".join(str(root) for root in _roots())
    raise InputError(
        f"{name}: no such file, and no recipe of that name in {places}{nearest(name, _shipped())}"
    )


def is_shipped(path: Path) -> bool:
    """Return whether a file is one of the gallery's: next to the package, or inside it."""
    return any(path.resolve().is_relative_to(root.resolve()) for root in _roots()[1:])


def recipe_files(root: Path) -> list[Path]:
    """Return every recipe below `root`, without the training configurations in `experts`."""
    files = sorted(root.rglob("*.yml"))
    return [path for path in files if path.relative_to(root).parts[0] != "experts"]


def _shipped() -> dict[str, Path]:
    """Return name, such as ``pocket/soup.yml`` -> file, sorted by name."""
    found = {
        path.relative_to(root).as_posix(): path
        for root in reversed(_roots())
        for path in root.rglob("*.yml")
    }
    return dict(sorted(found.items()))


def _roots() -> tuple[Path, ...]:
    package = Path(layerswap_method.__file__).parent
    return Path("recipes"), package.parent / "recipes", package / "_recipes"


def read_header(text: str) -> dict[str, str]:
    """Return the fields of a recipe's opening comment, each as one line, in the file's order."""
    fields: dict[str, str] = {}
    name = None
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        if line.startswith(SCHEMA_LINE):
            continue
        key, colon, rest = line[2:].partition(":")
        if colon and key in FIELDS:
            name = key
            fields[name] = rest.strip()
        elif name is not None:
            fields[name] = f"{fields[name]} {line[1:].strip()}".strip()
    return fields


def languages(header: Mapping[str, str]) -> list[str]:
    """Return the language codes that a header names, such as ``["en", "sw"]``."""
    return [code.strip() for code in header.get("Languages", "").split(",") if code.strip()]


def list_recipes(language: str | None = None) -> list[dict[str, str]]:
    """Return name, languages, base, settings and what of every shipped recipe.

    Args:
        language: code of a language that a recipe must be for; None for any.

    Raises:
        InputError: for a language that no recipe has.
    """
    rows, known = [], set[str]()
    for name, path in _shipped().items():
        if name.startswith("experts/"):  # configurations of training
            continue
        text = path.read_text(encoding="utf-8")
        header, document = read_header(text), parse_yaml(text, name)
        known.update(languages(header))
        row = {
            "recipe": name.removesuffix(".yml"),
            "languages": header.get("Languages", ""),
            "base": str(document.get("base_model", "")),
            "settings": settings(document).replace("`", ""),
            "what": header.get("What", ""),
        }
        if language is None or language in languages(header):
            rows.append(row)
    if language is not None and language not in known:
        listed = ", ".join(sorted(known))
        raise InputError(f"no recipe for {language!r}; there are recipes for {listed}")
    return rows


def settings(document: Mapping[str, Any]) -> str:
    """Return what a recipe sets, in a few words: `b=5 u=2`, or other parameters by name."""
    method, given = str(document["merge_method"]), document.get("parameters") or {}
    counts = " ".join(f"{short}={given[name]}" for name, short in _SHORT.items() if given.get(name))
    others = [f"{name}: {value}" for name, value in given.items() if name not in _SHORT]
    parts = [f"`{method}`" if method != "layer_swap" else "", counts, *others]
    return ", ".join(filter(None, parts))


def as_table(rows: list[dict[str, str]]) -> str:
    """Return the list as a table of its narrow columns."""
    columns = ("recipe", "languages", "base", "settings")
    return text_table(columns, [[row[column] for column in columns] for row in rows], sides="llll")


def copy_recipe(name: str, out: Path) -> list[Path]:
    """Copy a shipped recipe, and next to it the schema that it names.

    Args:
        name: as `find_recipe` takes it.
        out: the file, ending in ``.yml``, or else a folder.

    Returns:
        What was written.

    Raises:
        InputError: for an unknown recipe, or where the file is there already.
    """
    source = find_recipe(name)
    target = out if out.suffix in (".yml", ".yaml") else out / source.name
    if target.exists():
        raise InputError(f"{target}: is there already; name another file")
    check_place(target)
    text = re.sub(
        f"^{re.escape(SCHEMA_LINE)}.*$",
        f"{SCHEMA_LINE}{FILE}",
        source.read_text(encoding="utf-8"),
        flags=re.MULTILINE,
    )
    schema = target.with_name(FILE)
    with told_if_unwritable(target):
        write_text(target, text)
        write_text(schema, schema_text())
    return [target, schema]
