"""`layerswap card`: mergekit's card, completed, as huggingface_hub's own classes read it."""

import os
import re
import shutil
from dataclasses import replace
from functools import partial

import pytest
import yaml
from huggingface_hub import ModelCard
from huggingface_hub.repocard_data import eval_results_to_model_index
from safetensors.torch import load_file, save_file

from ablations.evaluate import evaluate_model
from ablations.hub_card import model_index, score_section
from ablations.report.compare_models import compare_models
from ablations.runner.run import RunOptions
from ablations.runs.run import load_run
from ablations.scoring.protocol import GenKwargs
from layerswap_method import __version__
from tests.standins import merging
from tests.standins.command import output_of, told
from tests.standins.fine_tunes import edited
from tests.standins.scripted import DATA
from tests.standins.studies import study_document, write_yaml
from tests.standins.tasks import write_rows, write_task
from tests.standins.word_models import write_model

pytestmark = pytest.mark.filterwarnings("ignore")  # engines warn
TASK = "layerswap_mgsm_sw"


@pytest.fixture(scope="module")
def merged(tmp_path_factory):
    """A merge of two random models of one shape."""
    root = tmp_path_factory.mktemp("merge")
    experts = {role: write_model(root / role, n) for n, role in enumerate(("task", "language"))}
    document = merging.recipe(experts, {"bottom_layers": 1, "top_layers": 0}, dtype="float32")
    recipe = root / "recipe.yml"
    recipe.write_text(f"# What: two\n# Languages: en, sw\n{yaml.safe_dump(document)}")
    output_of("merge", recipe, root / "merged")
    return root / "merged"


@pytest.fixture(scope="module")
def scored(merged, tmp_path_factory):
    """A run folder with the scores of `merged`."""
    settings = {"benchmarks": ("mgsm", "belebele"), "data_dir": str(DATA)}
    out = tmp_path_factory.mktemp("scores") / "out"
    options = RunOptions(out=out, backend="hf", settings=settings)
    return evaluate_model(str(merged), options, ("sw",)).out


@pytest.fixture
def model(merged, tmp_path):
    return shutil.copytree(merged, tmp_path / "model")


card = partial(told, "card", "--offline")


def metadata(model):
    return ModelCard.load(model / "README.md").data.to_dict()


def test_mergekits_front_matter_stays_and_is_completed(model):
    before = metadata(model)
    code, said = card(model)
    assert code == 0, said
    assert "the recipe names folders that others lack" in said
    after = metadata(model)
    assert {key: after[key] for key in before} == before
    assert (after["base_model_relation"], after["language"]) == ("merge", ["en", "sw"])
    assert not {"license", "model-index"} & after.keys()
    text = (model / "README.md").read_text()
    assert "No licence is stated for this model" in text
    assert "layers: language 0; task 1" in text
    assert "### Models Merged" in text
    assert f"merged by `layer_swap` of layerswap {__version__}." in text
    card(model)  # a second call writes the same
    assert (model / "README.md").read_text() == text


def test_the_command_for_adapters_is_one_that_works(model):
    recipe = model / "mergekit_config.yml"
    document = yaml.safe_load(recipe.read_text())
    document["models"][0]["model"] += "+./adapter"
    recipe.write_text(yaml.safe_dump(document))
    card(model)
    assert "./merged --lora-merge-cache ./adapters\n" in (model / "README.md").read_text()


@pytest.mark.parametrize(
    ("stated", "licence", "note"),
    [
        (("mit", "mit"), "mit", "All merged models are under mit"),
        (("mit", "llama3.1"), None, "No licence is stated for this model"),
        (("other", "other"), None, "No licence is stated for this model"),
    ],
)
def test_the_licence_is_that_of_all_models_or_none(model, merged, stated, licence, note):
    recipe = model / "mergekit_config.yml"
    text = recipe.read_text()
    for role, name in zip(("task", "language"), stated, strict=True):
        folder = shutil.copytree(merged.parent / role, model.parent / role)
        (folder / "README.md").write_text(f"---\nlicense: {name}\n---\n")
        text = text.replace(str(merged.parent / role), str(folder))
    recipe.write_text(text)
    assert card(model)[0] == 0
    assert metadata(model).get("license") == licence
    assert note in (model / "README.md").read_text()
    assert card(model, "--license", "apache-2.0")[0] == 0
    assert metadata(model)["license"] == "apache-2.0"


