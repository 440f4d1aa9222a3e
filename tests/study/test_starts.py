"""`layerswap init` and the page on study files: what they show works as it is."""

import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from ablations.engines.task_loading import load_tasks
from ablations.requests.resolve import resolve
from ablations.runner import run as runner_run
from ablations.runner.run import RunOptions
from ablations.runs.run import load_run
from ablations.scoring.evaluation import EvaluationRequest
from ablations.study.files import STUDIES, ExpertsFile, read_study
from ablations.study.schema import Study
from ablations.train.config import read_training_file
from tests.standins.command import layerswap, output_of
from tests.standins.scripted import DATA
from tests.standins.studies import write_expert, write_tasks
from tests.train.conftest import write_base
from tools import study_page
from tools.study_page import PAGE

ROOT = Path(__file__).parents[2]
TASKS = ("pocket_math_sw", "pocket_math_en", "pocket_translate_en_sw")


@pytest.fixture
def pocket(tmp_path, monkeypatch):
    """Return a working directory with stand-ins for the pocket experts in runs/pocket."""
    for seed, name in enumerate(("base", "task", "language")):
        write_expert(tmp_path / "runs" / "pocket" / name, seed, layers=8)
    write_tasks(tmp_path / "runs" / "pocket" / "tasks", TASKS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def examples(page="studies"):
    text = (ROOT / "docs" / f"{page}.md").read_text()
    return re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)


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
    listed = output_of(*arguments, "--backend", "hf", "--limit", "100")
    assert "\n9 cells (layers" in listed
    assert re.search(
        r"\nWith 100 items and .+, differences of [\d.]+ points or more would prob", listed
    )
    text = (pocket / "here" / "mine.yml").read_text()
    assert "--experts mine.yml" in text


def test_the_training_file_of_init_trains(pocket):
    shutil.rmtree(pocket / "runs")
    write_base(pocket / "runs/pocket/base", num_hidden_layers=8, max_position_embeddings=2048)
    told = output_of("init", "train", "my_expert.yml")
    assert told.endswith("then run: layerswap train my_expert.yml --out runs/experts/mine\n")
    short = ["samples=8", "held_out=1", "trainer.save_steps=1", "measure=false"]
    settings = [word for setting in short for word in ("--set", setting)]
    output_of("train", "my_expert.yml", "--out", "runs/experts/mine", *settings)
    assert (pocket / "runs/experts/mine/config.json").is_file()
    text = (pocket / "my_expert.yml").read_text()
    assert "layerswap train my_expert.yml" in text
    commented = re.findall(r"^ *# ((?:template|lora):.*?)(?: #.*)?$", text, re.MULTILINE)
    assert len(commented) == 2  # which work, too
    lines = "\n".join([*commented, "regime: lora"])
    (pocket / "other.yml").write_text(text.replace("regime: full", lines))
    config = read_training_file("other.yml")
    assert (config.template, config.lora["r"], config.regime.kind) == ("chat", 16, "lora")


def test_the_list_has_every_study():
    _, _, *rows = (re.split("  +", line) for line in output_of("studies", "list").splitlines())
    assert [name for name, *_ in rows] == sorted(path.stem for path in STUDIES.glob("*.yml"))
    assert all(question.endswith("?") for _, _, question in rows)


@pytest.mark.parametrize(
    ("out", "file", "name"),
    [("mine", "mine/layer_count.yml", "layer_count"), ("my/Own.yml", "my/Own.yml", "layer_count")],
)
def test_a_copied_study_runs_where_it_stands(pocket, out, file, name):
    assert output_of("studies", "copy", "layer_count", out) == f"{file}\n"
    text = Path(file).read_text()
    assert f"# Run:      layerswap run {file}\n# Needs:" in text
    listed = output_of("run", file, "--dry-run", "--backend", "hf")
    shipped = output_of("run", "layer_count", "--dry-run", "--backend", "hf")
    assert listed == shipped
    assert read_study(Path(file)).study.name == name
    for words, message in (
        (["layer_count", out], f"{file}: exists already; name another file"),
        (["layer_cont"], "no study 'layer_cont' ships; did you mean 'layer_count'?"),
    ):
        result = layerswap("studies", "copy", *words)
        assert (result.exit_code, message in result.output) == (2, True)


def test_a_study_copied_to_another_name_has_a_run_folder_of_its_own(pocket):
    output_of("studies", "copy", "table_6.yml", "mine.yml")
    assert "\nname: mine\n" in Path("mine.yml").read_text()
    file, out = runner_run.open_study("mine.yml", RunOptions())
    assert (out, file.experts_file.name) == (pocket / "runs/mine", "pocket_trained.yml")


@pytest.mark.parametrize("name", sorted(path.stem for path in STUDIES.glob("*.yml")))
def test_every_copied_study_is_what_it_was_but_for_its_name(name, tmp_path):
    output_of("studies", "copy", name, tmp_path / "mine.yml")
    copy, shipped = read_study(tmp_path / "mine.yml"), read_study(STUDIES / f"{name}.yml")
    assert copy.experts_file.samefile(shipped.experts_file)
    update = {"name": name, "experts_file": shipped.study.experts_file}
    assert copy.study.model_copy(update=update) == shipped.study


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
    request = EvaluationRequest(tasks=("story_sw",), include_path=pocket / "own" / "tasks")
    (task,) = load_tasks(resolve(request))
    assert task.doc_to_text(task.eval_docs[0]) == "w1\nJibu:"


def test_the_development_set_of_the_page_is_asked_as_mgsm_is(tmp_path):
    (own_task,) = [example for example in examples("search") if example.startswith("include")]
    (tmp_path / "ablations").symlink_to(ROOT / "ablations")
    tasks, data = tmp_path / "tasks", tmp_path / "mgsm"
    shutil.copytree(DATA / "mgsm", data)
    (tasks / "dev_sw.yaml").parent.mkdir()
    (tasks / "dev_sw.yaml").write_text(own_task)
    shutil.copy(data / "sw_train.jsonl", data / "dev_sw_train.jsonl")
    (data / "dev_sw_test.jsonl").write_text('{"question": "Ngapi?", "answer_number": 2}\n')
    request = EvaluationRequest(
        tasks=("dev_sw", "layerswap_mgsm_sw"), include_path=tasks, data_dir=tmp_path
    )
    own, shipped = load_tasks(resolve(request))
    (item,), first = own.eval_docs, shipped.eval_docs[0]
    assert own.doc_to_target(item) == "2"
    prompts = [
        task.fewshot_context(doc, 8).replace(doc["question"], "")
        for task, doc in ((own, item), (shipped, first))
    ]
    assert prompts[0] == prompts[1]
    assert prompts[0].count("Swali: ") == 9


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
