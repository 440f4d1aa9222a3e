"""`layerswap check`: options and output."""

from __future__ import annotations

import sys

import click

from ablations.cli.log import say, watched
from ablations.cli.options import choice_option


@click.command(short_help="Show everything that is wrong with recipes.")
@click.argument("recipes", nargs=-1, required=True, metavar="RECIPE...")
@choice_option("--format", ["text", "json"], "How to show what is wrong.", "form")
@click.option("--strict", is_flag=True, help="Warnings count as errors.")
@click.option("--offline", is_flag=True, help="Do not fetch configs from the hub.")
def check(recipes: tuple[str, ...], form: str, strict: bool, offline: bool) -> None:
    """Show everything that is wrong with recipes, before any merge.

    A RECIPE is a file, a folder of recipes, or the name of a shipped one. Looks at keys, roles,
    layer counts, the models' compatibility, dtypes and revisions. Downloads no
    weights: of a model that is not here only the config is fetched. Exit code 2: a recipe is wrong.
    """
    with watched("checking"):
        from ablations.gallery.check import as_json, as_text, check_recipe, recipes_of

        paths = recipes_of(recipes)
        found = [finding for path in paths for finding in check_recipe(path, hub=not offline)]
    say(as_json(found) if form == "json" else as_text(found, len(paths)))
    wrong = ("error", "warning") if strict else ("error",)
    sys.exit(2 if any(finding.level in wrong for finding in found) else 0)
