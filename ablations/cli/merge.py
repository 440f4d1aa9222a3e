"""`layerswap merge`: its options, and the way on to mergekit. Merges nothing itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

from ablations.cli.log import say, watched
from ablations.cli.options import Size, byte_progress


@click.command()
@click.argument("recipe", type=click.Path(path_type=Path))
@click.argument("out")
@click.argument("mergekit_options", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--shard-size",
    type=Size(),
    default="5G",
    show_default=True,
    help="Size of the largest weight file.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    default=min(4, os.cpu_count() or 1),
    show_default="processors, at most 4",
    help="Number of tensors that are written at once.",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="Where averages are computed.",
)
@click.option("--verify", is_flag=True, help="Read the output again and compare every tensor.")
@click.option(
    "--resume",
    is_flag=True,
    help="Reuse the finished files of an interrupted merge, and keep them if this one stops.",
)
def merge(
    recipe: Path, out: str, mergekit_options: tuple[str, ...], shard_size: int, **options: Any
) -> None:
    """Merge RECIPE into the folder OUT, in little memory.

    The tensors are the same as those of mergekit-yaml, bit for bit. Recipes that need mergekit
    (tokenizer:, other methods, architectures without a fixed list of tensors) are passed on to it.
    Options after -- are passed to mergekit.
    """
    from ablations.models.find import find_model
    from layerswap_method.merge import WriteOptions, read_merge, write_merge

    with watched("reading the recipe and the models"):
        given = read_merge(recipe, find_model)
    if isinstance(given, str):
        _pass_on(recipe, out, given, shard_size, mergekit_options, options)
        return
    if mergekit_options:
        raise click.UsageError(
            f"{' '.join(mergekit_options)}: mergekit is not needed for this recipe; remove what is "
            "after --, or merge with mergekit-yaml"
        )
    with watched("planning the merge"):
        for line in write_merge(
            given, out, WriteOptions(shard_bytes=shard_size, **options), byte_progress
        ):
            say(line)


def _pass_on(
    recipe: Path,
    out: str,
    reason: str,
    shard_size: int,
    more: tuple[str, ...],
    options: dict[str, Any],
) -> None:
    from ablations.machine.mergekit_program import mergekit_yaml

    for name in ("verify", "resume"):
        if options[name]:
            raise click.UsageError(
                f"--{name} cannot be used: mergekit must merge this recipe ({reason})"
            )
    click.echo(f"{recipe} is passed on to mergekit-yaml: {reason}")
    if options["device"] != "cpu":
        more = ("--cuda", *more)
    command = [*mergekit_yaml(), str(recipe), out, "--out-shard-size", str(shard_size), *more]
    sys.exit(subprocess.run(command, check=False).returncode)
