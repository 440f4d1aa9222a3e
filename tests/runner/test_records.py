"""Reading a run folder back."""

import json
from pathlib import Path

import pytest
import yaml

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
        question=STUDY.question,
        experts={"math": "/m"},
        cells=tuple(records.PlannedCell.of(c) for c in cells),
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


def test_run_files_that_said_how_programs_are_held_are_read(run_folder: Path) -> None:
    head = json.loads((run_folder / "run.json").read_text())
    head["study"]["evaluate"] |= {"allow_code_execution": True, "code_isolation": "none"}
    (run_folder / "run.json").write_text(json.dumps(head))
    assert records.load_run(run_folder).study == STUDY


def test_results_have_every_cell_and_what_was_asked_before(run_folder: Path) -> None:
    cells = make_cells(3, tasks=("fake_math", "more"))
    run_cells(run_folder, cells[:1], FakeEvaluator(), progress=False)
    write_run(run_folder, make_cells(3))
    write_results(run_folder)
    models = json.loads((run_folder / "results.json").read_text())["models"]
    assert [list(model["tasks"]) for model in models.values()] == [
        ["fake_math", "more"],
        [],
        ["fake_math"],
    ]
    first = models["bottom_layers=0"]
    assert first["layers"] == list(cells[0].plan.sources)
    assert first["tasks"]["more"]["scores"][0]["task"] == "more"
    assert (run_folder / first["tasks"]["more"]["record"] / "samples.jsonl").is_file()


def test_a_damaged_line_is_found_by_its_number(run_folder: Path) -> None:
    file = run_folder / "records" / "s000" / "samples.jsonl"
    lines = file.read_text().split("\n")
    lines[2] = lines[2][:-5]
    file.write_text("\n".join(lines))
    cell = records.load_run(run_folder).cells[0]
    with pytest.raises(LayerSwapError, match=r"samples\.jsonl:3 is damaged"):
        list(cell.samples())


def test_a_record_that_lost_items_is_not_used(run_folder: Path) -> None:
    file = run_folder / "records" / "s000" / "samples.jsonl"
    lines = file.read_text().split("\n")[:-1]
    file.write_text("\n".join(lines[:2]))
    cell = records.load_run(run_folder).cells[0]
    told = rf"samples\.jsonl is damaged \(2 of {len(lines)} lines are there\); remove its folder"
    with pytest.raises(LayerSwapError, match=told):
        list(cell.samples())
    assert records.is_finished(run_folder, "s000")
    file.unlink()
    with pytest.raises(LayerSwapError, match=r"samples\.jsonl is damaged \(.*No such file"):
        list(cell.samples())
    assert not records.is_finished(run_folder, "s000")


def test_a_record_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    run_cells(tmp_path, make_cells(1), FakeEvaluator(), progress=False)
    record = records.read_record(tmp_path, "s000")
    other = record.model_copy(update={"key": "other"})
    with pytest.raises(yaml.YAMLError):  # after the samples were written
        records.write_record(tmp_path, other, {"merge_method": object()})
    assert sorted(path.name for path in (tmp_path / "records").iterdir()) == ["s000"]
