"""The two tables that a run leaves next to its records; a hash says that they belong together.

RUN/records.jsonl        the first line of every record, then the hash of the observations
RUN/observations.parquet the value of every item
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ablations.machine.untrusted import check_rows, open_regular, read_regular_lines
from ablations.machine.whole_files import write_bytes, write_text
from ablations.runs.records import (
    OBSERVATIONS_FILE,
    RECORDS_FILE,
    TaskRecord,
    check_written_names,
    damaged,
    parse_record,
    record_line,
)
from layerswap_method.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

_OBSERVED_LINE = '{"observations":'
"""Begins the last line of `RECORDS_FILE`: the hash of the observations that belong to it."""


class WrittenTables(NamedTuple):
    """The tables of a run folder, of which the observations are read when they are needed."""

    path: Path
    """The run folder."""

    records: Mapping[str, TaskRecord]
    """Key -> record, without items."""

    sha256: str
    """Hash of the observations."""

    def has_items_of(self, records: Iterable[TaskRecord]) -> bool:
        """Return whether the observations are of these records as their files are now."""
        return all(
            record.items_sha256
            and record.key in self.records
            and self.records[record.key].items_sha256 == record.items_sha256
            for record in records
        )

    def items(self) -> pd.DataFrame:
        """Return the items of all records: the columns of `items_of`, and ``weights``.

        Raises:
            LayerSwapError: for observations that are damaged or not those of the records.
        """
        import pandas as pd

        from ablations.runs.observations import ITEM

        file = self.path / OBSERVATIONS_FILE
        columns = ["weights", *ITEM]
        try:
            with open_regular(file) as opened:
                if self.sha256 != hashlib.file_digest(opened, "sha256").hexdigest():
                    raise ValueError(f"it is not of the same moment as {RECORDS_FILE}")
                opened.seek(0)
                check_rows(opened)
                opened.seek(0)
                frame = pd.read_parquet(opened, columns=columns)
        except (OSError, ValueError) as error:
            raise damaged(file, error) from error
        for column in ("weights", "task", "metric", "filter"):
            check_written_names(file, map(str, frame[column].unique()))
        # Models of the same weights have the same items.
        return frame.drop_duplicates()


def read_tables(path: Path) -> WrittenTables:
    """Return the tables of the run folder `path`.

    Raises:
        InputError: where there are none.
        LayerSwapError: for records that are damaged.
    """
    file, records, sha256 = path / RECORDS_FILE, dict[str, TaskRecord](), ""
    try:
        for number, line in read_regular_lines(file):
            if line.startswith(_OBSERVED_LINE):
                sha256 = str(json.loads(line)["observations"])
                continue
            record = parse_record(line, f"{file}:{number}")
            records[record.key] = record
    except FileNotFoundError as error:
        raise InputError(f"{path}: has no {file.name}, which a copy of a run needs") from error
    except (OSError, ValueError) as error:
        raise damaged(file, error) from error
    return WrittenTables(path, records, sha256)


def write_tables(path: Path, records: Iterable[TaskRecord], observations: pd.DataFrame) -> None:
    """Write the tables of a run."""
    buffer = io.BytesIO()
    observations.to_parquet(buffer, index=False)
    content = buffer.getvalue()
    lines = [record_line(record) for record in records]
    lines.append(f'{_OBSERVED_LINE}"{hashlib.sha256(content).hexdigest()}"}}')
    write_text(path / RECORDS_FILE, "".join(f"{line}\n" for line in lines))
    write_bytes(path / OBSERVATIONS_FILE, content)
