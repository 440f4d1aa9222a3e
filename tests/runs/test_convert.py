"""Run folders of schema version 5 are converted, whole or copies, and hold what they held."""

import base64
import json
import shutil
import subprocess
import sys
import zlib

import pyarrow.parquet
import pytest

from ablations.machine.whole_files import MOST_BYTES
from ablations.report.write import make_report, render_markdown
from ablations.runs import records
from ablations.runs.convert import convert
from ablations.runs.results import write_results
from layerswap_method.errors import InputError
from tests.report.runs import level, study_of, write_run


@pytest.fixture
def run(tmp_path):
    study = study_of(baseline=["base", "soup"], vary={"bottom_layers": [0, 1]})
    run = write_run(tmp_path / "run", study, level, items=20)
    write_results(run)
    return run


def as_version_5(folder, heads):
    """Write a folder as version 5 did: nothing derived, records packed in the parquet file."""
    document = json.loads((folder / "run.json").read_text())
    del document["models"], document["names"]
    (folder / "run.json").write_text(json.dumps({**document, "schema_version": 5}))
    file = folder / "observations.parquet"
    packed = {b"layerswap_records": base64.b64encode(zlib.compress(heads, 9))}
    table = pyarrow.parquet.read_table(file).replace_schema_metadata(packed)
    pyarrow.parquet.write_table(table, file)
    (folder / "records.jsonl").unlink()


def report_of(folder):
    return render_markdown(make_report(records.load_run(folder), draw=False))


@pytest.mark.parametrize("is_copy", [False, True])
def test_a_converted_run_gives_the_report_that_it_gave(run, is_copy):
    before, heads = report_of(run.path), (run.path / "records.jsonl").read_bytes()
    as_version_5(run.path, heads.rstrip(b"\n"))
    if is_copy:
        shutil.rmtree(run.path / "records")
    with pytest.raises(InputError, match=r"written by an earlier layerswap \(schema version 5\)"):
        records.load_run(run.path)
    done = subprocess.run([sys.executable, "-m", "ablations.runs.convert", run.path], check=False)
    assert done.returncode == 0
    converted = records.load_run(run.path)
    assert converted.is_copy == is_copy
    assert converted.head == run.head
    assert report_of(run.path) == before
    if is_copy:
        assert (run.path / "records.jsonl").read_bytes() == heads
    convert(run.path)  # a second time changes nothing
    assert records.load_run(run.path).head == run.head


def test_a_copy_that_unpacks_to_gigabytes_is_refused_and_left_as_it_is(run):
    as_version_5(run.path, b"\0" * (MOST_BYTES + 1))
    shutil.rmtree(run.path / "records")
    before = {path.name: path.read_bytes() for path in run.path.iterdir()}
    with pytest.raises(InputError, match="cannot be converted: its records have over 128,000,000"):
        convert(run.path)
    assert {path.name: path.read_bytes() for path in run.path.iterdir()} == before


def test_what_is_no_run_of_version_5_is_named(run, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "ablations.runs.convert", tmp_path / "nowhere"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "nowhere/run.json: cannot be converted" in done.stderr
    document = json.loads((run.path / "run.json").read_text())
    (run.path / "run.json").write_text(json.dumps({**document, "schema_version": 4}))
    with pytest.raises(InputError, match="is of schema version 4, not 5"):
        convert(run.path)