@pytest.mark.slow
def test_scores_stand_in_the_table_and_the_index_while_the_model_is_the_same(merged, scored):
    code, said = card(merged, "--results", scored)
    assert code == 0, said
    (cell,) = load_run(scored).cells
    score = next(each for each in cell.task_records if each.task == TASK).evaluation.scores[0]
    data = ModelCard.load(merged / "README.md").data
    assert data.model_name == "merged"
    found = next(each for each in data.eval_results if each.dataset_name == TASK)
    assert found.metric_value == round(100 * score.value, 2)
    assert found.dataset_type == "juletxara/mgsm"
    assert not any("fidelity" in each.metric_name for each in data.eval_results)
    text = (merged / "README.md").read_text()
    low, high = score.interval.low, score.interval.high
    assert f"[{100 * low:.1f}, {100 * high:.1f}] | {score.n} | 8-shot" in text
    assert "An interval (95%) is over the items of the task" in text
    config = merged / "config.json"
    before = config.read_text()
    config.write_text(before.replace("1e-06", "1e-05"))
    try:
        code, said = card(merged, "--results", scored)
        assert code == 2
        assert f"no cell has the weights of {merged}" in said
        assert "layerswap evaluate" in said
    finally:
        config.write_text(before)


def test_two_languages_of_one_data_set_are_two_of_the_index(scored):
    (cell,) = load_run(scored).cells
    record = next(each for each in cell.task_records if each.task == TASK)
    score = record.evaluation.scores[0]
    scores = [score, score.model_copy(update={"task": "layerswap_mgsm_en", "value": 0.7})]
    evaluation = record.evaluation.model_copy(update={"scores": tuple(scores)})
    records = (record.model_copy(update={"evaluation": evaluation}),)
    found = model_index(cell.model_copy(update={"task_records": records}))
    (model,) = eval_results_to_model_index("mine", found)
    told = {one["dataset"]["name"]: one["metrics"] for one in model["results"]}
    assert {name: [metric["value"] for metric in metrics] for name, metrics in told.items()} == {
        TASK: [round(100 * score.value, 2)],
        "layerswap_mgsm_en": [70.0],
    }


def test_the_card_says_how_the_model_was_asked(scored):
    run = load_run(scored)
    (cell,) = run.cells
    plain = score_section(cell, run)
    assert "In place of the tasks' own settings" not in plain
    assert "up to 1024 tokens" in plain
    asked = {
        "apply_chat_template": True,
        "gen_kwargs": GenKwargs(temperature=0.6, max_gen_toks=2048),
        "limit": 3,
    }
    evaluate = run.study.evaluate.model_copy(update=asked)
    head = run.head.model_copy(
        update={"study": run.study.model_copy(update={"evaluate": evaluate})}
    )
    text = score_section(cell, replace(run, head=head)).replace("\\", "")  # Markdown's
    assert "up to 2048 tokens" in text
    assert "up to 1024 tokens" not in text
    assert 'settings: apply_chat_template: true, fewshot_as_multiturn: true, gen_kwargs: {"' in text
    assert '"temperature": 0.6' in text
    assert "Items of each task that were used: the first 3." in text


@pytest.mark.parametrize("template", [None, "{% for m in messages %}{{ m.content }}{% endfor %}"])
def test_the_card_says_how_to_use_the_model(model, template, monkeypatch):
    if template is not None:
        (model / "chat_template.jinja").write_text(template)
    card(model)
    text = (model / "README.md").read_text()
    assert "\n```console\n$ vllm serve OWNER/model\n```\n" in text
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert ("apply_chat_template" in code) == (template is not None)
    said = []
    exec(code.replace("OWNER/model", str(model)), {"print": said.append})
    assert said[0]


