"""What one can get wrong beside the study: one message of `layerswap run`, nothing written."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ablations.cli import main
from tests.standins.studies import study_document, write_yaml


@pytest.fixture
def run(tmp_path: Path, experts: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Return a function that runs a small study by the command line in an empty folder."""
    study = write_yaml(tmp_path / "small.yml", study_document())
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    command = ["run", str(study), "--experts", str(experts), "--backend", "hf"]
    return lambda *options: CliRunner().invoke(main, [*command, *options])


def refused(result: Result, message: str, code: int = 2) -> None:
    assert isinstance(result.exception, SystemExit), result.exception  # a bug has another one
    assert result.exit_code == code, result.output
    assert message in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("file", "is a file"),
        ("file/run", "file: is not a folder; choose another --out"),
        ("link", "link: is not a folder; choose another --out"),
        ("link/run", "link: is not a folder; choose another --out"),
        ("loop", "loop: is not a folder; choose another --out"),
        ("x" * 300, "File name too long; choose another --out"),
        ("full", "is not empty (thesis.tex) and is not a run folder; choose another --out"),
    ],
)
def test_out_that_can_hold_no_run(
    tmp_path: Path, run: Callable[..., Result], out: str, message: str, options: tuple[str, ...]
) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("x")
    before = sorted(tmp_path.rglob("*"))
    refused(run("--out", str(tmp_path / out), *options), message)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written(tmp_path: Path, run: Callable[..., Result]) -> None:
    (tmp_path / "locked").mkdir(mode=0o555)
    refused(run("--out", str(tmp_path / "locked" / "run")), "you have no permission to write there")


@pytest.mark.parametrize("content", ["{", None, "[]"])
def test_a_damaged_run_file_is_no_reason_to_remove_the_run(
    tmp_path: Path, run: Callable[..., Result], content: str | None
) -> None:
    path = tmp_path / "out" / "run.json"
    path.parent.mkdir()
    path.mkdir() if content is None else path.write_text(content)
    refused(run("--out", str(path.parent)), "restore it, or choose another --out", code=1)


@pytest.mark.parametrize("only", ["", "nonsense", "bottom_layer=1", "bottom_layers=7", "=3"])
def test_a_wrong_choice_of_cells_leaves_nothing_behind(
    tmp_path: Path, run: Callable[..., Result], only: str
) -> None:
    refused(run("--only", only), "--only")
    assert not list((tmp_path / "here").iterdir())


@pytest.mark.parametrize("jobs", ["0", "-1", "many"])
def test_jobs_that_are_no_number_of_engines(run: Callable[..., Result], jobs: str) -> None:
    refused(run("--jobs", jobs), "Invalid value for '--jobs'")


def test_without_the_evaluation_extra(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)  # as if it were not installed
    for options in ((), ("--dry-run",)):
        refused(run(*options), "lm-eval is not installed; install it with: pip install 'layerswap[")
    assert list(Path().iterdir()) == []
