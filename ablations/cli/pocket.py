"""`layerswap pocket`: the commands of the pocket testbed. Knows options; builds nothing itself."""

from __future__ import annotations

from pathlib import Path

import click

from ablations.cli.log import show_log


@click.group()
def pocket() -> None:
    """Tiny experts, trained on the spot, to try everything on."""


@pocket.command()
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("runs/pocket"),
    show_default=True,
    help="Folder of the testbed.",
)
@click.option(
    "--preset",
    type=click.Choice(["quickstart", "full", "tiny"]),
    default="quickstart",
    show_default=True,
    help="Minutes, a quarter of an hour, or seconds (for tests: its scores mean nothing).",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Base seed.")
@click.option(
    "--expert-seeds", type=click.IntRange(min=1), help="Number of expert pairs  [default: preset's]"
)
@click.option("--force", is_flag=True, help="Train everything anew.")
def build(out: Path, preset: str, seed: int, expert_seeds: int | None, force: bool) -> None:
    """Train a base, a math expert and a language expert, and write their lm-eval tasks."""
    from ablations.pocket.build import build_pocket
    from ablations.pocket.config import PocketConfig

    show_log()
    changes = {} if expert_seeds is None else {"expert_seeds": tuple(range(expert_seeds))}
    config = PocketConfig.preset(preset, seed=seed, **changes)  # type: ignore[arg-type]
    paths = build_pocket(out, config, force=force)
    click.echo(f"models: {paths.base}, {paths.task}, {paths.language}\ntasks: {paths.tasks_dir}")
