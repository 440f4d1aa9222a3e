"""`layerswap swap-adapters`: its options and what is told."""

from __future__ import annotations

from pathlib import Path

import click

from ablations.cli.log import say, watched


@click.command("swap-adapters", short_help="Swap the layers of LoRA adapters or of prefixes.")
@click.argument("recipe", type=click.Path(path_type=Path))
@click.option("--out", required=True, metavar="DIR", help="Folder of the new adapter.")
@click.option(
    "--rank",
    type=click.IntRange(min=1),
    help="Highest rank of the new adapter: larger changes are cut by SVD, and the error is "
    "printed.  [default: nothing is cut]",
)
def swap_adapters(recipe: Path, out: str, rank: int | None) -> None:
    """Write the adapter that is the layer swap of RECIPE, without merged weights.

    RECIPE is a layer_swap recipe whose models are BASE+ADAPTER: LoRA adapters, or prefixes. The
    new adapter loads in peft and vLLM. For LoRA, base and adapter together are what
    layerswap merge makes of the same recipe, to rounding.
    """
    from ablations.models.find import find_model
    from layerswap_method.adapter_swap.run import swap_adapters as swap

    with watched("swapping the adapters"):
        for line in swap(recipe, find_model, out, rank):
            say(line)
