"""Files to start from: a study, a recipe, an experts file. Knows their text and where it goes."""

from __future__ import annotations

from pathlib import Path

from ablations.machine.whole_files import check_place, told_if_unwritable, write_text
from layerswap_method.errors import InputError

STARTS = Path(__file__).parent / "starts"

_NEXT = {
    "study": "layerswap run {} --dry-run",
    "recipe": "mergekit-yaml {} ./merged",
    "experts": "layerswap run layer_count --experts {} --dry-run",
}
"""Kind of file -> the command that uses it."""


def read_start(kind: str) -> str:
    """Return the text of a commented file of this kind: ``study``, ``recipe`` or ``experts``."""
    return (STARTS / f"{kind}.yml").read_text(encoding="utf-8")


def write_start(kind: str, path: Path, *, force: bool) -> str:
    """Write a commented file that works on the pocket experts; return what to do with it.

    Args:
        kind: ``study``, ``recipe`` or ``experts``.
        path: the file to be.
        force: whether a file that is there is replaced.

    Raises:
        InputError: where something is at `path`, or nothing can be written there.
        LayerSwapError: where writing fails.
    """
    if path.is_dir():
        raise InputError(f"{path}: is a folder; name a file in it, such as {path / kind}.yml")
    check_place(path)
    if path.exists() and not force:
        raise InputError(f"{path}: exists; add --force to replace it, or give another name")
    text = read_start(kind).replace(f"{kind}.yml", path.name)
    with told_if_unwritable(path):
        write_text(path, text)
    return f"{path} is written. Edit it, then run: {_NEXT[kind].format(path)}"
