"""`layerswap runs`, the runs of a model by its weights, and `layerswap evaluate` of several."""

import dataclasses
import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from ablations.engines import live
from ablations.engines.lm_eval_backend import start_model
from ablations.evaluate import evaluate_models
from ablations.models.find import find_model
from ablations.report.compare_models import compare_models
from ablations.runner.run import RunOptions
from ablations.runner.study_engine import SharedEngine
from ablations.runs.evaluated_models import list_runs, places_of_models
from ablations.runs.records import write_run_file
from ablations.runs.run import load_run
from ablations.study.identity import Fingerprints, checkpoint_key
from layerswap_method.errors import InputError
from tests.engines.backends import BACKENDS
from tests.report.runs import level, study_of, write_run
from tests.standins.command import layerswap, output_of
from tests.standins.tasks import write_tasks
from tests.standins.word_models import write_model

TASKS = ["pocket_math_sw", "pocket_math_en"]


def write_evaluation(folder, kind, model=None, *, tasks=TASKS, protocol="", created="2026-11-01"):
    """Write a run of one model, that of a folder, as `layerswap evaluate` does."""
    study = study_of(baseline=[kind], recipe=None, evaluate={"tasks": tasks})
    run = write_run(folder, study, level, items=20)
    head = run.head.model_copy(
        update={"protocol": protocol, "created": f"{created}T12:00:00+00:00"}
    )
    if model is not None:
        key = checkpoint_key(find_model(str(model)), Fingerprints())
        cells = tuple(cell.model_copy(update={"weights_key": key}) for cell in head.cells)
        head = head.model_copy(update={"cells": cells})
    write_run_file(folder, head)
    return load_run(folder)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return [write_model(folder / name, seed) for seed, name in enumerate(("one", "two"))]


def test_runs_are_listed_the_newest_first_in_eighty_columns(here):
    write_evaluation(
        here / "runs" / "evaluate" / "some-long-name-of-a-model" / "hf-limit-20", "base"
    )
    study = study_of(baseline=["base", "soup", "task_expert", "language_expert"])
    write_run(here / "runs" / "my_study", study, level, items=5, unrun=["soup"])
    write_evaluation(here / "runs" / "evaluate" / "new" / "hf", "soup", created="2026-11-20")
    listed = list_runs()
    assert [str(run.folder) for run in listed.runs] == [
        "runs/evaluate/new/hf",
        "runs/my_study",
        "runs/evaluate/some-long-name-of-a-model/hf-limit-20",
    ]
    text = listed.text(80)
    assert max(map(len, text.splitlines())) <= 80
    assert "2026-11-20" in text
    assert "1 of 5" in text
    assert {str(run.folder) for run in listed.runs} <= {*listed.text(30).splitlines()}
    assert len(listed.text(None).splitlines()) == 2 + 3
    assert output_of("runs").rstrip("\n") == listed.text(None)


def test_what_cannot_be_read_is_said_and_the_rest_is_listed(here):
    write_evaluation(here / "runs" / "evaluate" / "new" / "hf", "soup")
    other = here / "runs" / "other"
    other.mkdir()
    (other / "run.json").write_text("{")
    listed = list_runs()
    assert len(listed.runs) == 1
    assert "run.json is damaged" in listed.warnings[0]
    assert "layerswap evaluate MODEL" in layerswap("runs", "nowhere").output


def test_models_are_compared_by_their_weights(here, models):
    for name, kind, model in zip(("a", "b"), ("base", "soup"), models, strict=True):
        write_evaluation(here / "runs" / "evaluate" / name / "hf", kind, model)
    compared = compare_models(list(map(str, models)))
    assert compared.places == ("runs/evaluate/a/hf", "runs/evaluate/b/hf")
    assert "runs/evaluate/a/hf" in str(compared)
    mixed = compare_models([str(models[0]), "runs/evaluate/b/hf"])
    assert mixed.comparisons.equals(compared.comparisons)


def test_of_several_runs_those_of_shared_settings_with_most_tasks_are_taken(here, models):
    place = here / "runs" / "evaluate"
    write_evaluation(place / "one" / "hf", "base", models[0], protocol="usual")
    write_evaluation(
        place / "one" / "hf-new", "base", models[0], protocol="x", created="2026-11-27"
    )
    write_evaluation(place / "one" / "few", "base", models[0], protocol="usual", tasks=TASKS[:1])
    write_evaluation(place / "two" / "hf", "soup", models[1], protocol="usual")
    assert places_of_models(list(map(str, models))) == [
        "runs/evaluate/one/hf",
        "runs/evaluate/two/hf",
    ]


