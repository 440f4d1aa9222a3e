"""`layerswap pocket`: the commands of the pocket testbed."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from ablations.cli.log import show_log
from ablations.cli.options import backend_option, folder_option, preset_option


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
    help="Pairs of experts to train.  [default: by preset]",
)
@click.option("--force", is_flag=True, help="Make everything again.")
@click.option(
    "--retrain-base",
    is_flag=True,
    help="Also train the base that ships with the package.",
)
def build(
    out: Path,
    preset: str,
    seed: int,
    expert_seeds: int | None,
    force: bool,
    retrain_base: bool,
) -> None:
    """Train the pocket experts and write their tasks.

    They are a base, a math expert and a language expert, with their lm-eval tasks. The base of
    seed 0 ships with the package; bases of other seeds are trained.
    """
    from ablations.pocket.build import build_pocket
    from ablations.pocket.config import PocketConfig

    show_log()
    changes = {} if expert_seeds is None else {"expert_seeds": tuple(range(expert_seeds))}
    config = PocketConfig.preset(preset, seed=seed, **changes)  # type: ignore[arg-type]
    paths = build_pocket(out, config, force=force, retrain=retrain_base)
    click.echo(f"models: {paths.base}, {paths.task}, {paths.language}\ntasks: {paths.tasks_dir}")


@pocket.command()
@folder_option("--out", "Folder for the testbeds and runs of all bases.", "runs/claim")
@preset_option
@click.option(
    "--bases", type=click.IntRange(min=1), default=5, show_default=True, help="Number of bases."
)
@click.option(
    "--pairs",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Pairs of experts for each base.",
)
@click.option(
    "--limit", type=click.IntRange(min=1), default=500, show_default=True, help="Items per task."
)
@backend_option
def claim(
    out: Path,
    preset: Literal["quickstart", "full", "tiny"],
    bases: int,
    pairs: int,
    limit: int,
    backend: Literal["auto", "hf", "vllm"],
) -> None:
    """Test whether a swap beats both experts and the soup.

    Several bases are trained, with several pairs of experts each. That takes hours the first time;
    a stopped run continues with the same command. A base takes part if it solves English math,
    translates, and finds the translations of words in its hidden states. Its score in
    target-language math does not count.
    """
    show_log()
    from ablations.evaluate.claim import RESULT, run_claim

    found = run_claim(out, bases=bases, pairs=pairs, limit=limit, preset=preset, backend=backend)
    click.echo(f"{found.report()}\n\n{out / RESULT}")
