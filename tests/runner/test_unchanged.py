"""A run and what it was made of: tasks that change, other experts files, commits of the hub."""

import shutil

import yaml

from ablations.runner.problems import evaluation_problems
from ablations.runner.records import load_run
from ablations.runner.run import RunOptions, _opened, write_plan
from ablations.study.files import read_study
from ablations.study.planning import plan_study
from tests.runner.fakes import run
from tests.standins.studies import study_document, write_yaml


def test_a_report_names_a_task_that_has_changed_since(tmp_path, models, experts):
    folder = shutil.copytree(models / "tasks", tmp_path / "tasks")
    setting = yaml.safe_load(experts.read_text()) | {"include_path": str(folder)}
    changes = {"evaluate": {"tasks": ["words", "words_sw"]}, "vary": None}
    study = read_study(write_yaml(tmp_path / "study.yml", study_document(**changes)))
    out = tmp_path / "run"
    plan = plan_study(study, write_yaml(tmp_path / "mine.yml", setting), backend="hf")
    write_plan(out, plan)
    run(out, plan.cells, protocol=plan.protocol)
    assert evaluation_problems(load_run(out)) == ()
    file = folder / "words.yaml"
    file.write_text(file.read_text().replace("exact_match", "bleu"))
    (text,) = evaluation_problems(load_run(out))
    assert text.startswith("words: its file, its data or its scoring has changed since this run.")


def test_another_experts_file_has_a_folder_of_its_own_by_default(tmp_path, experts):
    study = write_yaml(tmp_path / "study.yml", study_document(experts_file="experts.yml"))
    other = write_yaml(tmp_path / "mine.yml", yaml.safe_load(experts.read_text()))
    folders = [_opened(str(study), RunOptions(experts=e))[1] for e in (None, experts, other)]
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
