"""A file of this repository written by a tool, or checked to be as the tool would write it."""

from __future__ import annotations

from pathlib import Path

from ablations.machine.whole_files import write_text
from layerswap_method.errors import LayerSwapError


def write_or_check(path: Path, text: str, tool: str, *, check: bool) -> None:
    """Write a text to a file; with `check` see that the file has it.

    Raises:
        LayerSwapError: with `check`, for a file that differs; it names `tool`, a module of `tools`.
    """
    if not check:
        write_text(path, text)
    elif not path.is_file() or path.read_text(encoding="utf-8") != text:
        raise LayerSwapError(f"{path}: differs: run python -m tools.{tool}")
