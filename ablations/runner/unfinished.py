"""What a run folder holds of records that are not whole: RUN/records/.KEY.*.partial."""

from __future__ import annotations

import shutil
from pathlib import Path


def partial_paths(out: Path) -> dict[str, list[Path]]:
    """Return key -> what is half written of that record, by a writer that was killed, or is not."""
    found: dict[str, list[Path]] = {}
    for pattern in ("records/.*.partial", "failures/.*.json.*"):
        for left in out.glob(pattern):
            found.setdefault(left.name.split(".")[1], []).append(left)
    return found


def remove_record(out: Path, key: str) -> None:
    """Remove a record, in one step; does nothing where there is none."""
    folder = out / "records" / key
    if folder.is_dir():
        gone = folder.with_name(f".{key}.removed.partial")
        folder.replace(gone)
        shutil.rmtree(gone)
