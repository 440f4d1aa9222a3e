"""Whole runs with transformers on random experts: live engine, checkpoints, CLI."""

import json
import shutil

import pytest
import torch

from ablations.engines.hf_model import HfModel
from ablations.runner.run import RunOptions, dry_run, run_study
from ablations.runs import records
from ablations.runs.run import load_run
from ablations.study.schema import Study
from ablations.study.wording import kind_text
from layerswap_method.errors import InputError
from tests.runner.fakes import scores_by_label
from tests.standins.command import layerswap, output_of
from tests.standins.fine_tunes import train_adapter
from tests.standins.studies import study_document, write_expert, write_yaml

BASELINE = ["base", "task_expert", "language_expert", "soup", "ties"]
STUDY = {"baseline": BASELINE, "vary": {"bottom_layers": [0, 1]}}
NAMES = {name: name for name in ("base", "math", "swahili")}


def run(tmp_path, experts, name, document=None, **options):
    study = write_yaml(tmp_path / "small.yml", document or study_document(**STUDY))
    places = {"out": tmp_path / name, "answers": tmp_path / f"{name}-answers"}
    return run_study(str(study), RunOptions(experts, backend="hf", **places | options))


def write_experts(path, models, tasks, names=NAMES):
    setting = {"experts": {name: str(models / place) for name, place in names.items()}}
    return write_yaml(path, setting | {"include_path": str(tasks)})


def cells_of(result):
    return {cell.label: cell for cell in result.run.cells}


def how_of(result, what="weights"):
    """Return how the models got into the engine, by label."""
    cells = cells_of(result).items()
    return {label: cell.task_records[0].provenance.get(what) for label, cell in cells}


@pytest.mark.slow
def test_a_live_engine_and_checkpoints_give_the_same_records(tmp_path, models, monkeypatch):
    dtypes = {"base": torch.float16, "math": torch.bfloat16}  # all run in the dtype of the base
    for seed, (name, dtype) in enumerate(dtypes.items()):
        write_expert(tmp_path / name, seed, dtype=dtype)
    large = {"scale": 1.0, "target_modules": ["q_proj"], "r": 4}  # so that answers differ
    adapter = train_adapter(tmp_path / "base", tmp_path / "swahili", **large)
    names = {"base": "base", "math": "math", "swahili": f"base+{adapter}"}
    experts = write_experts(tmp_path / "mixed.yml", tmp_path, models / "tasks", names)
    started, start = [], HfModel.__init__
    monkeypatch.setattr(HfModel, "__init__", lambda *given: started.append(1) or start(*given))
    live = run(tmp_path, experts, "live")
    assert not live.summary.failed
    assert len(started) == 1
    cold = run(tmp_path, experts, "cold", materialize=True)
    assert not cold.summary.failed
    found = scores_by_label(tmp_path / "live")
    assert len(found) == 7
    assert len({samples for _, samples in found.values()}) > 4  # the cells do differ
    assert found == scores_by_label(tmp_path / "cold")
    by_label = cells_of(live)
    assert list(by_label)[:5] == [kind_text(kind) for kind in BASELINE]
    assert {*how_of(cold).values()} == {"checkpoint"}
    weights = dict.fromkeys(by_label, "streamed")
    weights["TIES"] = "merged by mergekit-yaml, then streamed"
    assert how_of(live) == weights
    assert {*how_of(live, "fallback").values()} == {None}
    assert by_label["layer swap b=1 u=1"].plan.sources == ("language", "task", "task", "language")
    assert not list((tmp_path / "cold" / ".work").iterdir())  # nothing is left on disk
    for file in (live.run.path / "run.json", *tmp_path.glob("*/records/*")):
        assert str(tmp_path) not in file.read_text(encoding="utf-8")  # a run can be handed on

    text, _ = dry_run(
        str(tmp_path / "small.yml"), RunOptions(experts=experts, out=live.run.path, backend="hf")
    )
    assert text.count("  finished") == 7
    assert "cost: none; every task of these cells is finished" in text
    again = run(tmp_path, experts, "live")
    assert not again.summary.evaluated
    assert len(again.summary.before) == 7