def test_a_model_of_the_run_of_an_adapter_is_no_adapter(here, models):
    """Its folder has a + in its name, as `layerswap evaluate BASE+ADAPTER` writes it."""
    place = here / "runs" / "evaluate" / "base+adapter" / "hf"
    write_evaluation(place, "base", models[0])
    assert places_of_models([f"{place}:base"]) == [f"{place}:base"]
    relative = "runs/evaluate/base+adapter/hf:base"
    assert places_of_models([relative]) == [relative]


def test_a_model_without_a_run_says_how_to_get_one(here, models):
    write_evaluation(here / "runs" / "evaluate" / "one" / "hf", "base", models[0])
    with pytest.raises(InputError, match=r"no run in runs has a score .*layerswap evaluate .*two"):
        compare_models(list(map(str, models)))
    with pytest.raises(InputError, match="no such folder"):
        compare_models(["runs/nowhere", "runs/evaluate/one/hf"])


@pytest.mark.parametrize(
    ("options", "why"),
    [(["--out", "x"], "--out is for one model"), (["--name", "x"], "--name is for one model")],
)
def test_options_of_one_model_are_refused_for_several(here, models, options, why):
    done = layerswap("evaluate", *models, "--tasks", "words_choose", *options)
    assert done.exit_code == 2
    assert why in done.output
    done = layerswap("evaluate", models[0], models[0], "--tasks", "words_choose")
    assert "is named twice" in done.output


@pytest.mark.slow
def test_several_models_are_evaluated_and_compared(here, models):
    tasks = write_tasks(here / "tasks")
    words = ["--tasks", "words_choose,words_generate", "--include-path", tasks, "--backend", "hf"]
    text = output_of("evaluate", *models, *words)
    compared = compare_models(list(map(str, models)))
    assert compared.models == ("one", "two")
    assert str(compared) in text
    assert text.count("Evaluated by lm-eval") == 1
    assert text.count("cut off    items") == 2  # a table for each
    made = json.loads(layerswap("evaluate", *models, *words, "--json").stdout)
    assert [Path(one["folder"]).is_dir() for one in made["evaluations"]] == [True, True]
    assert made["comparison"]["models"] == ["one", "two"]
    assert len(list_runs().runs) == 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_live_engine_serves_all_models_that_fit_it(here, models, backend, monkeypatch):
    """Scores are those of an engine on each checkpoint; a model of another shape starts another."""
    other = write_model(here / "other", 3, hidden_size=32)
    settings = {
        "tasks": ("words_choose", "words_generate"),
        "include_path": (str(write_tasks(here / "tasks")),),
        "options": {"kv_cache_gib": 1, "gpu_memory_utilization": 0.3},
    }
    starts = []

    def start(folder, *arguments):
        starts.append(folder)
        return start_model(folder, *arguments)

    def scores(options, folder):
        options = dataclasses.replace(options, answers=here / folder / "answers")
        results = evaluate_models([str(model) for model in (*models, other)], options)
        shutil.rmtree(here / "runs")
        return pd.concat([result.scores for result in results])["value"].tolist()

    options = RunOptions(backend=backend, settings=settings)
    monkeypatch.setattr(live, "start_model", start)
    shared = SharedEngine() if backend == "hf" else None  # vLLM, whose starts are long, has one
    together = scores(dataclasses.replace(options, shared=shared), "together")
    assert starts == [models[0], other]
    monkeypatch.setattr("ablations.evaluate.SharedEngine", lambda: None)
    assert scores(options, "each") == pytest.approx(together)
    assert len(starts) == 2
    assert len({*together}) > 3


def test_a_model_that_a_study_evaluated_is_its_cell(here, models):
    run = write_run(here / "runs" / "mine", study_of(baseline=["base", "soup"]), level, items=20)
    keys = [checkpoint_key(find_model(str(model)), Fingerprints()) for model in models]
    cells = [
        cell.model_copy(update={"weights_key": key})
        for cell, key in zip(run.head.cells, [*keys, "other"], strict=True)
    ]
    write_run_file(run.path, run.head.model_copy(update={"cells": tuple(cells)}))
    compared = compare_models(list(map(str, models)))
    assert compared.places == tuple(f"runs/mine:{cell.label}" for cell in cells[:2])
    assert compared.models == ("base", "soup")
