"""What one can get wrong beside the study, and in its tasks: one message, nothing written."""

import datetime
import os
import sys
from pathlib import Path

import pytest

from ablations.engines.task_loading import check_data
from ablations.runner import run as runner
from ablations.runner.run import check_folder
from ablations.study.cells import missing_tasks
from ablations.study.files import read_study
from ablations.study.planning import plan_study
from layerswap_method.errors import InputError
from tests.standins.command import layerswap
from tests.standins.studies import study_document, write_yaml
from tests.standins.tasks import MEAN, write_rows, write_task

DRY = ("--dry-run",)
EXACT = {"metric": "exact_match", **MEAN}
AWAY = {"dataset_path": "nobody/nothing", "dataset_kwargs": None}


@pytest.fixture
def run(tmp_path, experts, monkeypatch):
    """Return a function that runs a small study by the command line in an empty folder."""
    study = write_yaml(tmp_path / "small.yml", study_document())
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    command = ["run", str(study), "--experts", str(experts), "--backend", "hf"]
    return lambda *options: layerswap(*command, *options)


def refused(result, *messages, code=2):
    assert result.exit_code == code, result.output
    for message in messages:
        assert message in result.output
    assert not list(Path("runs").rglob("records/*"))


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("file", "is a file"),
        ("file/run", "file: is not a folder; choose another --out"),
        ("link/run", "link: is not a folder; choose another --out"),
        ("x" * 300, "File name too long; choose another --out"),
        ("full", "is not empty (thesis.tex) and is not a run folder; choose another --out"),
    ],
)
def test_out_that_can_hold_no_run(tmp_path, run, out, message, options):
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("x")
    before = sorted(tmp_path.rglob("*"))
    refused(run("--out", str(tmp_path / out), *options), message)
    assert sorted(tmp_path.rglob("*")) == before


def test_answers_that_a_call_before_began_in_its_folder_are_its_own(tmp_path):
    """Hashes of weights are stored there before anything can stop the call."""
    out = tmp_path / "out"
    (out / "answers").mkdir(parents=True)
    check_folder(out, "small", out / "answers")
    with pytest.raises(InputError, match=r"out: is not empty \(answers\)"):
        check_folder(out, "small", tmp_path / "answers")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written(tmp_path, run):
    (tmp_path / "locked").mkdir(mode=0o555)
    refused(run("--out", str(tmp_path / "locked" / "run")), "you have no permission to write there")


def test_a_damaged_run_file_is_no_reason_to_remove_the_run(tmp_path, run):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "run.json").write_text("{")
    refused(run("--out", str(tmp_path / "out")), "restore it, or choose another --out", code=1)


def test_a_wrong_choice_of_cells_leaves_nothing_behind(run):
    refused(run("--only", "bottom_layer=1"), "--only")
    assert not list(Path().iterdir())


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_without_the_evaluation_extra(run, monkeypatch, options):
    monkeypatch.setitem(sys.modules, "lm_eval", None)  # as if it were not installed
    refused(run(*options), "lm-eval is not installed; install it with: pip install 'layerswap[")
    assert not list(Path().iterdir())


@pytest.fixture
def ask(tmp_path, experts, run):
    """Return a function that runs a study of one's own tasks."""
    own = tmp_path / "own"
    rows = [{"question": "w1 w2", "answer": "w3"}, {"question": "w4", "answer": "w5"}]
    data = write_rows(own, rows)
    write_task(own, "story", data, doc_to_text="{{question}}")
    experts.write_text(experts.read_text().replace("include_path", "# include_path"))

    def ask(*options, tasks=("story",), **changes):
        if changes:
            write_task(own, tasks[-1], data, **{"doc_to_text": "{{question}}", **changes})
        evaluate = {"tasks": list(tasks), "include_path": str(own), "options": {"batch_size": 8}}
        document = study_document(evaluate=evaluate, vary=None, baseline=["base"])
        write_yaml(tmp_path / "small.yml", document)
        return run(*options)

    return ask


HONEST = {
    "version": 1.0,
    "date": datetime.date(2024, 1, 1),
    "raw": b"\0",
    "tags": {"x", "y"},
    "at": datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC),
    "labels": {1: "one", "b": "two"},
}
"""What YAML has and JSON has not."""


