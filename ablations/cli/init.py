"""`layerswap init`: which file to start from. Writes nothing itself."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("kind", type=click.Choice(["study", "recipe", "experts"]))
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def init(kind: str, file: Path | None, force: bool) -> None:
    """Write a commented file to start from.

    It is a study, a mergekit recipe or an experts file. FILE is study.yml, recipe.yml or
    experts.yml unless you name another. It works as it is on the experts of layerswap pocket
    build; its comments say what to change for your own experts.
    """
    from ablations.study.starts import write_start

    click.echo(write_start(kind, file or Path(f"{kind}.yml"), force=force))
