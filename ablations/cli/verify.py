"""`layerswap verify`: options and output."""

from __future__ import annotations

import json
import sys

import click

from ablations.cli.log import say, watched
from ablations.cli.options import byte_progress, list_format_option


@click.command(short_help="Compare two checkpoints tensor by tensor.")
@click.argument("merged")
@click.argument("published")
@list_format_option
def verify(merged: str, published: str, form: str) -> None:
    """Compare the checkpoint MERGED with the checkpoint PUBLISHED, tensor by tensor.

    Each is a folder or a hub id. Says whether every tensor is equal bit for bit, or which layers
    differ and by how much. Neither model is loaded: a few million values are in memory at a time.
    Exit code 1: they differ.
    """
    from ablations.models.find import find_checkpoint
    from layerswap_method.compare import as_json, compare, describe, weight_bytes

    with watched("reading the headers"):
        ours, theirs = (find_checkpoint(name) for name in (merged, published))
        with byte_progress("comparing", weight_bytes(ours)) as advance:
            found = compare(ours, theirs, advance)
    if form == "json":
        click.echo(json.dumps(as_json(found), indent=2))
    else:
        say("\n".join(describe(found, merged, published)))
    sys.exit(0 if found.is_equal else 1)
