"""`layerswap quickstart`: build the pocket experts, then run the shipped study `quickstart`."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Literal

import click

from ablations.cli.log import say, show_log, watched
from ablations.cli.options import backend_option, folder_option, preset_option

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
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    help="Items per task, from the first.  [default: 300]",
)
@preset_option
def quickstart(
    out: Path,
    backend: Literal["auto", "hf", "vllm"],
    limit: int | None,
    preset: Literal["quickstart", "tiny", "other_size"],
) -> None:
    """Train pocket experts (in runs/pocket), merge and evaluate them.

    Needs no GPU, no weights and no network. Finished work is reused.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # read when torch is imported
    show_log(stream=sys.stdout, with_seconds=True)
    from ablations.evaluate.table import render_run
    from ablations.pocket.build import PocketConfig, build_pocket
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
