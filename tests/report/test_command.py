import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from ablations.cli import main
from ablations.report.writer import MANIFEST
from ablations.runner.records import Run
from tests.report.runs import study_of, write_run


def invoke_report(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["report", *map(str, arguments)])
    assert "Traceback" not in result.output
    return result.exit_code, result.output


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Few cells of ten items: what is looked at here is the command, not what it computes."""
    folder = tmp_path_factory.mktemp("small") / "run"
    study = study_of(baseline=["base", "task_expert"])
    return write_run(folder, study, lambda _, __: 0.0, items=10)


def test_report_writes_and_names_the_files(small: Run, tmp_path: Path) -> None:
    code, output = invoke_report(small.path, "--format", "md, csv", "--out", tmp_path / "out")
    assert code == 0
    files, answer = output.split("\n\n")
    names = [Path(line).name for line in files.splitlines()]
    assert names == ["report.md", "scores.csv", "comparisons.csv"]
    assert all(Path(line).is_file() for line in files.splitlines())
    assert answer.startswith(f"{small.study.question}\nOn math, Swahili, the layer swap ")
    assert max(map(len, answer.splitlines())) <= 100


def test_the_default_is_every_format_beside_the_cells(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", study_of(), lambda _, __: 0.0, items=10)
    code, output = invoke_report(run.path)
    assert code == 0
    assert {path.name for path in (run.path / "report").iterdir()} == {
        *("report.md", "report.html", "tables.tex", "scores.csv", "comparisons.csv"),
        MANIFEST,
    }
    assert str(run.path / "report" / "report.html") in output.splitlines()


def test_warnings_are_red_on_a_terminal_only(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", study_of(), lambda _, __: -99.0, items=10)
    words = ["report", str(run.path), "--format", "md"]
    for is_terminal in (True, False):
        output = CliRunner().invoke(main, words, color=is_terminal).output
        red = [line for line in output.splitlines() if line.startswith("\x1b[31m")]
        assert bool(red) == ("\x1b" in output) == is_terminal
        if red:
            assert "Warning: pocket_math_sw: every answer is wrong" in red[0]
            assert red[1].startswith("\x1b[31m  ")  # the sentence goes on
            assert len(red) < len(output.splitlines())


def test_no_run(tmp_path: Path) -> None:
    for path, why in (
        (tmp_path, "no run.json in it, so it is not a run folder; layerswap run makes one"),
        (Path(__file__), "is a file; give the folder that layerswap run wrote"),
        (tmp_path / "nowhere", f"no such folder (the current directory is {Path.cwd()})"),
    ):
        code, output = invoke_report(path)
        assert (code, output.count("\n")) == (2, 1)
        assert f"{path}: {why}" in output
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_was_moved_or_is_looked_for_from_elsewhere(
    small: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = shutil.copytree(small.path, tmp_path / "archive" / "made_up")
    monkeypatch.chdir(moved)
    for path, hint in (
        (tmp_path / "archive", f"so it is not a run folder; did you mean {moved}?"),
        (Path("archive/made_up"), f"; {tmp_path} has it: run the command there)"),
    ):
        code, output = invoke_report(path)
        assert (code, output.count("\n")) == (2, 1)
        assert hint in output
    assert invoke_report(moved, "--format", "csv")[0] == 0


def test_the_name_of_a_study_is_answered_with_its_run(
    small: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(small.path, tmp_path / "runs" / "made_up")
    monkeypatch.chdir(tmp_path)
    for arguments in (["made_up"], [small.path, "made_up"]):
        code, output = invoke_report(*arguments)
        assert code == 2
        assert output == "Error: made_up is not a run folder; did you mean runs/made_up?\n"


def test_a_run_that_is_named_twice_is_refused(small: Run, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(small.path)
    for again in (small.path, tmp_path / "link"):
        code, output = invoke_report(small.path, again, "--out", tmp_path / "out")
        assert (code, output) == (2, f"Error: {again} is named twice\n")
    assert not (tmp_path / "out").exists()


def test_a_run_of_a_newer_schema(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", study_of(), lambda _, __: 0.0, items=10)
    document = json.loads((run.path / "run.json").read_text())
    (run.path / "run.json").write_text(json.dumps({**document, "schema_version": 99}))
    code, output = invoke_report(run.path)
    assert code == 2
    assert "written by a newer layerswap (schema version 99" in output
    assert not (run.path / "report").exists()


def test_a_run_without_a_finished_cell(tmp_path: Path) -> None:
    failed = {"math+swahili": "CUDA out of memory\nat line 3"}
    run = write_run(tmp_path / "run", study_of(), lambda _, __: 0.0, failed=failed)
    code, output = invoke_report(run.path)
    assert code == 2
    assert output.startswith(f"Error: {run.path}: its only cell is not finished; one failed ")
    assert "(math+swahili) with: CUDA out of memory; layerswap run made_up" in output
    assert not (run.path / "report").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [("htm", "no format 'htm'; did you mean 'html'?"), (" ,", "no format named")],
)
def test_an_unknown_format(small: Run, text: str, message: str) -> None:
    code, output = invoke_report(small.path, "--format", text)
    assert code == 2
    assert message in output
