"""`layerswap suggest`: options and what is told. Computes and writes nothing itself."""

from __future__ import annotations

from pathlib import Path

import click

from ablations.cli.options import FiniteRange


@click.command()
@click.option(
    "--task", required=True, multiple=True, metavar="MODEL", help="Task expert; several: a soup."
)
@click.option(
    "--language", required=True, multiple=True, metavar="MODEL", help="Language expert; likewise."
)
@click.option("--base", required=True, metavar="MODEL", help="What they were fine-tuned from.")
@click.option(
    "--threshold",
    type=FiniteRange(min=0),
    default=0.001,
    show_default=True,
    help="Difference of shares up to which a layer is a tie, as in arXiv 2601.22620.",
)
@click.option(
    "--write",
    "recipe",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a recipe for mergekit-yaml.",
)
@click.option("--force", is_flag=True, help="Let --write replace a file.")
def suggest(
    task: tuple[str, ...],
    language: tuple[str, ...],
    base: str,
    threshold: float,
    recipe: Path | None,
    force: bool,
) -> None:
    """Propose which layers to swap, from what each expert changed.

    A MODEL is a folder, a hub id or base+adapter. Prints b, u, t_b and t_u with each layer's
    share of both experts' change and which of them wins it.
    """
    from ablations.delta.suggest import suggest as propose

    for line in propose(task, language, base, threshold=threshold, recipe=recipe, force=force):
        click.echo(line)
