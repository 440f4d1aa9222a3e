"""`layerswap quickstart`: options and what is shown of the run. Does no step itself."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Literal

import click

from ablations.cli.log import show_log
from ablations.cli.options import backend_option, folder_option, preset_option


@click.command()
@folder_option("--out", "Folder for merges, records and results.json.", "runs/quickstart")
@folder_option(
    "--pocket",
    "Folder of the pocket experts. They are trained if they are missing.",
    "runs/pocket",
)
@backend_option
@click.option(
    "--limit", type=click.IntRange(min=1), default=300, show_default=True, help="Items per task."
)
@preset_option
def quickstart(
    out: Path,
    pocket: Path,
    backend: Literal["auto", "hf", "vllm"],
    limit: int,
    preset: Literal["quickstart", "full", "tiny", "other_size"],
) -> None:
    """Train pocket experts, merge and evaluate them.

    Needs no GPU, no weights and no network. Finished work is reused.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # read when torch is imported
    show_log(stream=sys.stdout, with_seconds=True)
    from ablations.evaluate.quickstart import run_quickstart
    from ablations.pocket.config import PocketConfig

    config = PocketConfig.preset(preset)
    result = run_quickstart(out, pocket=pocket, backend=backend, limit=limit, config=config)
    click.echo(f"\n{result.report(shutil.get_terminal_size((100, 24)).columns)}")
