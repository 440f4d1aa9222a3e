"""What is finished stays finished when words change: a copy of the package is edited and asked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ablations.runner.jobs import run_cells
from ablations.runner.problems import evaluation_problems
from ablations.runner.records import load_run
from ablations.runner.run import FINGERPRINTS, RunOptions, _opened, _write_run_file, dry_run
from ablations.study.files import read_study
from ablations.study.planning import plan_study
from layerswap_method.errors import InputError
from tests.runner.fakes import FakeEvaluator
from tests.standins.scripted import DATA
from tests.standins.studies import study_document, write_yaml

ROOT = Path(__file__).parents[2]
POOLS = {"base": "base", "task": ["math"], "language": {"sw": ["swahili"], "te": ["telugu"]}}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a folder with copies of the packages."""
    for name in ("ablations", "layerswap_method"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, tmp_path / "copy" / name, ignore=ignored)
    return tmp_path / "copy"


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")


def test_words_change_nothing_and_a_task_only_itself(
    tmp_path: Path, copy: Path, experts: Path
) -> None:
    setting = yaml.safe_load(experts.read_text())
    shipped = write_yaml(tmp_path / "shipped.yml", {"experts": setting["experts"]})
    asked = {"benchmarks": ["mgsm"], "data_dir": str(DATA), "limit": 2}
    document = study_document(experts=POOLS, vary={"bottom_layers": [1]}, evaluate=asked)
    study = write_yaml(tmp_path / "study.yml", document)
    out = tmp_path / "run"
    plan = plan_study(read_study(study), shipped, backend="hf", cache=out / FINGERPRINTS)
    _write_run_file(out, plan)
    evaluator = FakeEvaluator()
    run_cells(out, plan.cells, evaluator, protocol=plan.protocol, progress=False)
    assert len(evaluator.seen) == 6  # base and task expert in both languages, a merge for each

    def left() -> str:
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
    edit(package / "evaluate" / "table5.py", '"also"', '"besides"')
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


def test_a_report_names_a_task_that_has_changed_since(
    tmp_path: Path, models: Path, experts: Path
) -> None:
    folder = shutil.copytree(models / "tasks", tmp_path / "tasks")
    setting = yaml.safe_load(experts.read_text()) | {"include_path": str(folder)}
    asked = {"tasks": ["words", "words_sw"]}
    study = write_yaml(tmp_path / "study.yml", study_document(evaluate=asked, vary=None))
    plan = plan_study(read_study(study), write_yaml(tmp_path / "mine.yml", setting), backend="hf")
    out = tmp_path / "run"
    _write_run_file(out, plan)
    run_cells(out, plan.cells, FakeEvaluator(), protocol=plan.protocol, progress=False)
    assert evaluation_problems(load_run(out)) == ()
    edit(folder / "words.yaml", "exact_match", "bleu")
    (text,) = evaluation_problems(load_run(out))
    assert text.startswith("words: its file, its data or how it is scored has changed since. Run")


def test_a_task_a_language_or_a_baseline_is_asked_alone(tmp_path: Path, experts: Path) -> None:
    out = tmp_path / "run"

    def asked(**changes: Any) -> set[tuple[str, str]]:
        """Return label and task of what a study asks beyond those before."""
        pools = {"task": ["math"], "language": {"sw": ["swahili"]}}
        tasks = {"tasks": ["words"], "languages": {"sw": ["words_sw"]}}
        whole = {"experts": pools, "evaluate": tasks, "baseline": ["base"], "vary": None, **changes}
        study = write_yaml(tmp_path / "study.yml", study_document(**whole))
        cells = plan_study(read_study(study), experts, backend="hf").cells
        names = {key: (c.label, task) for c in cells for task, key in c.records.items()}
        evaluator = FakeEvaluator()
        run_cells(out, cells, evaluator, progress=False)
        return {names[key] for key in evaluator.seen}

    first = {("base", "words"), ("base", "words_sw"), ("recipe", "words"), ("recipe", "words_sw")}
    assert asked() == first
    assert asked() == set()
    assert asked(baseline=["base", "soup"]) == {("soup", "words"), ("soup", "words_sw")}
    more = {"tasks": ["words", "words_te"], "languages": {"sw": ["words_sw"]}}
    assert asked(evaluate=more) == {("base", "words_te"), ("recipe", "words_te")}
    pools = {"task": ["math"], "language": {"sw": ["swahili"], "te": ["telugu"]}}
    languages = {"tasks": ["words"], "languages": {"sw": ["words_sw"], "te": ["words_te"]}}
    telugu = "math+telugu"
    assert asked(experts=pools, evaluate=languages) == {(telugu, "words"), (telugu, "words_te")}


def test_other_experts_have_a_folder_of_their_own(
    tmp_path: Path, models: Path, experts: Path
) -> None:
    """Experts of the same names in other places are refused, but for copies of the same."""
    study = write_yaml(tmp_path / "study.yml", study_document(experts_file="experts.yml"))
    other = write_yaml(tmp_path / "mine.yml", yaml.safe_load(experts.read_text()))
    folders = [_opened(str(study), RunOptions(experts=e))[1] for e in (None, experts, other)]
    assert [folder.name for folder in folders] == ["small", "small", "small-mine"]

    def write(**places: Path) -> None:
        setting = yaml.safe_load(experts.read_text())
        setting["experts"] |= {name: str(place) for name, place in places.items()}
        file = write_yaml(tmp_path / "moved.yml", setting)
        plan = plan_study(read_study(study), file, backend="hf", cache=out / FINGERPRINTS)
        _write_run_file(out, plan)

    out = tmp_path / "run"
    copied = shutil.copytree(models / "swahili", tmp_path / "copied")
    write()
    write(swahili=copied)  # the same experts in another place
    with pytest.raises(InputError, match=r"other experts \(language was .*copied and is now"):
        write(swahili=models / "telugu")
    moved = RunOptions(experts=tmp_path / "moved.yml", out=out, backend="hf")
    with pytest.raises(InputError, match="holds a run of other experts"):
        dry_run(str(study), moved)
    shutil.copytree(models / "telugu", copied, dirs_exist_ok=True)
    write(swahili=copied)


def test_a_run_names_experts_of_the_hub_by_their_commit(
    tmp_path: Path, models: Path, experts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "hub" / "models--org--swahili"
    shutil.copytree(models / "swahili", folder / "snapshots" / "0123abc")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("0123abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    setting = yaml.safe_load(experts.read_text())
    setting["experts"]["swahili"] = "org/swahili"
    file = write_yaml(tmp_path / "hub.yml", setting)
    study = write_yaml(tmp_path / "study.yml", study_document())
    plan = plan_study(read_study(study), file, backend="hf")
    for _ in range(2):  # the second call finds the first one's run
        head = _write_run_file(tmp_path / "run", plan)
    assert head.experts["swahili"] == "org/swahili@0123abc"


def test_experts_that_the_study_names_by_their_place_are_refused_as_well(
    tmp_path: Path, models: Path
) -> None:
    def write(language: str) -> None:
        names = {"base": "base", "task": "math", "language": language}
        pools = {role: str(models / name) for role, name in names.items()}
        evaluate = {"tasks": ["words"], "include_path": str(models / "tasks")}
        document = study_document(experts=pools, evaluate=evaluate)
        study = write_yaml(tmp_path / "study.yml", document)
        plan = plan_study(read_study(study), None, backend="hf")
        _write_run_file(tmp_path / "run", plan)

    write("swahili")
    write("swahili")
    with pytest.raises(InputError, match=r"other experts \(language was .*swahili and is now"):
        write("telugu")
