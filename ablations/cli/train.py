"""`layerswap train`: options of a training run."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import click

from ablations.cli.log import show_log
from ablations.cli.options import code_options, folder_option, isolation_of, settings_option


@click.command(short_help="Train an expert from one configuration.")
@click.argument("config")
@folder_option("--out", "Folder of the run, with the expert in it.  [default: runs/CONFIG]")
@settings_option("A field of the file and its value, such as samples=1000 or lora.r=8.")
@click.option("--base", metavar="MODEL", help="Short for --set base=MODEL.")
@click.option("--seed", type=click.IntRange(min=0), help="Short for --set seed=N.")
@code_options
def train(
    config: str,
    out: Path | None,
    settings: tuple[str, ...],
    base: str | None,
    seed: int | None,
    allow_code_execution: bool,
    code_isolation: str | None,
) -> None:
    """Train the expert that CONFIG describes: a file, or a shipped one such as math_1.

    A run that was stopped continues with the same command. For several
    GPUs put this before it: accelerate launch --multi_gpu --num_processes N --no_python
    """
    from ablations.train.config import read_config
    from ablations.train.run import train_expert

    is_first = os.environ.get("RANK", "0") == "0"  # of several processes, one speaks
    show_log(logging.INFO if is_first else logging.ERROR)
    short = {"base": base, "seed": seed}
    given = [f"{name}={value}" for name, value in short.items() if value is not None]
    out = out or Path("runs") / Path(config).stem
    isolation = isolation_of(allow_code_execution, code_isolation)
    train_expert(read_config(config, (*settings, *given)), out, code_isolation=isolation)
    if is_first:
        click.echo(f"expert: {out}\nfor studies: {out / 'experts.yml'}")
