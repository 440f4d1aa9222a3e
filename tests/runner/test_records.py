"""Reading a run folder back."""

import json
from pathlib import Path

import pytest

from ablations.runner import records
from ablations.runner.loop import run_cells
from ablations.runner.work import InProcessExecutor
from ablations.study.schema import Study
from layerswap_method.errors import InputError, LayerSwapError
from tests.runner.fakes import FakeEvaluator, make_cells

STUDY = Study.model_validate(
    {
        "name": "fake",
        "question": "Which?",
        "experts": {"task": ["math"], "language": {"sw": ["swahili"]}},
        "evaluate": {"tasks": ["fake_math"]},
        "vary": {"bottom_layers": [0, 1, 2]},
        "recipe": {"merge_method": "layer_swap"},
    }
)


def write_run(out: Path, cells) -> None:
    head = records.RunFile(
        study=STUDY,
        question=STUDY.question,
        experts={"math": "/m"},
        cells=tuple(records.PlannedCell(key=c.key, label=c.label) for c in cells),
        num_layers=8,
        created="2026-01-01T00:00:00+00:00",
        versions={"layerswap": "0"},
    )
    records.write_run_file(out, head)


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    cells = make_cells(3)
    write_run(tmp_path, cells)
    evaluator = FakeEvaluator(raising=("bottom_layers=1",))
    run_cells(tmp_path, list(reversed(cells)), InProcessExecutor(evaluator), progress=False)
    return tmp_path


def test_a_run_reads_back_in_the_order_of_the_study(run_folder: Path) -> None:
    run = records.load_run(run_folder)
    assert run.study == STUDY
    assert [cell.key for cell in run.cells] == ["k000", "k002"]
    assert [failure.label for failure in run.failures] == ["bottom_layers=1"]
    assert [cell.key for cell in run.unfinished] == ["k001"]


def test_records_of_another_protocol_stay_out(run_folder: Path) -> None:
    write_run(run_folder, make_cells(1))
    assert [cell.key for cell in records.load_run(run_folder).cells] == ["k000"]


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no run\.json in it"):
        records.load_run(tmp_path)


def test_an_older_run_is_refused(run_folder: Path) -> None:
    file = run_folder / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "schema_version": 0}))
    with pytest.raises(InputError, match="schema version 0, older than the 1"):
        records.load_run(run_folder)


def test_a_damaged_line_is_found_by_its_number(run_folder: Path) -> None:
    file = run_folder / "cells" / "k000" / "samples.jsonl"
    lines = file.read_text().split("\n")
    lines[2] = lines[2][:-5]
    file.write_text("\n".join(lines))
    cell = records.load_run(run_folder).cells[0]
    with pytest.raises(LayerSwapError, match=r"samples\.jsonl:3 is damaged"):
        list(cell.samples())


def test_a_record_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    def samples():
        yield from ()
        raise OSError(28, "No space left on device")

    run_cells(tmp_path, make_cells(1), InProcessExecutor(FakeEvaluator()), progress=False)
    head = records.read_cell(tmp_path, "k000")
    fields = {name: getattr(head, name) for name in records.CellHead.model_fields}
    other = records.CellHead(**{**fields, "key": "other"})
    with pytest.raises(OSError, match="No space"):
        records.write_cell(tmp_path, other, {}, (), samples())
    assert sorted(path.name for path in (tmp_path / "cells").iterdir()) == ["k000"]
