"""`--json`: one object that docs/python.md describes, and nothing else on stdout; errors, too."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from ablations.cli import main
from ablations.cli.json_output import as_json_text
from tests.engines.backends import BACKENDS
from tests.report.runs import level, study_of, write_run
from tests.standins.command import layerswap
from tests.standins.fine_tunes import rewritten
from tests.standins.merging import recipe, roles, write_recipe
from tests.standins.model_families import LAYERS
from tests.standins.tasks import write_tasks
from tests.standins.word_models import write_model

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
SECTION = PAGE[PAGE.index("\n## JSON") :]
ROWS = re.findall(r"^\| `layerswap ([a-z -]+)` \| (.+) \|$", SECTION, re.MULTILINE)
KEYS = {command: re.findall(r"`(\w+)`", keys) for command, keys in ROWS}
TEXTS = dict(re.findall(r"^- \*\*([a-z ]+)\*\*: ((?:.+\n)+?)(?=- \*\*|$|\Z)", SECTION, re.M))


def strict(text):
    """Read JSON as its standard has it, which knows no NaN."""

    def refuse(name):
        raise ValueError(name)

    return json.loads(text, parse_constant=refuse)


def object_of(*words, code=0):
    """Return the object of a command, whose keys must be those of the page."""
    result = layerswap(*words, "--json")
    assert result.exit_code == code, result.output
    assert result.stdout.isascii()
    made = strict(result.stdout)
    line = " ".join(map(str, words))
    command = next(name for name in KEYS if f"{line} ".startswith(f"{name} "))
    assert list(made) == KEYS[command]
    return made


def described(command):
    return set(re.findall(r"`(\w+)`", TEXTS[command]))


@pytest.fixture
def recipe_file(trio, tmp_path):
    return write_recipe(
        tmp_path / "recipe.yml", recipe(roles(trio), {"bottom_layers": 1}, trio.base)
    )


def test_the_page_has_every_command_with_the_option():
    def walk(command, path):
        if hasattr(command, "list_commands"):
            context = command.make_context("layerswap", [], resilient_parsing=True)
            for name in command.list_commands(context):
                yield from walk(command.get_command(context, name), [*path, name])
        elif any(parameter.name == "as_json" for parameter in command.params):
            yield " ".join(path)

    assert set(walk(main, [])) == set(KEYS)
    assert len(KEYS) > 7


def test_check_and_its_exit_code(recipe_file, tmp_path):
    assert object_of("check", recipe_file) == {
        "recipes": [{"recipe": str(recipe_file), "findings": []}],
        "errors": 0,
        "warnings": 0,
    }
    recipe_file.write_text(recipe_file.read_text().replace("bottom", "botom"))
    made = object_of("check", recipe_file, code=2)
    (finding,) = made["recipes"][0]["findings"]
    assert (finding["level"], "bottom_layers" in finding["message"]) == ("error", True)
    assert made["errors"] == 1


def test_plan(recipe_file):
    made = object_of("plan", recipe_file)
    assert made["layers"] == ["language", *["task"] * (LAYERS - 3), *["language"] * 2]
    assert "\n".join(made["lines"]) == layerswap("plan", recipe_file).stdout.rstrip("\n")
    assert set(made["models"].values()) == {"base", "task", "language"}


def test_verify_where_a_difference_is_no_number(trio, tmp_path):
    assert object_of("verify", trio.base, trio.base)["is_equal"] is True

    def edit(name, tensor):
        return tensor * torch.nan if name == "model.norm.weight" else tensor

    broken = rewritten(trio.base, tmp_path / "broken", edit)
    made = object_of("verify", broken, trio.base, code=1)
    (difference,) = made["differences"]
    assert set(difference) <= described("verify")
    assert difference["name"] == "model.norm.weight"
    assert (difference["layer"], difference["largest"]) == (None, None)


def test_runs(tmp_path):
    folder = tmp_path / "runs" / "mine"
    run = write_run(folder, study_of(baseline=["base", "soup"]), level, items=5)
    (row,) = object_of("runs", tmp_path / "runs")["runs"]
    assert described("runs") - {"runs"} <= {*row}
    assert row["folder"] == str(folder)
    assert row["models"] == [model.label for model in run.models]


def test_compare(tmp_path):
    tasks = {"tasks": ["pocket_math_sw"]}
    run = write_run(tmp_path, study_of(baseline=["base", "soup"], evaluate=tasks), level, items=30)
    made = object_of("compare", f"{tmp_path}:soup", f"{tmp_path}:base")
    (row,) = made["comparisons"]
    assert described("compare") - {"scores", "comparisons", "places"} <= {*row, *made["scores"][0]}
    assert row["verdict"] in ("better", "cannot tell")
    assert [score["model"] for score in made["scores"]] == made["models"]
    assert len(run.cells) == 3


def test_lists(trio):
    recipes = object_of("recipes", "list", "--language", "te")["recipes"]
    assert {*recipes[0]} == described("recipes list")
    assert all("te" in one["languages"] for one in recipes)
    assert {*object_of("studies", "list")["studies"][0]} == described("studies list")
    made = object_of("tasks", "--language", "swahili", "--benchmark", "mgsm")["tasks"]
    assert {*made[0]} == described("tasks")
    assert {task["name"] for task in made} >= {"layerswap_mgsm_sw", "mgsm_direct_sw"}
    assert {task["language"] for task in made} == {"sw"}
    made = object_of("compat", trio.task, trio.language, "--base", trio.base)
    assert made["problems"] == made["warnings"] == []
    assert all(0 < change < 0.5 for change in made["changes"])
    assert object_of("cache")["removed"] is False


def test_what_writes_files_says_where(trio, recipe_file, tmp_path, monkeypatch):
    made = object_of("merge", recipe_file, tmp_path / "merged")
    assert made["folder"] == str(tmp_path / "merged")
    assert any("layers" in line for line in made["lines"])
    card = object_of("card", tmp_path / "merged", "--offline")
    assert card == {"file": made["folder"] + "/README.md", "lines": [made["folder"] + "/README.md"]}
    delta = object_of("delta", trio.task, "--base", trio.base, "--out", tmp_path / "delta")
    assert delta["folder"] == str(tmp_path / "delta")
    assert str(tmp_path / "delta" / "delta.csv") in delta["lines"]
    run = write_run(tmp_path / "run", study_of(baseline=["base"]), level, items=9)
    monkeypatch.chdir(tmp_path)
    report = object_of("report", "run", "--format", "csv")
    assert report["folder"] == f"{run.path}/report"
    assert all(Path(file).is_absolute() and Path(file).is_file() for file in report["files"])
    assert report["answer"] in layerswap("report", run.path, "--format", "csv").stdout


@pytest.mark.slow
def test_a_failure_of_mergekit_is_one_too(recipe_file, tmp_path):
    failed = layerswap("merge", recipe_file, tmp_path / "out", "--json", "--", "--no-such-option")
    assert (failed.exit_code, strict(failed.stdout)["error"]["kind"]) == (2, "input")


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_evaluate_as_a_program_whose_engines_log(backend, tmp_path):
    """The processes of an engine inherit stdout, and some libraries print there."""
    model, folder = write_model(tmp_path / "model"), write_tasks(tmp_path / "tasks")
    words = ["evaluate", model, "--tasks", "words_generate", "--include-path", folder, "--json"]
    words += ["--limit", "2", "--backend", backend, "--out", tmp_path / "run"]
    words += ["--set", "options.kv_cache_gib=1", "--set", "options.gpu_memory_utilization=0.3"]
    command = [sys.executable, "-c", "from ablations.cli import main; main()", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    made = strict(done.stdout)
    assert list(made) == KEYS["evaluate"]
    assert {"scores", *made["scores"][0]} == described("evaluate")
    assert made["scores"][0]["n"] == 2
    assert (made["folder"], made["engine"]) == (str(tmp_path / "run"), backend)
    assert not any("percent" in note for note in made["notes"])
    assert "evaluated in" in done.stderr


ERRORS = [
    (["chek", "--json"], 2, "did you mean 'check'?"),
    (["check", "--json"], 2, "Missing argument"),
    (["check", "nothing.yml", "--json"], 2, "no such file"),
    (["plan", "swahili", "--layers", "6", "--json"], 2, "more than the model's 6 layers"),
    (["compare", "--json", "here", "there"], 2, "no such folder"),
    (["evaluate", "x", "--limit", "0", "--json"], 2, "--limit"),
    (["plan", "swahili", "--lyers", "6", "--json"], 2, "No such option"),
]


@pytest.mark.parametrize(("words", "code", "text"), ERRORS, ids=lambda each: str(each)[:30])
def test_an_error_is_an_object_with_the_same_exit_code(words, code, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = layerswap(*words)
    made = strict(result.stdout)
    assert (result.exit_code, list(made)) == (code, ["error"])
    assert list(made["error"]) == ["kind", "message"]
    assert (made["error"]["kind"], text in made["error"]["message"]) == ("input", True)
    plain = layerswap(*[word for word in words if word != "--json"])
    assert (plain.exit_code, plain.stdout) == (code, "") or "--json" in text


@pytest.mark.parametrize(
    "words",
    [["init", "study", "--json"], ["recipes", "copy", "soup", "--json"]],
)
def test_of_a_command_without_the_option_an_error_is_text(words):
    result = layerswap(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Error: No such option '--json'" in result.stderr


def test_a_failure_is_one_too(monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device", "/out\x1b[2J")

    monkeypatch.setattr("ablations.recipe_commands.find.list_recipes", fail)
    result = layerswap("recipes", "list", "--json")
    message = "/out\x1b[2J: No space left on device"
    assert (result.exit_code, strict(result.stdout)) == (
        1,
        {"error": {"kind": "failure", "message": message}},
    )
    assert "\x1b" not in result.output


def test_numbers_and_frames_become_what_json_has():
    frame = pd.DataFrame({"n": [1, 2], "p": [0.5, math.nan], "name": ["a", None]})
    content = {"frame": frame, "inf": math.inf, "bool": np.bool_(True), "n": np.int64(3)}
    made = strict(as_json_text({**content, "nan": np.float32("nan"), "path": Path("x")}))
    assert made["frame"] == [
        {"n": 1, "p": 0.5, "name": "a"},
        {"n": 2, "p": None, "name": None},
    ]
    rest = {"inf": None, "bool": True, "n": 3, "nan": None, "path": "x"}
    assert {name: made[name] for name in rest} == rest


PRINTS = """
import os, subprocess, sys
import ablations.recipe_commands.find as find
listed = find.list_recipes
def noisy(language):
    print("of Python")
    os.write(1, b"of a library\\n")
    subprocess.run(["echo", "of a process"])
    return listed(language)
find.list_recipes = noisy
sys.argv = ["layerswap", "recipes", "list", "--json"]
from ablations.cli import main
main()
"""


def test_what_is_printed_by_others_goes_to_stderr():
    command = [sys.executable, "-c", PRINTS]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert len(strict(done.stdout)["recipes"]) > 40
    for text in ("of Python", "of a library", "of a process"):
        assert text in done.stderr
