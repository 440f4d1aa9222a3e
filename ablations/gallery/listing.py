"""The shipped recipes as a list, as text and as copies. Works without a clone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ablations.drawing.text_table import text_table
from ablations.gallery.find import find_recipe, shipped_recipes
from ablations.gallery.header import SCHEMA_LINE, measured, read_header
from ablations.gallery.schema import FILE, schema_text
from ablations.machine.whole_files import check_place, told_if_unwritable, write_text
from layerswap_method.errors import InputError
from layerswap_method.recipe.strict_yaml import parse_yaml

_SHORT = {
    "bottom_layers": "b",
    "top_layers": "u",
    "bottom_transition": "t_b",
    "top_transition": "t_u",
}


def list_recipes(language: str | None = None) -> list[dict[str, str]]:
    """Return name, languages, base, settings, what and measured of every shipped recipe.

    Args:
        language: code of a language that a recipe must be for; None for any.

    Raises:
        InputError: for a language that no recipe has.
    """
    rows = []
    for name, path in shipped_recipes().items():
        text = path.read_text(encoding="utf-8")
        header, document = read_header(text), parse_yaml(text, name)
        rows.append(
            {
                "recipe": name.removesuffix(".yml"),
                "languages": header.get("Languages", ""),
                "base": str(document.get("base_model", "")),
                "settings": settings(document).replace("`", ""),
                "what": header.get("What", ""),
                "measured": measured(header),
            }
        )
    known = sorted({code for row in rows for code in row["languages"].split(", ") if code})
    if language is not None and language not in known:
        raise InputError(f"no recipe for {language!r}; there are recipes for {', '.join(known)}")
    return [row for row in rows if language is None or language in row["languages"].split(", ")]


def settings(document: Mapping[str, Any]) -> str:
    """Return what a recipe sets, in a few words: `b=5 u=2`, or other parameters by name."""
    method = str(document["merge_method"])
    given = document.get("parameters") or {}
    counts = [f"{short}={given[name]}" for name, short in _SHORT.items() if given.get(name)]
    others = [f"{name}: {value}" for name, value in given.items() if name not in _SHORT]
    said = ", ".join([*([" ".join(counts)] if counts else []), *others])
    if method == "layer_swap":
        return said
    return f"`{method}`" + (f", {said}" if said else "")


def as_table(rows: list[dict[str, str]]) -> str:
    """Return the list as a table of its narrow columns."""
    columns = ("recipe", "languages", "base", "settings")
    return text_table(columns, [[row[column] for column in columns] for row in rows], sides="llll")


def copy_recipe(name: str, out: Path) -> list[Path]:
    """Copy a shipped recipe and the schema that it names beside it.

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
    lines = source.read_text(encoding="utf-8").splitlines(keepends=True)
    text = "".join(
        f"{SCHEMA_LINE}{FILE}\n" if line.startswith(SCHEMA_LINE) else line for line in lines
    )
    schema = target.with_name(FILE)
    with told_if_unwritable(target):
        write_text(target, text)
        write_text(schema, schema_text())
    return [target, schema]
