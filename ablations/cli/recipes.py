"""`layerswap recipes`: options and output."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ablations.cli.options import list_format_option


@click.group(short_help="List, show or copy the shipped recipes.")
def recipes() -> None:
    """List, show or copy the recipes that come with the package."""


@recipes.command("list")
@click.option("--language", metavar="CODE", help="Only recipes for this language, such as sw.")
@list_format_option
def list_(language: str | None, form: str) -> None:
    """List every recipe with languages, base and settings."""
    from ablations.gallery.find import as_table, list_recipes

    found = list_recipes(language)
    if form == "json":
        click.echo(json.dumps(found, indent=2, ensure_ascii=False))
        return
    click.echo(as_table(found))


@recipes.command()
@click.argument("name")
def show(name: str) -> None:
    """Print the recipe NAME, such as swahili or pocket/soup."""
    from ablations.gallery.find import find_recipe

    click.echo(find_recipe(name).read_text(encoding="utf-8"), nl=False)


@recipes.command()
@click.argument("name")
@click.argument("out", type=click.Path(path_type=Path), default=".")
def copy(name: str, out: Path) -> None:
    """Copy the recipe NAME to OUT, a folder or a file ending in .yml.

    The JSON schema, with which editors check it, comes beside it.
    """
    from ablations.gallery.find import copy_recipe

    for path in copy_recipe(name, out):
        click.echo(path)
