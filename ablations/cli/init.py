"""`layerswap init`: write a file to start from."""

from __future__ import annotations

from pathlib import Path

import click

from layerswap_method.errors import InputError

STARTS = Path(__file__).parents[1] / "study" / "starts"

_NEXT = {
    "study": "layerswap run {} --dry-run",
    "recipe": "mergekit-yaml {} ./merged",
    "experts": "layerswap run layer_count --experts {} --dry-run",
}
"""Kind of file -> the command that uses it."""


@click.command()
@click.argument("kind", type=click.Choice(list(_NEXT)))
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def init(kind: str, file: Path | None, force: bool) -> None:
    """Write a commented file to start from.

    It is a study, a mergekit recipe or an experts file. FILE is study.yml, recipe.yml or
    experts.yml unless you name another. It works as it is on the experts of layerswap pocket
    build; its comments say what to change for your own experts.
    """
    from ablations.machine.whole_files import check_place, told_if_unwritable, write_text

    path = file or Path(f"{kind}.yml")
    if path.is_dir():
        raise InputError(f"{path}: is a folder; name a file in it, such as {path / kind}.yml")
    check_place(path)
    if path.exists() and not force:
        raise InputError(f"{path}: exists; add --force to replace it, or give another name")
    text = (STARTS / f"{kind}.yml").read_text(encoding="utf-8")
    with told_if_unwritable(path):
        write_text(path, text.replace(f"{kind}.yml", path.name))
    click.echo(f"{path} is written. Edit it, then run: {_NEXT[kind].format(path)}")
