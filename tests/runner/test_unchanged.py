"""What is finished stays finished when words change: a copy of the package is edited and asked."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ablations.runner.problems import evaluation_problems
from ablations.runner.records import load_run
from ablations.runner.run import FINGERPRINTS, RunOptions, _opened, write_plan
from ablations.study.files import read_study
from ablations.study.planning import plan_study
from tests.runner.fakes import FakeEngine, run
from tests.standins.scripted import DATA
from tests.standins.studies import study_document, write_yaml

ROOT = Path(__file__).parents[2]
POOLS = {"base": "base", "task": ["math"], "language": {"sw": ["swahili"], "te": ["telugu"]}}


def edit(file, old, new):
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")


def evaluated(out, study, experts):
    """Plan a study and have it evaluated by an engine of no model; return the engine."""
    plan = plan_study(read_study(study), experts, backend="hf", cache=out / FINGERPRINTS)
    write_plan(out, plan)
    engine = FakeEngine()
    run(out, plan.cells, engine, protocol=plan.protocol)
    return engine


@pytest.mark.slow
def test_words_change_nothing_and_a_task_only_itself(tmp_path, experts):
    copy, ignored = tmp_path / "copy", shutil.ignore_patterns("__pycache__")
    for name in ("ablations", "layerswap_method"):
        shutil.copytree(ROOT / name, copy / name, ignore=ignored)
    setting = yaml.safe_load(experts.read_text())
    shipped = write_yaml(tmp_path / "shipped.yml", {"experts": setting["experts"]})
    asked = {"benchmarks": ["mgsm"], "data_dir": str(DATA), "limit": 2}
    document = study_document(experts=POOLS, vary={"bottom_layers": [1]}, evaluate=asked)
    study, out = write_yaml(tmp_path / "study.yml", document), tmp_path / "run"
    # Base and task expert in both languages, a merge for each.
    assert len(evaluated(out, study, shipped).seen) == 6

    def left():
        """Return what the edited copy would still do, of the study that this one has done."""
        words = ["run", study, "--experts", shipped, "--out", out, "--backend", "hf", "--dry-run"]
        code = "from ablations.cli import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", code, *map(str, words)],
            cwd=copy,
            env=os.environ | {"PYTHONPATH": str(copy), "COLUMNS": "200"},
            capture_output=True,
            text=True,
            check=True,
        )
        cost = done.stdout[done.stdout.index("\ncost: ") :].splitlines()
        return "".join(cost[1:3])

    package, tasks = copy / "ablations", copy / "ablations" / "tasks"
    edit(package / "evaluate" / "tables.py", '"also"', '"besides"')
    edit(tasks / "catalog.py", "import annotations", "import annotations  # a comment")
    edit(copy / "layerswap_method" / "errors.py", "did you mean", "was it")
    for file in (tasks / "README.md", tasks / "choices.py", tasks / "languages.yml"):
        file.write_text(file.read_text(encoding="utf-8") + "\n# One line more.\n")
    swahili = tasks / "generated" / "layerswap_mgsm_sw.yaml"
    swahili.write_text("# Another comment.\n" + swahili.read_text(encoding="utf-8"))
    assert left() == "cost: none; every task of these cells is finished"
    edit(swahili, "Swali: ", "Swali  : ")
    assert left() == (
        "cost: 3 evaluations for 4 cells, on hf in float32"
        "  tasks: layerswap_mgsm_sw; items per task: 2"
    )


def test_a_report_names_a_task_that_has_changed_since(tmp_path, models, experts):
    folder = shutil.copytree(models / "tasks", tmp_path / "tasks")
    setting = yaml.safe_load(experts.read_text()) | {"include_path": str(folder)}
    asked = {"tasks": ["words", "words_sw"]}
    study = write_yaml(tmp_path / "study.yml", study_document(evaluate=asked, vary=None))
    out = tmp_path / "run"
    evaluated(out, study, write_yaml(tmp_path / "mine.yml", setting))
    assert evaluation_problems(load_run(out)) == ()
    edit(folder / "words.yaml", "exact_match", "bleu")
    (text,) = evaluation_problems(load_run(out))
    assert text.startswith("words: its file, its data or how it is scored has changed since. Run")


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