@pytest.mark.slow
def test_scores_are_found_by_the_weights_whatever_the_folder_is_called(model, scored):
    code, said = card(model, "--results", scored)
    assert code == 0, said
    assert metadata(model)["model-index"][0]["name"] == "model"
    changed = load_file(model / "model.safetensors")
    changed["model.norm.weight"][0] += 1
    save_file(changed, model / "model.safetensors", {"format": "pt"})
    code, said = card(model, "--results", scored)
    assert (code, f"no cell has the weights of {model}, and none merges" in said) == (2, True)


@pytest.mark.slow
def test_a_merge_of_a_study_is_found_by_its_tensors(model, merged, tmp_path, monkeypatch):
    """It was merged into a running engine, so it has no files that could be compared."""
    tasks = tmp_path / "tasks"
    write_task(tasks, "quiz", write_rows(tasks, [{"prompt": "w1", "answer": "w2"}]))
    recipe = yaml.safe_load((model / "mergekit_config.yml").read_text())
    models = {entry["parameters"]["role"]: entry["model"] for entry in recipe["models"]}
    counts = [{"bottom_layers": n, "top_layers": 1 - n} for n in (0, 1)]
    document = study_document(
        recipe={**recipe, "models": [{"model": role} for role in models], "base_model": "base"},
        baseline=["task_expert"],
        vary=counts,
        experts={role: [role] for role in models},
        evaluate={"tasks": ["quiz"], "include_path": str(tasks)},
    )
    study = write_yaml(tmp_path / "study.yml", document)
    experts = write_yaml(tmp_path / "experts.yml", {"experts": {**models, "base": models["task"]}})
    out = tmp_path / "runs" / "mine"
    output_of("run", study, "--experts", experts, "--backend", "hf", "--out", out)
    code, said = card(model, "--results", out)
    assert code == 0, said
    assert "`quiz`" in (model / "README.md").read_text()
    code, said = card(model, "--results", out, "--cell", "layer swap b=1")
    assert (code, "did you mean 'layer swap b=" in said) == (2, True), said
    monkeypatch.chdir(tmp_path)
    compared = compare_models([str(model), models["task"]])
    assert compared.places[0].startswith("runs/mine:layer swap b=")
    assert compared.models[1] == "task expert"
    for entry in recipe["models"]:
        entry["model"] = os.path.relpath(entry["model"], tmp_path)
    write_yaml(model / "mergekit_config.yml", recipe)
    code, said = card(model, "--results", out)
    assert code == 0, said
    recipe["parameters"]["bottom_layers"] = 2
    write_yaml(model / "mergekit_config.yml", recipe)
    code, said = card(model, "--results", out)
    assert (code, "none merges the same tensors" in said) == (2, True), said


@pytest.mark.slow
def test_scores_of_another_model_are_refused(model, scored):
    edited(model, rms_norm_eps=1e-5)
    (only,) = load_run(scored).cells
    for cell, code, message in (
        ([], 2, "no cell has the weights of"),
        (["--cell", f"{only.label}s"], 2, f"did you mean '{only.label}'?"),
        (["--cell", only.label], 2, "are of other weights, config or tokenizer than"),
    ):
        found = card(model, "--results", scored, *cell)
        assert (found[0], message in found[1]) == (code, True)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("README.md", None, "holds no README.md"),
        ("README.md", b"---\nbase_model: [\n---\n", "is not a card that the hub can read"),
        ("mergekit_config.yml", b"models: []", "is not a recipe; write merge_method:"),
        ("mergekit_config.yml", b"\xff", "cannot be read: it is not UTF-8 text"),
        ("layer_swap_plan.json", b'{"layers": []}', "is damaged; merge the recipe again"),
    ],
)
def test_a_file_that_is_missing_or_damaged_is_named(model, file, content, message):
    (model / file).unlink() if content is None else (model / file).write_bytes(content)
    code, said = card(model)
    assert (code, file in said, message in said) == (2, True, True)