@pytest.mark.slow
def test_experts_of_other_vocabularies_where_all_rows_come_from_one(tmp_path, models):
    """The live engine keeps the base's tokenizer; models with another go through a checkpoint."""
    for name in ("base", "math"):
        shutil.copytree(models / name, tmp_path / name)
    write_expert(tmp_path / "swahili", 3, more_words=("moja", "mbili"))
    experts = write_experts(tmp_path / "speakers.yml", tmp_path, models / "tasks")
    document = study_document(baseline=["base"], vary={"non_layer": ["task", "language", "base"]})
    live = run(tmp_path, experts, "live", document)
    assert not live.summary.failed
    assert how_of(live) == {
        "base": "streamed",
        "layer swap non_layer=task": "streamed",
        "layer swap non_layer=base": "streamed",
        "layer swap non_layer=language": "checkpoint",
    }
    assert "tokenizer" in how_of(live, "fallback")["layer swap non_layer=language"]
    cold = run(tmp_path, experts, "cold", document, materialize=True)
    assert not cold.summary.failed
    assert scores_by_label(live.run.path) == scores_by_label(cold.run.path)


def test_the_folder_of_another_study_is_refused(tmp_path, experts):
    study = Study.model_validate({**study_document(), "name": "other"})
    facts = {"experts": {}, "protocol": "", "created": "", "versions": {}}
    head = records.RunFile.of_cells(study, [], 4, **facts)
    records.write_run_file(tmp_path / "run", head)
    with pytest.raises(InputError, match="holds a run of the study 'other', not of 'small'"):
        run(tmp_path, experts, "run")


@pytest.mark.slow
def test_the_command_line(tmp_path, experts):
    """The study counts layers of 32; lines name those of the model, and files the study's."""
    vary = [{"bottom_layers": count, "top_layers": 8} for count in (8, 16)]
    document = study_document(vary=vary, reference_layers=32)
    study, out = write_yaml(tmp_path / "small.yml", document), tmp_path / "run"
    command = ["run", str(study), "--experts", str(experts), "--out", str(out), "--backend", "hf"]
    output = output_of(*command, "--only", "bottom_layers=16")
    assert output.startswith("layer swap b=2 u=1  ")
    assert "1 cell evaluated, 0 failed" in output
    assert "Not run yet: 3 cells of the study." in output
    (cell,) = load_run(out).cells
    assert cell.label == "layer swap b=2 u=1"


@pytest.mark.slow
def test_runs_share_answers(tmp_path, experts, monkeypatch):
    """Another study, a larger limit and another level ask what is new; other weights ask all."""
    started, start = [], HfModel.__init__

    def answers_before(name, *, limit, level=0.95):
        started.clear()
        document = study_document(baseline=["base", "task_expert"], vary={"bottom_layers": [1]})
        document["evaluate"] |= {"limit": limit, "level": level}
        document["name"] = name
        result = run(tmp_path, experts, name, document, answers=tmp_path / "answers")
        assert not result.summary.failed
        tasks = [task for cell in cells_of(result).values() for task in cell.task_records]
        return {(t.evaluation.answers_before, t.evaluation.scores[0].n) for t in tasks}

    monkeypatch.setattr(HfModel, "__init__", lambda *given: started.append(1) or start(*given))
    assert answers_before("first", limit=3) == {(0, 3)}
    assert len(started) == 1
    assert answers_before("again", limit=3) == {(3, 3)}
    assert answers_before("wider", limit=3, level=0.5) == {(3, 3)}
    assert not started  # no engine was started
    assert answers_before("more", limit=5) == {(3, 5)}


@pytest.mark.slow
def test_the_command_prints_a_run_as_json(tmp_path, experts):
    study = write_yaml(tmp_path / "small.yml", study_document(vary={"bottom_layers": [1]}))
    words = ["run", study, "--experts", experts, "--backend", "hf", "--out", tmp_path / "out"]
    result = layerswap(*words, "--json")
    assert result.exit_code == 0, result.output
    made = json.loads(result.stdout)
    assert list(made) == ["folder", "evaluated", "before", "failed", "answer", "scores"]
    assert (made["folder"], made["before"], made["failed"]) == (str(tmp_path / "out"), [], {})
    assert {row["cell"] for row in made["scores"]} == {*made["evaluated"]}
    again = json.loads(layerswap(*words, "--json").stdout)
    assert (again["before"], again["evaluated"]) == (made["evaluated"], [])
    assert again["scores"] == made["scores"]
    refused = layerswap(*words, "--json", "--dry-run")
    assert (refused.exit_code, "--dry-run prints no JSON" in refused.stdout) == (2, True)
