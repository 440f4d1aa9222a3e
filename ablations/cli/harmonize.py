"""`layerswap harmonize`: options and what is told. Computes and writes nothing itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ablations.cli.log import say, watched
from ablations.cli.options import Size, byte_progress


def _layers(_: click.Context, __: click.Parameter, value: str) -> tuple[int, ...] | None:
    """Return the layers that `value` names; None for `even`."""
    from layerswap_method.layer_lists import parse_layers

    if value == "even":
        return None
    try:
        return parse_layers(value, name="--align-depth")
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command(short_help="Write different models in one architecture, functions kept.")
@click.argument("models", nargs=-1, required=True, metavar="A B [MODEL]...")
@click.option("--out", required=True, metavar="DIR", help="Each model gets a folder in it.")
@click.option(
    "--align-depth",
    callback=_layers,
    default="even",
    show_default=True,
    metavar="even|LAYERS",
    help='Layers of the deeper model that get no partner, such as "8,16,24-25"; even spreads '
    "them, the first and the last layer at the ends.",
)
@click.option(
    "--untie",
    is_flag=True,
    help="Give every model an output embedding of its own, as --align does: models of both kinds "
    "then fit into one study.",
)
@click.option(
    "--align",
    type=click.Choice(["procrustes"]),
    help="Also put B, ... into the coordinates of A: norm weights are folded into the matrices "
    "behind them, the residual stream is rotated by the embeddings of shared tokens, and heads and "
    "neurons of each layer are put in the order of those of A that they are most like. Prints how "
    "similar the models are after each step.",
)
@click.option(
    "--neurons",
    type=click.Choice(["activations", "weights", "none"]),
    help="With --align: pair neurons by what they give on the same tokens, or by their weights; "
    "none leaves neurons and heads in their order.  [default: activations]",
)
@click.option(
    "--probe",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="With --align: the text that both models read for hidden states and activations. "
    "[default: random shared tokens]",
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    help="Of the new weights.  [default: that of each tensor]",
)
@click.option(
    "--force",
    is_flag=True,
    help="Give every model the RoPE base and scaling of A. This changes what the others compute.",
)
@click.option(
    "--shard-size",
    type=Size(),
    default="5G",
    show_default=True,
    help="Size of the largest weight file.",
)
def harmonize(models: tuple[str, ...], out: str, shard_size: int, **options: Any) -> None:
    """Write the models A, B, ... in one common architecture. Each computes what it did before.

    Models are folders or hub ids of Llamas and Mistrals. Key-value heads are repeated, MLPs and
    depth padded with what adds nothing, the residual stream copied or padded. Vocabularies stay:
    the recipe of the merge aligns them (tokenizer: {source: union}).

    Without --align one tensor is in memory at a time; with it, the embeddings and one
    layer of two models.
    """
    from ablations.models.find import find_model
    from layerswap_method.harmonize.run import HarmonizeOptions
    from layerswap_method.harmonize.run import harmonize as write

    given = HarmonizeOptions(shard_bytes=shard_size, **options)
    with watched("reading the models"):
        for line in write([find_model(model) for model in models], out, given, byte_progress):
            say(line)
