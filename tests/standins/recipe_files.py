"""Recipe files as text and YAML: where they are, their header, the models they name."""

import shlex
from pathlib import Path

import yaml

from ablations.recipe_commands.find import read_recipe_header

ROOT = Path(__file__).parents[2]
RECIPES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in ROOT.glob("recipes/**/*.yml")
    if "experts" not in path.parts
)
"""Every recipe of a merge, as a path from the repository's root."""


def is_hub_id(path):
    """Return whether a recipe's path is ``OWNER/NAME``: no folder, one slash."""
    return not path.startswith((".", "/")) and path.count("/") == 1


def load(recipe):
    return yaml.safe_load((ROOT / recipe).read_text(encoding="utf-8"))


def references(recipe):
    """Return (model, adapter or "") of every model that the recipe names, the base last."""
    document = load(recipe)
    names = [entry["model"] for entry in document["models"]] + [document["base_model"]]
    return [(model, adapter) for model, _, adapter in (name.partition("+") for name in names)]


def header(recipe):
    return read_recipe_header((ROOT / recipe).read_text(encoding="utf-8"))


def command(recipe):
    """Return the words of the recipe's ``# Run:`` line; a backslash continues it."""
    return shlex.split(header(recipe)["Run"].replace("\\ ", " "))
