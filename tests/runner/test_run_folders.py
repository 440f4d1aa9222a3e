"""What a run writes about tasks, experts and hashes, and where it writes."""

import hashlib
import shutil
from pathlib import Path

import pytest
import yaml

from ablations.runner.run import RunOptions, open_study, run_study, write_plan
from ablations.runs.changed_tasks import changed_tasks
from ablations.runs.examples import read_examples
from ablations.runs.run import load_run
from ablations.study.files import read_study
from ablations.study.planning import plan_study
from tests.runner.fakes import run
from tests.standins.studies import study_document, write_study, write_yaml


def test_a_report_names_a_task_that_has_changed_since(tmp_path, models, experts, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = shutil.copytree(models / "tasks", tmp_path / "tasks")
    setting = yaml.safe_load(experts.read_text()) | {"include_path": "tasks"}
    changes = {"evaluate": {"tasks": ["words", "words_sw"]}, "vary": None}
    study = read_study(write_yaml(Path("study.yml"), study_document(**changes)))
    out = tmp_path / "run"
    plan = plan_study(study, write_yaml(Path("mine.yml"), setting), backend="hf")
    write_plan(out, plan)
    run(out, plan.cells, protocol_key=plan.protocol_key)
    monkeypatch.chdir(models)  # where there is another folder of this name
    assert [*changed_tasks(load_run(out))] == []
    file = folder / "words.yaml"
    file.write_text(file.read_text().replace("exact_match", "bleu"))
    (text,) = changed_tasks(load_run(out))
    assert text.startswith("words: its file, its data or its scoring has changed since this run.")
    file.rename(tmp_path / "words.yaml")  # as with a folder of tasks that is not that of before
    assert [*changed_tasks(load_run(out))] == []


@pytest.mark.filterwarnings("ignore")
def test_texts_are_found_where_the_run_folder_is_a_link(tmp_path):
    """To a folder of another depth, as a scratch disk: a reader follows the link before `..`."""
    study, experts = write_study(tmp_path / "study", baseline=["base"])
    scratch, out = tmp_path / "scratch" / "of" / "mine", tmp_path / "runs" / "small"
    for folder in (scratch, out.parent):
        folder.mkdir(parents=True)
    out.symlink_to(scratch)
    options = RunOptions(
        out=out, experts=experts, backend="hf", only=("kind=base",), answers=out.parent / "answers"
    )
    run_study(str(study), options)
    assert read_examples(out)
    experts = load_run(out).head.experts
    assert (out / experts["base"]).samefile(tmp_path / "study" / "base")


def test_another_experts_file_has_a_folder_of_its_own_by_default(tmp_path, experts):
    study = write_yaml(tmp_path / "study.yml", study_document(experts_file="experts.yml"))
    other = write_yaml(tmp_path / "mine.yml", yaml.safe_load(experts.read_text()))
    folders = [open_study(str(study), RunOptions(experts=e))[1] for e in (None, experts, other)]
    assert [folder.name for folder in folders] == ["small", "small", "small-mine"]


def test_a_run_names_experts_of_the_hub_by_their_commit(tmp_path, models, experts, monkeypatch):
    folder = tmp_path / "hub" / "models--org--swahili"
    shutil.copytree(models / "swahili", folder / "snapshots" / "0123abc")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("0123abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    setting = yaml.safe_load(experts.read_text())
    setting["experts"]["swahili"] = "org/swahili"
    file = write_yaml(tmp_path / "hub.yml", setting)
    plan = plan_study(read_study(write_yaml(tmp_path / "s.yml", study_document())), file)
    for _ in range(2):  # the second call finds the first one's run
        head = write_plan(tmp_path / "run", plan)
    assert head.experts["swahili"] == "org/swahili@0123abc"


def test_a_hash_that_only_the_hub_has_computed_is_said_to_be_its_claim(
    tmp_path, models, experts, monkeypatch
):
    folder = tmp_path / "hub" / "models--org--swahili"
    snapshot = shutil.copytree(models / "swahili", folder / "snapshots" / "0123abc")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("0123abc")
    (folder / "blobs").mkdir()
    weights = snapshot / "model.safetensors"
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    weights.rename(folder / "blobs" / digest)
    weights.symlink_to(f"../../blobs/{digest}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    setting = yaml.safe_load(experts.read_text())
    study = read_study(write_yaml(tmp_path / "s.yml", study_document()))
    own = plan_study(study, experts, hashes=tmp_path / "own.jsonl")
    setting["experts"]["swahili"] = "org/swahili"
    file = write_yaml(tmp_path / "hub.yml", setting)
    for _ in range(2):  # it is said of what the first call has stored, too
        plan = plan_study(study, file, hashes=tmp_path / "run.jsonl")
        (note,) = (note for note in plan.notes if "hub" in note)
        assert note.startswith("from the hub's cache: swahili: their content is what the hub's")
        assert [cell.record_keys for cell in plan.cells] == [cell.record_keys for cell in own.cells]
    assert note in write_plan(tmp_path / "run", plan).notes
    assert not any("hub" in note for note in own.notes)