def test_metadata_may_be_whatever_yaml_has(ask):
    for options in (DRY, ()):
        result = ask(*options, metadata=HONEST)
        assert result.exit_code == 0, result.output
    again = ask()
    assert "0 cells evaluated, 2 finished before" in again.output
    assert layerswap("report", "runs/small-experts", "--format", "csv").exit_code == 0
    changed = ask("--dry-run", metadata={**HONEST, "date": datetime.date(2024, 1, 2)})
    assert "  finished" not in changed.output


LARGE = {
    "everything": (
        "dataset_path: text\ndataset_kwargs: {data_files: /**}\n",
        "holds over 10,000 files: no data set of a task",
    ),
    "root": ("dataset_path: /\n", "/: holds over 10,000 files: no data set of a task"),
}


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize("options", [(), ("--dry-run",)])
@pytest.mark.parametrize("kind", LARGE)
def test_a_slip_of_the_pen_in_the_place_of_data_is_refused(ask, tmp_path, kind, options):
    text, message = LARGE[kind]
    (tmp_path / "own" / "bad.yaml").write_text(f"task: bad\n{text}")
    refused(ask(*options, tasks=("story", "bad")), message)


def test_a_task_file_may_have_aliases(ask, tmp_path):
    (tmp_path / "own" / "workflow.yaml").write_text("a: &a [1]\nb: *a\n")
    (tmp_path / "own" / "based.yaml").write_text("a: &a {x: 1}\nb: {<<: *a}\n")
    assert ask("--dry-run").exit_code == 0
    story = tmp_path / "own" / "story.yaml"
    story.write_text(story.read_text() + "metadata: {first: &m [1], second: *m}\n")
    assert ask("--dry-run").exit_code == 0


@pytest.fixture
def no_engine(monkeypatch):
    def fail(*_):
        raise AssertionError("an engine was made")

    monkeypatch.setattr(runner, "StudyEngine", fail)


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize(
    ("changes", "messages", "code"),
    [
        ({"doc_to_text": "{{questoin}}"}, ("'questoin' is undefined", "own/bad.yaml"), 2),
        ({"filter_list": [{"name": "x", "filter": [{"function": "rege"}]}]}, ("'rege'",), 2),
        ({"metric_list": [{"metric": "exakt", **MEAN}]}, ("no metric 'exakt'", "own/bad.yaml"), 2),
        ({"metric_list": [], "filter_list": []}, ("an empty metric_list or filter_list",), 2),
        ({"metric_list": [{**EXACT, "aggregation": "meen"}]}, ("no aggregation 'exact_m",), 2),
        ({"generation_kwargs": {"until": ["."], "max_gen_toks": "x"}}, ("to float: 'x'",), 2),
        ({"test_split": "tset"}, ("its file or data", "tset"), 2),
        # Data of a hub that cannot be asked is no mistake of the user.
        (AWAY, ("its data is not on this machine", "HF_HUB_OFFLINE"), 1),
    ],
)
def test_a_fault_of_a_task_is_one_error_before_an_engine_starts(ask, changes, messages, code):
    refused(ask(tasks=("story", "bad"), **changes), "task bad: ", *messages, code=code)


def test_a_task_file_that_is_no_yaml_is_named(ask, tmp_path):
    ask(*DRY)
    (tmp_path / "own" / "bad.yaml").write_text("task: [")
    refused(ask(*DRY, tasks=("story", "bad")), "unknown task 'bad'", "bad.yaml cannot be read: ")
    (tmp_path / "own" / "story.yaml").unlink()
    refused(ask(*DRY), "has no lm-eval task file", "bad.yaml cannot be read: ")


def test_finished_cells_need_no_data(ask, tmp_path, experts):
    ask(*DRY, doc_to_text="{{questoin}}")
    study = read_study(tmp_path / "small.yml")
    plan = plan_study(study, experts, backend="hf")
    keys = [key for cell in plan.cells for key in cell.record_keys.values()]
    assert missing_tasks(plan.cells, ()) == {}
    for missing in (keys, keys[1:]):
        with pytest.raises(InputError, match="'questoin' is undefined"):
            check_data(missing_tasks(plan.cells, missing).values())
    # What --only leaves out is not read either.
    base = next(cell for cell in plan.cells if cell.kind == "base")
    assert missing_tasks([base], {*keys} - {*base.record_keys.values()}) == {}
