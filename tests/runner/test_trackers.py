"""Scores of a study for trackers, by the mechanism of transformers: a name, and its callback."""

import json

import pandas
import pytest
from transformers import TrainerCallback
from transformers.integrations import integration_utils

from ablations.runner.trackers import score_trackers
from tests.runner.fakes import FakeEngine, evaluations, make_cells, run
from tests.standins.command import layerswap
from tests.standins.studies import study_document, write_yaml
from tests.train.conftest import base, call, rows, write_config

__all__ = ["base", "rows"]


@pytest.fixture
def calls(monkeypatch):
    """Return what the tracker `notes` is told."""
    told = []

    class Notes(TrainerCallback):
        def on_train_begin(self, args, state, control, model=None, **kwargs):
            trial = state.trial_name if state.is_hyper_param_search else None
            facts = json.loads(args.to_json_string())
            told.append(("begin", id(self), args.run_name, trial, facts, args.to_dict()))

        def on_log(self, args, state, control, model=None, logs=None, **kwargs):
            told.append(("log", id(self), logs))

        def on_train_end(self, args, state, control, **kwargs):
            told.append(("end", id(self)))

    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "notes", Notes)
    return told


def test_each_model_is_a_trial_with_its_facts_and_scores(tmp_path, calls):
    cells = make_cells(2, tasks=("words", "words_sw"))
    show = score_trackers(("notes",), "my study", tmp_path)
    run(tmp_path, cells, show=show)
    assert [call[0] for call in calls] == ["begin", "log", "end"] * 2
    for number, cell in enumerate(cells):
        begin, log, _ = calls[3 * number : 3 * number + 3]
        assert begin[2:4] == (cell.label, cell.label)
        assert (
            begin[4]
            == begin[5]
            == {
                "study": "my study",
                "model": f"bottom_layers={number}",
                "kind": "recipe",
                "task": "math",
                "language": "swahili",
                "base": "base",
                "bottom_layers": number,
            }
        )
        scores = {task: each.score(task) for task, each in evaluations(cell).items()}
        assert log[2] == {f"eval_{task}/exact_match": s.value for task, s in scores.items()}
    run(tmp_path, cells, FakeEngine(), show=show)  # all of it is there
    assert len(calls) == 6


def test_a_tracker_that_fails_ends_no_run(tmp_path, monkeypatch, caplog):
    class Away(TrainerCallback):
        def on_log(self, *_, **__):
            raise ConnectionError("the server is away")

    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "away", Away)
    cells = make_cells(2)
    summary = run(tmp_path, cells, show=score_trackers(("away",), "study", tmp_path))
    assert len(summary.evaluated) == 2
    assert caplog.text.count("the scores of bottom_layers=") == 2
    assert "the server is away" in caplog.text


def missing_tracker():
    there = integration_utils.get_available_reporting_integrations()
    return next(name for name in ("wandb", "mlflow", "trackio", "swanlab") if name not in there)


@pytest.mark.parametrize("name", ["nonsense", "missing"])
def test_a_tracker_that_is_not_there_is_refused_before_the_run(tmp_path, experts, name):
    name = missing_tracker() if name == "missing" else name
    study = write_yaml(tmp_path / "small.yml", study_document())
    out = tmp_path / "run"
    words = ["run", study, "--experts", experts, "--backend", "hf", "--out", out]
    result = layerswap(*words, "--report-to", name)
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].startswith(f"Error: --report-to {name}: ")
    assert not out.exists()


def test_a_real_run_reports_the_scores_of_its_table(tmp_path, experts, calls):
    study = write_yaml(tmp_path / "small.yml", study_document(vary={"bottom_layers": [1]}))
    out = tmp_path / "run"
    words = [
        "run",
        study,
        "--experts",
        experts,
        "--backend",
        "hf",
        "--out",
        out,
        "--only",
        "kind=recipe",
    ]
    result = layerswap(*words, "--report-to", "notes")
    assert result.exit_code == 0
    (log,) = (call for call in calls if call[0] == "log")
    table = pandas.read_csv(out / "scores.csv")
    (score,) = table[table.metric == "exact_match"].value
    assert log[2]["eval_words/exact_match"] == score


def test_training_passes_report_to_on(tmp_path, base, rows, calls):
    config = write_config(tmp_path / "c.yml", base, rows, trainer={"report_to": ["notes"]})
    assert call(config, tmp_path / "out").exit_code == 0
    begin, *logs, end = calls
    assert (begin[0], begin[2], end[0]) == ("begin", "out", "end")
    assert [log[2]["loss"] for log in logs if "loss" in log[2]] != []
    refused = call(config, tmp_path / "other", f"trainer.report_to={missing_tracker()}")
    assert refused.exit_code == 2
    assert "requires" in refused.output
