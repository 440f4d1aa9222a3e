"""`layerswap run`: options of a run."""

from __future__ import annotations

import logging
import sys
from typing import Any

import click

from ablations.cli.log import say, show_log, watched
from ablations.cli.options import (
    COUNT,
    choice_option,
    evaluation_options,
    folder_option,
    pop_isolation,
    pop_settings,
    settings_option,
)


@click.command()
@click.argument("study")
@click.option(
    "--experts",
    metavar="FILE",
    help="Experts file (name to folder, hub id or base+adapter), or a shipped one such as pocket. "
    "Default: the one the study names.",
)
@folder_option(
    "--out",
    "Run folder.  [default: runs/STUDY, with the experts file and the settings below in its name "
    "where they are not the study's own]",
)
@choice_option(
    "--executor",
    ["local", "ray"],
    "Run here, or on a running Ray cluster (pip install 'layerswap[ray]').",
)
@click.option("--address", default="auto", show_default=True, help="Address of the Ray cluster.")
@click.option(
    "--jobs",
    type=COUNT,
    help="Number of engines at once.  [default: 1; on Ray as many as fit]",
)
@click.option("--dry-run", is_flag=True, help="List cells, layers and tokens; run nothing.")
@click.option(
    "--read-tasks",
    is_flag=True,
    help="With --dry-run: also load the tasks of your own folder, which are programs, to count "
    "their tokens.",
)
@click.option(
    "--only",
    multiple=True,
    metavar="NAME=VALUE",
    help="Run only some cells, such as kind=recipe. Several values of a name are alternatives.",
)
@click.option("--materialize", is_flag=True, help="Write every merge to disk first.")
@settings_option(
    "A key of the study and its value, such as evaluate.limit=50 or 'vary={bottom_layers: "
    "[1, 2]}', in place of what the study and the experts file say. --limit, --dtype, "
    "--max-model-len and --data-dir are short for such keys."
)
@evaluation_options
def run(study: str, dry_run: bool, **options: Any) -> None:
    """Merge and evaluate all models of a study.

    STUDY is a file or a shipped study such as layer_count (docs/studies.md lists them). A cell is
    one model of the study, merged or not. Finished cells are reused, and a cell that fails does not
    stop the others.
    """
    with watched("loading the libraries"):
        from ablations.runner import run as runner

        chosen = runner.RunOptions(
            settings=pop_settings(options, "evaluate."),
            isolation=pop_isolation(options),
            show_scores=True,
            **options,
        )
        if dry_run:
            say(runner.dry_run(study, chosen))
            return
        show_log(logging.WARNING if sys.stderr.isatty() else logging.INFO)
        result = runner.run_study(study, chosen)
    say(result.report())
    with watched("computing the answer"):
        from ablations.report.write import answer_text, make_report
        from ablations.runner.records import load_run

        finished = load_run(result.out)
        answer = answer_text(make_report(finished, draw=False)) if finished.cells else ""
    if answer:
        say(f"\n{answer}")
    if result.summary.failed:
        sys.exit(1)
