"""Recipe files as text and YAML: where they are, their header, the models they name."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
RECIPES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in ROOT.glob("recipes/**/*.yml")
    if "experts" not in path.parts
)
"""Every recipe of a merge, as a path from the repository's root."""

FIELDS = ["What", "Run", "Needs", "Languages", "Source", "Expected", "To change"]


@dataclass(frozen=True)
class Reference:
    """A model as a recipe names it."""

    model: str
    adapter: str | None

    @classmethod
    def parse(cls, text: str) -> Reference:
        model, _, adapter = text.partition("+")
        return cls(model, adapter or None)

    def parts(self) -> list[str]:
        return [self.model] + ([self.adapter] if self.adapter is not None else [])


def is_hub_id(path: str) -> bool:
    """Return whether a recipe's path is ``OWNER/NAME``: no folder, one slash."""
    return not path.startswith((".", "/")) and path.count("/") == 1


def load(recipe: str) -> dict[str, Any]:
    document = yaml.safe_load((ROOT / recipe).read_text(encoding="utf-8"))
    assert isinstance(document, dict)
    return document


def references(recipe: str) -> list[Reference]:
    """Return every model that the recipe names, the base last."""
    document = load(recipe)
    names = [entry["model"] for entry in document["models"]] + [document["base_model"]]
    return [Reference.parse(name) for name in names]


def header(recipe: str) -> list[tuple[str, str]]:
    """Return the fields of the opening comment in order; lines are joined by newlines."""
    fields: list[tuple[str, str]] = []
    for line in (ROOT / recipe).read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        if line.startswith("# yaml-language-server: "):
            continue
        name, colon, text = line[2:].partition(":")
        if colon and name in FIELDS:
            fields.append((name, text.strip()))
        elif fields:
            fields[-1] = (fields[-1][0], f"{fields[-1][1]}\n{line[1:].strip()}")
    return fields


def command(recipe: str) -> list[str]:
    """Return the words of the recipe's ``# Run:`` line; a trailing backslash continues it."""
    return shlex.split(dict(header(recipe))["Run"].replace("\\\n", " "))


def first_commands(recipe: str) -> list[list[str]]:
    """Return the words of each `layerswap` command that a header's Needs asks to run first."""
    quoted = re.findall(r"`(layerswap (?:compat|harmonize) [^`]+)`", dict(header(recipe))["Needs"])
    return [shlex.split(each) for each in quoted]
