"""Recipe files as text and YAML: where they are, their header, the models they name."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

import yaml

from ablations.gallery.find import read_header

ROOT = Path(__file__).parents[2]
RECIPES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in ROOT.glob("recipes/**/*.yml")
    if "experts" not in path.parts
)
"""Every recipe of a merge, as a path from the repository's root."""


class Reference(NamedTuple):
    """A model as a recipe names it."""

    model: str
    adapter: str | None

    @classmethod
    def parse(cls, text):
        model, _, adapter = text.partition("+")
        return cls(model, adapter or None)

    def parts(self):
        return [part for part in self if part is not None]


def is_hub_id(path):
    """Return whether a recipe's path is ``OWNER/NAME``: no folder, one slash."""
    return not path.startswith((".", "/")) and path.count("/") == 1


def load(recipe):
    return yaml.safe_load((ROOT / recipe).read_text(encoding="utf-8"))


def references(recipe):
    """Return every model that the recipe names, the base last."""
    document = load(recipe)
    names = [entry["model"] for entry in document["models"]] + [document["base_model"]]
    return [Reference.parse(name) for name in names]


def header(recipe):
    """Return the fields of the opening comment, each as one line."""
    return read_header((ROOT / recipe).read_text(encoding="utf-8"))


def command(recipe):
    """Return the words of the recipe's ``# Run:`` line; a backslash continues it."""
    return shlex.split(header(recipe)["Run"].replace("\\ ", " "))


def first_commands(recipe):
    """Return the words of each `layerswap` command that a header's Needs asks to run first."""
    quoted = re.findall(r"`(layerswap (?:compat|harmonize) [^`]+)`", header(recipe)["Needs"])
    return [shlex.split(each) for each in quoted]
