"""Commands on recipes and files to start from: `recipes`, `check`, `plan` and `init`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ablations.cli.log import say, watched
from ablations.cli.options import COUNT, FILE
from layerswap_method.errors import InputError


@click.group(short_help="List, show or copy the shipped recipes.")
def recipes() -> None:
    """List, show or copy the recipes that come with the package."""


@recipes.command("list")
@click.option("--language", metavar="CODE", help="Only recipes for this language, such as sw.")
def list_(language: str | None) -> None:
    """List every recipe with languages, base and settings."""
    from ablations.gallery.find import list_recipes

    click.echo(list_recipes(language))


@recipes.command()
@click.argument("name")
def show(name: str) -> None:
    """Print the recipe NAME, such as swahili or pocket/soup."""
    from ablations.gallery.find import find_recipe

    click.echo(find_recipe(name).read_text(encoding="utf-8"), nl=False)


@recipes.command()
@click.argument("name")
@click.argument("out", type=FILE, default=".")
def copy(name: str, out: Path) -> None:
    """Copy the recipe NAME to OUT, a folder or a file ending in .yml.

    The JSON schema, with which editors check it, is copied next to it.
    """
    from ablations.gallery.find import copy_recipe

    for path in copy_recipe(name, out):
        click.echo(path)


@click.command(short_help="Show everything that is wrong with recipes.")
@click.argument("recipes", nargs=-1, required=True, metavar="RECIPE...")
@click.option("--strict", is_flag=True, help="Warnings count as errors.")
@click.option("--offline", is_flag=True, help="Do not fetch configs from the hub.")
def check(recipes: tuple[str, ...], strict: bool, offline: bool) -> None:
    """Show everything that is wrong with recipes, before any merge.

    A RECIPE is a file, a folder of recipes, or the name of a shipped one. Looks at keys, roles,
    layer counts, the models' compatibility, dtypes and revisions. Downloads no
    weights: of a model that is not here only the config is fetched. Exit code 2: a recipe is wrong.
    """
    with watched("checking"):
        from ablations.gallery.check import as_text, check_recipe, recipes_of

        found = {path: check_recipe(path, hub=not offline) for path in recipes_of(recipes)}
    say(as_text(found))
    levels = {finding.level for findings in found.values() for finding in findings}
    sys.exit(2 if levels & ({"error", "warning"} if strict else {"error"}) else 0)


@click.command(short_help="Draw which expert supplies each layer of a recipe.")
@click.argument("recipe")
@click.option(
    "--layers",
    type=COUNT,
    metavar="N",
    help="Depth of the models; without it, read from a config, here or on the hub.",
)
def plan(recipe: str, layers: int | None) -> None:
    """Draw which expert supplies each layer of RECIPE, and everything outside the layers.

    RECIPE is a file, the name of a shipped recipe, or the folder of a finished layer_swap merge.
    Only configs are read, never weights.
    """
    from ablations.gallery.plan import describe, supply_of

    for line in describe(supply_of(recipe, layers)):
        say(line)


STARTS = Path(__file__).parents[1] / "study" / "starts"

_NEXT = {
    "study": "layerswap run {} --dry-run",
    "recipe": "mergekit-yaml {} ./merged",
    "experts": "layerswap run layer_count --experts {} --dry-run",
}
"""Kind of file -> the command that uses it."""


@click.command()
@click.argument("kind", type=click.Choice(list(_NEXT)))
@click.argument("file", required=False, type=FILE)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def init(kind: str, file: Path | None, force: bool) -> None:
    """Write a commented file to start from.

    It is a study, a mergekit recipe or an experts file. FILE is study.yml, recipe.yml or
    experts.yml unless you name another. It works as it is on the experts of layerswap pocket
    build; its comments say what to change for your own experts.
    """
    from ablations.machine.whole_files import check_place, told_if_unwritable, write_text

    path = file or Path(f"{kind}.yml")
    if path.is_dir():
        raise InputError(f"{path}: is a folder; name a file in it, such as {path / kind}.yml")
    check_place(path)
    if path.exists() and not force:
        raise InputError(f"{path}: exists; add --force to replace it, or give another name")
    text = (STARTS / f"{kind}.yml").read_text(encoding="utf-8")
    with told_if_unwritable(path):
        write_text(path, text.replace(f"{kind}.yml", path.name))
    click.echo(f"{path} is written. Edit it, then run: {_NEXT[kind].format(path)}")
