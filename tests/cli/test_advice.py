"""What a user wrote that is something else: the message says what it is, and what to write."""

import json
import re

import pytest
import torch
import yaml

from tests.report.runs import study_of, write_run
from tests.standins.command import layerswap
from tests.standins.fine_tunes import tune
from tests.standins.merging import recipe, write_recipe
from tests.standins.studies import study_document, write_expert, write_tasks, write_yaml

SWAP = recipe({"task": "./math", "language": "./spanish"}, {"bottom_layers": 1}, base="./base")
EXPERTS = {"base": "./base", "task": "./math", "language": "./spanish"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder of a user's models, recipe, study and run. A test may add files."""
    folder = tmp_path_factory.mktemp("user")
    base = write_expert(folder / "base", 0)
    for seed, name in enumerate(("math", "spanish")):
        tune(base, folder / name, seed, 0.02, torch.float32)
    (folder / "state").mkdir()
    (folder / "state" / "config.json").write_text((base / "config.json").read_text())
    (folder / "state" / "training_args.bin").touch()
    write_tasks(folder / "tasks", ["words"])
    write_recipe(folder / "recipe.yml", SWAP)
    (folder / "mine").mkdir()
    write_yaml(folder / "study.yml", study_document(experts=EXPERTS))
    write_run(folder / "runs" / "my_swap", study_of(), lambda *_: 1.0)
    return folder


def changed(document, **changes):
    return yaml.safe_dump({**document, **changes})


STUDY = study_document(experts=EXPERTS)
ROWS = {
    # One kind of file or folder in the place of another.
    "verify base state": "no model.safetensors",
    "evaluate recipe.yml": "it is a recipe: layerswap merge makes a model of it",
    "run recipe.yml": "is not a study; it is a recipe",
    "run study.yml --experts recipe.yml": "is not an experts file; it is a recipe",
    "check study.yml": "is not a recipe; it is a study: layerswap run evaluates it",
    "merge study.yml out": "is not a recipe; it is a study",
    "evaluate study.yml": "it is a study: layerswap run evaluates it",
    "evaluate runs/my_swap": "it is a run folder: layerswap compare, report and answers take it",
    "run runs/my_swap": "is a folder; it is a run folder",
    "report base": "it is a model's folder: layerswap evaluate takes it",
    "report recipe.yml": "it is a recipe",
    "compare base math": "evaluate it (layerswap evaluate base), or name the run folder",
    "merge base out": "is a folder; it is a model's folder",
    # Near names.
    "report runs/my_swp": "did you mean 'my_swap'?",
    "evaluate mth": "did you mean 'math'?",
    "merge pocket/frobnicate out": "no shipped recipe of that name; layerswap recipes list shows",
    "merge recipe.yml out --cuda": "Write --device cuda.",
    "evaluate --model base": "Write evaluate MODEL: it stands without an option.\n",
    "compare --models base": "Write compare MODEL: it stands without an option.\n",
    "run --study study.yml": "Write run STUDY: it stands without an option.",
    "evaluate base --hf": "Write --backend hf.",
    "recipes list --language spanisch": "there are recipes for bn, de, en, es",
    "train study.yml": "is not a training file; it is a study: layerswap run evaluates it",
    "train recipe.yml": "is not a training file; it is a recipe",
    "evaluate base --benchmarks belebele --languages es": "belebele is in en, ja, bn, sw, te",
    "evaluate base --benchmarks belebele --languages es --json": "belebele_{lang}",
    "evaluate base --set options.dtype=fp16": "did you mean 'float16'?",
}
FILES = {
    "dtype": (changed(SWAP, dtype="fp16"), "did you mean 'float16'?"),
    "method": (
        yaml.safe_dump({"merge_methd": "layer_swap", "models": []}),
        "is not a recipe; merge_methd: unknown key; did you mean 'merge_method'?",
    ),
    "language": (
        changed(STUDY, experts=EXPERTS | {"language": {"swahilli": ["./spanish"]}}),
        "no language 'swahilli'; did you mean 'Swahili'?",
    ),
    "slices": (changed(SWAP, slices=[{"sources": []}]), "every layer keeps its place; write mod"),
    "layers": (
        changed(SWAP, parameters={"placement": "layers", "language_layers": [0, 1]}),
        'must be text, not [0, 1]; write "0,1"',
    ),
    "out_dtype": (
        changed(SWAP, dtype="float32", out_dtype="bfloat16"),
        "is written in bfloat16: what light training changed may be rounded away; write dtype: "
        "float32, and no other out_dtype",
    ),
    "contrasts": (
        changed(STUDY, report={"primary": {"contrasts": [["swap", "soup"]]}}),
        "write the numbers of two settings of vary, from 1, such as [[2, 1]]; the models of "
        "baseline go below against, such as against: [soup]",
    ),
    "name": (changed(STUDY, name="My Swap"), "digits, _ and -, such as my_swap"),
    "twice": (
        changed(STUDY, experts=EXPERTS | {"task": ["./math", "./math"]}),
        "experts.task names ./math twice; name it once",
    ),
    "setting": (
        changed(STUDY, report={"primary": {"against": ["soup"], "setting": {"top_layers": 9}}}),
        "report.primary.setting is not a setting of vary, which begins with {'bottom_layers': 0",
    ),
}


@pytest.mark.parametrize("line", ROWS)
def test_a_message_says_what_was_written_and_what_to_write(line, folder, monkeypatch):
    monkeypatch.chdir(folder)
    result = layerswap(*line.split())
    assert result.exit_code == 2, result.output
    text = result.output
    if "--json" in line:
        text = json.loads(result.stdout)["error"]["message"]
    assert ROWS[line] in text or ROWS[line] in " ".join(text.split()), text


@pytest.mark.parametrize("name", FILES)
def test_a_message_on_a_file_says_what_to_write(name, folder, monkeypatch):
    monkeypatch.chdir(folder)
    content, text = FILES[name]
    (folder / f"{name}.yml").write_text(content)
    is_recipe = "models" in yaml.safe_load(content)
    result = layerswap(*(["check"] if is_recipe else ["run", "--dry-run"]), f"{name}.yml")
    assert text in " ".join(result.output.split()), result.output


def test_the_places_of_a_missing_data_file_are_named(folder, monkeypatch):
    monkeypatch.chdir(folder)
    task = (folder / "tasks" / "words.yaml").read_text()
    (folder / "lost").mkdir()
    (folder / "lost" / "words.yaml").write_text(
        re.sub(r"(?s)test: .+?jsonl", "test: no.jsonl", task)
    )
    options = ("--tasks", "words", "--include-path", "lost", "--backend", "hf")
    output = " ".join(layerswap("evaluate", "base", *options).output.split())
    assert "no.jsonl" in output
    assert f"looked beside {folder}/lost/words.yaml and in the working directory" in output


def test_models_beside_a_recipe_are_named_once(folder, monkeypatch, tmp_path):
    for place, advice in (
        (folder / "mine", f"; {folder} has it: run the command there)"),
        (tmp_path, f"); it is beside recipe.yml: run the command in {folder}"),
    ):
        monkeypatch.chdir(place)
        for words in (("check", folder / "recipe.yml"), ("merge", folder / "recipe.yml", "out")):
            result = layerswap(*words)
            assert result.exit_code == 2
            message = f"./math: no such folder (the current directory is {place}{advice}"
            assert message in result.output
            line = next(line for line in result.output.splitlines() if "./math: no such" in line)
            assert line.count("run the command") == 1


def test_a_study_names_all_experts_that_it_does_not_say_the_place_of(folder, monkeypatch):
    monkeypatch.chdir(folder)
    names = {"base": "bass", "task": "maths_expert", "language": {"es": ["swahili"]}}
    write_yaml(folder / "names.yml", study_document(experts=names))
    result = layerswap("run", "names.yml", "--dry-run")
    assert "does not say where bass, maths_expert, swahili is: add --experts FILE" in result.output
    write_yaml(folder / "mine.yml", {"bass": "./base", "maths_expert": "./math", "es_1": "./base"})
    result = layerswap("run", "names.yml", "--dry-run", "--experts", "mine.yml")
    assert (
        "mine.yml: no expert 'swahili' in the experts file, which names bass, es_1, maths_expert; "
        "for one of them: --set 'experts.language={es: [NAME]}'"
    ) in " ".join(result.output.split())
    write_yaml(folder / "mine.yml", {"bass": "./base", "maths_expert": "./math", "swahili": "./no"})
    result = layerswap("run", "names.yml", "--dry-run", "--experts", "mine.yml")
    assert "mine.yml: expert 'swahili': ./no: no such folder" in result.output
