"""`layerswap run`: options of a run."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ablations.cli.log import say, say_answer, show_log, watched
from ablations.cli.options import (
    COUNT,
    answers_option,
    backend_option,
    choice_option,
    code_options,
    data_dir_option,
    folder_option,
    isolation_of,
    protocol_options,
    settings_option,
    track_option,
)

_KEYS = {
    "limit": "evaluate.limit",
    "batch_size": "evaluate.options.batch_size",
    "dtype": "evaluate.options.dtype",
    "max_model_len": "evaluate.options.max_model_len",
    "data_dir": "evaluate.data_dir",
}
"""Option -> the key of the study that it sets."""


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
@answers_option
@backend_option
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
    "[1, 2]}', in place of what the study and the experts file say."
)
@protocol_options(whole="what the study says, then the experts file")
@data_dir_option
@code_options
@track_option
def run(study: str, dry_run: bool, settings: tuple[str, ...], **options: Any) -> None:
    """Merge and evaluate all models of a study.

    STUDY is a file or a shipped study such as layer_count (docs/studies.md lists them). A cell is
    one model of the study, merged or not. Finished cells are reused, and a cell that fails does not
    stop the others.
    """
    with watched("loading the libraries"):
        from ablations.runner import run as runner

        short = {key: options.pop(name) for name, key in _KEYS.items()}
        options["isolation"] = isolation_of(
            options.pop("allow_code_execution"), options.pop("code_isolation")
        )
        chosen = runner.RunOptions(settings=_settings(settings, short), show_scores=True, **options)
        if not dry_run:
            show_log(logging.WARNING if sys.stderr.isatty() else logging.INFO)
        result = runner.dry_run(study, chosen) if dry_run else runner.run_study(study, chosen)
    if isinstance(result, str):
        say(result)
        return
    say(result.report())
    with watched("computing the answer"):
        from ablations.report.write import answer_text, make_report
        from ablations.runner.records import load_run

        finished = load_run(result.out)
        answer = answer_text(make_report(finished, draw=False)) if finished.cells else ""
    if answer:
        click.echo()
        say_answer(answer)
    if result.summary.failed:
        sys.exit(1)


def _settings(texts: tuple[str, ...], short: Mapping[str, Any]) -> dict[str, Any]:
    """Return key -> value of ``--set`` and of the options that stand for a key."""
    from ablations.study.files import parse_setting

    given = {
        key: str(value.absolute()) if isinstance(value, Path) else value
        for key, value in short.items()
        if value is not None and value is not False
    }
    for key, value in map(parse_setting, texts):
        if key in given:
            raise click.UsageError(f"{key} is set twice; leave one of the two out")
        given[key] = value
    return given
