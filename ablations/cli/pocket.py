"""`layerswap pocket`: the commands of the pocket testbed."""

from __future__ import annotations

from pathlib import Path

import click

from ablations.cli.log import show_log
from ablations.cli.options import folder_option, preset_option


@click.group()
def pocket() -> None:
    """Train tiny experts on which everything can be tried."""


@pocket.command()
@folder_option("--out", "Folder for the pocket experts and their tasks.", "runs/pocket")
@preset_option
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Base seed.")
@click.option(
    "--expert-seeds",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Pairs of experts to train.",
)
def build(out: Path, preset: str, seed: int, expert_seeds: int) -> None:
    """Train the pocket experts and write their tasks.

    They are a base, a math expert and a language expert, with their lm-eval tasks. The base of
    seed 0 ships with the package; bases of other seeds are trained.
    """
    from ablations.pocket.build import PocketConfig, build_pocket

    show_log()
    seeds = tuple(range(expert_seeds))
    config = PocketConfig.preset(preset, seed=seed, expert_seeds=seeds)  # type: ignore[arg-type]
    paths = build_pocket(out, config)
    click.echo(f"models: {paths.base}, {paths.task}, {paths.language}\ntasks: {paths.tasks_dir}")
