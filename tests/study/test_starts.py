"""`layerswap init` and the page on study files: what they show works as it is."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from ablations.engines.task_loading import load_tasks
from ablations.runs.records import load_run
from ablations.scoring.evaluation import EvaluationRequest
from ablations.study.files import ExpertsFile
from ablations.study.schema import Study
from tests.standins.command import layerswap, output_of
from tests.standins.studies import write_expert, write_tasks
from tools import study_page
from tools.study_page import PAGE

TASKS = ("pocket_math_sw", "pocket_math_en", "pocket_translate_en_sw")


@pytest.fixture
def pocket(tmp_path, monkeypatch):
    """Return a working directory with stand-ins for the pocket experts in runs/pocket."""
    for seed, name in enumerate(("base", "task", "language")):
        write_expert(tmp_path / "runs" / "pocket" / name, seed, layers=8)
    write_tasks(tmp_path / "runs" / "pocket" / "tasks", TASKS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def examples():
    page = Path(__file__).parents[2] / "docs" / "studies.md"
    return re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.mark.slow
def test_the_study_of_init_runs(pocket):
    told = output_of("init", "study")
    assert told == "study.yml is written. Edit it, then run: layerswap run study.yml --dry-run\n"
    assert "\n6 cells (layers" in output_of("run", "study.yml", "--dry-run", "--backend", "hf")
    told = output_of("run", "study.yml", "--backend", "hf")
    assert "6 cells evaluated, 0 failed" in told
    cells = load_run(pocket / "runs" / "my_study").cells
    assert {score.task for cell in cells for score in cell.scores} == set(TASKS[:2])


def test_the_experts_of_init_run_a_shipped_study(pocket):
    told = output_of("init", "experts", "here/mine.yml")
    arguments = ["run", "layer_count", "--experts", "here/mine.yml", "--dry-run"]
    assert told.endswith(f"then run: layerswap {' '.join(arguments)}\n")
    assert "\n9 cells (layers" in output_of(*arguments, "--backend", "hf")
    text = (pocket / "here" / "mine.yml").read_text()
    assert "--experts mine.yml" in text


def test_the_recipe_of_init_merges(pocket):
    assert "mergekit-yaml recipe.yml ./merged" in output_of("init", "recipe")
    told = output_of("merge", "recipe.yml", "merged")
    assert (pocket / "merged" / "layer_swap_plan.json").is_file(), told


def test_the_examples_of_the_page_work(pocket):
    study, own_task = examples()
    (pocket / "study.yml").write_text(study)
    assert "\n6 cells (layers" in output_of("run", "study.yml", "--dry-run", "--backend", "hf")
    (pocket / "own" / "tasks").mkdir(parents=True)
    (pocket / "own" / "tasks" / "story_sw.yaml").write_text(own_task)
    (pocket / "own" / "tasks" / "story_sw.jsonl").write_text('{"question": "w1", "answer": "w2"}')
    (task,), _ = load_tasks(
        EvaluationRequest(tasks=("story_sw",), include_path=pocket / "own" / "tasks")
    )
    assert task.doc_to_text(task.eval_docs[0]) == "w1\nJibu:"


def test_init_keeps_what_is_there(pocket):
    (pocket / "study.yml").write_text("mine")
    result = layerswap("init", "study")
    assert (result.exit_code, "study.yml: exists; add --force" in result.output) == (2, True)
    assert (pocket / "study.yml").read_text() == "mine"
    output_of("init", "study", "--force")
    assert (pocket / "study.yml").read_text().startswith("# A study")
    (pocket / "folder").mkdir()
    result = layerswap("init", "recipe", "folder")
    assert "folder: is a folder; name a file in it, such as folder/recipe.yml" in result.output
    assert layerswap("init", "studdy").exit_code == 2


def test_the_page_says_what_the_schema_says():
    assert CliRunner().invoke(study_page.main, ["--check"]).exit_code == 0
    text = PAGE.read_text()
    for model in (Study, *Study.model_fields["evaluate"].annotation.__mro__[:3], ExpertsFile):
        for name, field in model.model_fields.items():
            assert field.description, f"{model.__name__}.{name} has no text"
            assert f"| `{name}` |" in text
