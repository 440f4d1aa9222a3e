"""`python -m ablations.runs.convert RUN...`: bring run folders of schema version 5 to this one.

Version 5 kept the first lines of a copy's records in the schema of its observations, and derived
models and names whenever a report was made. Nothing else of a folder changes.
"""

from __future__ import annotations

import base64
import io
import json
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path

from ablations.machine.whole_files import MOST_BYTES, read_regular, write_bytes, write_text
from ablations.runs.records import (
    EARLIER_VERSION,
    OBSERVATIONS_FILE,
    RECORDS_FILE,
    RUN_FILE,
    SCHEMA_VERSION,
    RunFile,
    write_run_file,
)
from ablations.study.cells import Cell
from ablations.study.schema import Study
from layerswap_method.errors import InputError, LayerSwapError, first_line

_PACKED = b"layerswap_records"
"""Key of the packed lines in the schema of the observations."""


def convert(folder: Path) -> None:
    """Convert one run folder in place; one of this version stays as it is.

    Raises:
        InputError: where it is no run folder of either version.
    """
    import pyarrow.parquet

    file, observations = folder / RUN_FILE, folder / OBSERVATIONS_FILE
    try:
        document = json.loads(read_regular(file))
        version = document.pop("schema_version")
        if version == SCHEMA_VERSION:
            return
        if version != EARLIER_VERSION:
            raise InputError(f"{file}: is of schema version {version}, not {EARLIER_VERSION}")
        study = Study.model_validate_json(json.dumps(document.pop("study")))
        cells = [Cell.model_validate_json(json.dumps(cell)) for cell in document.pop("cells")]
        head = RunFile.of_cells(study, cells, document.pop("num_layers"), **document)
        if not (folder / "records").is_dir() and observations.is_file():
            packed = pyarrow.parquet.read_schema(observations).metadata[_PACKED]
            unpacking = zlib.decompressobj()
            text = unpacking.decompress(base64.b64decode(packed), MOST_BYTES)
            if unpacking.unconsumed_tail:
                raise ValueError(f"its records have over {MOST_BYTES:,} bytes")
            write_text(folder / RECORDS_FILE, text.decode("utf-8").rstrip("\n") + "\n")
            table = pyarrow.parquet.read_table(observations)
            metadata = dict(table.schema.metadata)
            del metadata[_PACKED]
            content = io.BytesIO()
            pyarrow.parquet.write_table(table.replace_schema_metadata(metadata), content)
            write_bytes(observations, content.getvalue())
    except (OSError, ValueError, KeyError, TypeError, zlib.error) as error:
        raise InputError(f"{file}: cannot be converted: {first_line(error)}") from error
    write_run_file(folder, head)


def main(folders: Sequence[str]) -> int:
    """Convert every folder that is named; return the exit code."""
    if not folders:
        print("name the run folders: python -m ablations.runs.convert RUN...", file=sys.stderr)  # noqa: T201
        return 2
    for folder in map(Path, folders):
        try:
            convert(folder)
        except LayerSwapError as error:
            print(f"Error: {error.message}", file=sys.stderr)  # noqa: T201
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
