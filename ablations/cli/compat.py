"""`layerswap compat`: options and output."""

from __future__ import annotations

import json

import click

from ablations.cli.log import say, watched


@click.command(short_help="Show what differs between models, and what can be done.")
@click.argument("models", nargs=-1, required=True, metavar="A B [MODEL]...")
@click.option("--base", metavar="MODEL", help="Also check whether they descend from this model.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON in place of the table.")
def compat(models: tuple[str, ...], base: str | None, as_json: bool) -> None:
    """Show what differs between the models A, B, ... and what can be done about it.

    Models are folders or hub ids. Only configs, headers and tokenizers are read, and with --base a
    few rows of the weights.
    """
    from ablations.models.compat import compare_models

    with watched("reading configs, headers and tokenizers"):
        found = compare_models(models, base)
    say(json.dumps(found.as_json(), indent=2) if as_json else found.table())
