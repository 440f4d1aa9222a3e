"""`layerswap check`: options and output. Checks nothing itself."""

from __future__ import annotations

import sys

import click

from ablations.cli.log import say, watched


@click.command(short_help="Show everything that is wrong with recipes.")
@click.argument("recipes", nargs=-1, required=True, metavar="RECIPE...")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "github"]),
    default="text",
    show_default=True,
    help="github: annotations for GitHub Actions.",
)
@click.option("--strict", is_flag=True, help="Warnings count as errors.")
@click.option("--offline", is_flag=True, help="Do not fetch configs from the hub.")
def check(recipes: tuple[str, ...], form: str, strict: bool, offline: bool) -> None:
    """Show everything that is wrong with recipes, before any merge.

    A RECIPE is a file, a folder of recipes, or the name of a shipped one. Looks at keys, roles,
    layer counts, the models' compatibility, dtypes, revisions and the header. Downloads no
    weights: of a model that is not here only the config is fetched. Exit code 2: a recipe is wrong.
    """
    with watched("checking"):
        from ablations.gallery.check import check_recipe, recipes_of
        from ablations.gallery.findings import as_github, as_json, as_text

        paths = recipes_of(recipes)
        found = [finding for path in paths for finding in check_recipe(path, hub=not offline)]
    if form == "text":
        say(as_text(found, len(paths)))
    elif text := as_json(found) if form == "json" else as_github(found):
        click.echo(text)
    wrong = ("error", "warning") if strict else ("error",)
    sys.exit(2 if any(finding.level in wrong for finding in found) else 0)
