"""What a run folder holds of records that are not whole: half written, or answered in part.

RUN/records/.KEY.*.partial   half written
RUN/records/.KEY.answers     what the model has generated so far; goes when the record is whole
"""

from __future__ import annotations

import shutil
from pathlib import Path


def answers_path(out: Path, key: str) -> Path:
    """Return the file of the answers that have arrived for a record of the run folder `out`."""
    return out / "records" / f".{key}.answers"


def partial_paths(out: Path) -> dict[str, list[Path]]:
    """Return key -> what is half written of that record, by a writer that was killed, or is not.

    Answers in part count only where there is a record: else the next call goes on with them.
    """
    found: dict[str, list[Path]] = {}
    for pattern in ("records/.*.partial", "records/.*.answers", "failures/.*.json.*"):
        for left in out.glob(pattern):
            key = left.name.split(".")[1]
            if left.suffix != ".answers" or (out / "records" / key).is_dir():
                found.setdefault(key, []).append(left)
    return found


def remove_record(out: Path, key: str) -> None:
    """Remove a record, in one step; does nothing where there is none."""
    folder = out / "records" / key
    if folder.is_dir():
        gone = folder.with_name(f".{key}.removed.partial")
        folder.replace(gone)
        shutil.rmtree(gone)
