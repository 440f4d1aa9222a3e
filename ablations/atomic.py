"""Files and folders that appear whole or not at all. Knows the file system only."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Write `text` to a temporary file beside `path`, then rename it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}.", delete=False
    ) as file:
        fresh = Path(file.name)
        try:
            file.write(text)
        except BaseException:
            fresh.unlink()
            raise
    fresh.replace(path)


@contextmanager
def replaced_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder beside `path` that takes its place when the body ends.

    When the body raises, the new folder vanishes and what was at `path` stays. A folder cannot
    be exchanged in one step everywhere, so for an instant neither may be there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    holder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent))
    try:
        fresh = holder / path.name
        fresh.mkdir()
        yield fresh
        if path.exists():
            path.replace(holder / "replaced")
        fresh.replace(path)
    finally:
        shutil.rmtree(holder, ignore_errors=True)
