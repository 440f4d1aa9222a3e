"""`layerswap harmonize`: its options and what it prints."""

from __future__ import annotations

from typing import Any

import click

from ablations.cli.log import say, watched
from ablations.cli.options import byte_progress, dtype_option, shard_size_option


@click.command(short_help="Write different models in one architecture, functions kept.")
@click.argument("models", nargs=-1, required=True, metavar="A B [MODEL]...")
@click.option("--out", required=True, metavar="DIR", help="Each model gets a folder in it.")
@dtype_option
@click.option(
    "--force",
    is_flag=True,
    help="Give every model the RoPE base and scaling of A. This changes what the others compute.",
)
@shard_size_option
def harmonize(models: tuple[str, ...], out: str, shard_size: int, **options: Any) -> None:
    """Write the models A, B, ... in one common architecture. Each computes what it did before.

    Models are folders or hub ids of Llamas and Mistrals. Key-value heads are repeated, MLPs and
    depth padded with what adds nothing, the residual stream copied or padded. Vocabularies stay:
    the recipe of the merge aligns them (tokenizer: {source: union}).
    """
    from ablations.models.find import find_model
    from layerswap_method.harmonize.run import HarmonizeOptions
    from layerswap_method.harmonize.run import harmonize as write

    given = HarmonizeOptions(shard_bytes=shard_size, **options)
    with watched("reading the models"):
        for line in write([find_model(model) for model in models], out, given, byte_progress):
            say(line)
