"""The comment that opens a recipe: what it is, what it needs, where it is from. Knows text only."""

from __future__ import annotations

import re
from collections.abc import Mapping

FIELDS = ("What", "Run", "Needs", "Languages", "Source", "Expected", "To change")
"""What a header says, in this order."""

SCHEMA_LINE = "# yaml-language-server: $schema="
"""How the line begins that names the JSON schema to an editor."""


def read_header(text: str) -> dict[str, str]:
    """Return the fields of a recipe's opening comment; each as one line, in the file's order.

    Args:
        text: the recipe.
    """
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


def header_problems(text: str) -> list[str]:
    """Return which fields a header lacks or leaves empty, and whether the order is another."""
    found = read_header(text)
    if not found:
        return [f"it has no header; begin with comments that say {_listed(FIELDS)}"]
    lacking = [name for name in FIELDS if not found.get(name)]
    problems = [f"its header does not say {_listed(lacking)}"] if lacking else []
    if list(found) != [name for name in FIELDS if name in found]:
        problems.append(f"its header has another order than {_listed(FIELDS)}")
    if SCHEMA_LINE not in text:
        problems.append(f"its header names no schema for editors ({SCHEMA_LINE}FILE)")
    return problems


def languages(header: dict[str, str]) -> list[str]:
    """Return the language codes that a header names, such as ``["en", "sw"]``."""
    return [code.strip() for code in header.get("Languages", "").split(",") if code.strip()]


def _listed(names: list[str] | tuple[str, ...]) -> str:
    return ", ".join(f"{name}:" for name in names)


def measured(header: Mapping[str, str]) -> str:
    """Return what a header says of measured scores, in a few words."""
    found = re.search(r"[Mm]easured by us: ([^.;]*(?:\.\d[^.;]*)*)", header.get("Expected", ""))
    return f"measured: {found[1].strip()}" if found else "not measured by us"
