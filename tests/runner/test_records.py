"""Reading a run folder back."""

import csv
from pathlib import Path

import pytest

from ablations.runner import records
from ablations.runner.jobs import run_cells
from ablations.runner.results import write_results
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
        experts={"math": "/m"},
        cells=tuple(cells),
        num_layers=8,
        protocol="",
        created="2026-01-01T00:00:00+00:00",
        versions={"layerswap": "0"},
    )
    records.write_run_file(out, head)


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    cells = make_cells(3)
    write_run(tmp_path, cells)
    evaluator = FakeEvaluator(raising=("bottom_layers=1",))
    run_cells(tmp_path, list(reversed(cells)), evaluator, progress=False)
    return tmp_path


def test_a_run_reads_back_in_the_order_of_the_study(run_folder: Path) -> None:
    run = records.load_run(run_folder)
    assert run.study == STUDY
    assert [cell.label for cell in run.cells] == ["bottom_layers=0", "bottom_layers=2"]
    assert [failure.label for failure in run.failures] == ["bottom_layers=1"]
    assert [cell.label for cell in run.unfinished] == ["bottom_layers=1"]


def test_records_of_another_protocol_stay_out(run_folder: Path) -> None:
    write_run(run_folder, make_cells(1))
    assert [cell.label for cell in records.load_run(run_folder).cells] == ["bottom_layers=0"]


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no run\.json in it"):
        records.load_run(tmp_path)


@pytest.mark.parametrize("text", ["[" * 100_000, "{", "[1]", "null"])
def test_a_run_file_that_cannot_be_read_is_one_message(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(LayerSwapError, match=r"run\.json is damaged"):
        records.load_run(tmp_path)


def test_the_table_has_every_cell_and_what_was_asked_before(run_folder: Path) -> None:
    cells = make_cells(3, tasks=("fake_math", "more"))
    run_cells(run_folder, cells[:1], FakeEvaluator(), progress=False)
    write_run(run_folder, make_cells(3))
    write_results(run_folder)
    with (run_folder / "scores.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["cell"], row["task"]) for row in rows] == [
        ("bottom_layers=0", "fake_math"),
        ("bottom_layers=0", "more"),
        ("bottom_layers=2", "fake_math"),
    ]
    for row in rows:
        head, *_ = (run_folder / row["record"]).read_text().splitlines()
        assert f'"value":{row["value"]}' in head
        assert float(row["low"]) < float(row["value"]) < float(row["high"])


def test_a_damaged_line_is_found_by_its_number(run_folder: Path) -> None:
    file = run_folder / "records" / "s000.jsonl"
    lines = file.read_text().split("\n")
    lines[2] = lines[2][:-5]
    file.write_text("\n".join(lines))
    cell = records.load_run(run_folder).cells[0]
    with pytest.raises(LayerSwapError, match=r"s000\.jsonl:3 is damaged"):
        list(cell.samples())


def test_a_record_that_lost_items_is_not_used(run_folder: Path) -> None:
    file = run_folder / "records" / "s000.jsonl"
    lines = file.read_text().split("\n")[:-1]
    file.write_text("\n".join(lines[:3]))
    cell = records.load_run(run_folder).cells[0]
    told = rf"s000\.jsonl is damaged \(2 of {len(lines) - 1} items are there\); remove it"
    with pytest.raises(LayerSwapError, match=told):
        list(cell.samples())
    file.unlink()
    with pytest.raises(LayerSwapError, match=r"s000\.jsonl is damaged \(.*No such file"):
        list(cell.samples())
    assert not records.is_finished(run_folder, "s000")
