"""Files to start from, which `layerswap init` writes: a study, a recipe, experts, a training."""

from __future__ import annotations

import shlex
from pathlib import Path

from ablations.machine.whole_files import check_place, write_errors, write_text
from layerswap_method.errors import InputError

COMMANDS_OF_KINDS = {
    "study": "layerswap run {} --dry-run",
    "recipe": "mergekit-yaml {} ./merged",
    "experts": "layerswap run layer_count --experts {} --dry-run",
    "train": "layerswap train {} --out runs/experts/mine",
}
"""Kind of file -> the command that uses it."""

_STARTS = Path(__file__).parent / "starts"


def write_start_file(kind: str, file: Path | None = None, *, force: bool = False) -> str:
    """Write a commented file to start from, and return what to do with it.

    Args:
        kind: one of `COMMANDS_OF_KINDS`.
        file: where it is written; None is the kind's name in the working directory.
        force: whether a file that is there is replaced.

    Raises:
        InputError: for a folder, or a file that is there.
        LayerSwapError: where it cannot be written.
    """
    path = file or Path(f"{kind}.yml")
    if path.is_dir():
        raise InputError(f"{path}: is a folder; name a file in it, such as {path / kind}.yml")
    check_place(path)
    if path.exists() and not force:
        raise InputError(f"{path}: exists; add --force to replace it, or give another name")
    text = (_STARTS / f"{kind}.yml").read_text(encoding="utf-8")
    with write_errors(path):
        write_text(path, text.replace(f"{kind}.yml", path.name))
    command = COMMANDS_OF_KINDS[kind].format(shlex.quote(str(path)))
    return f"{path} is written. Edit it, then run: {command}"
