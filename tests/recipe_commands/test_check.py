"""`layerswap check`: all that is wrong at once, on files and on models that are here."""

import re
import shutil
from pathlib import Path

import pytest
import torch
import transformers
import yaml

from layerswap_method.recipe.references import named_models
from tests.standins import merging
from tests.standins.command import layerswap
from tests.standins.fine_tunes import edited, train_adapter, tune
from tests.standins.model_families import make_model
from tests.standins.recipe_files import RECIPES, ROOT

ONE_EACH = {"bottom_layers": 1, "top_layers": 1}


@pytest.fixture(scope="module")
def experts(tmp_path_factory):
    root = tmp_path_factory.mktemp("experts")
    sizes = {"num_hidden_layers": 4, "dtype": torch.float32}
    own = {"deep": {"num_hidden_layers": 5}}
    made = {
        role: make_model("llama", root / role, seed, **{**sizes, **own.get(role, {})})
        for seed, role in enumerate(("task", "deep"))
    }
    return made | {"language": tune(made["task"], root / "language", 2, 0.002)}


@pytest.fixture
def check(tmp_path):
    """Return a function that checks a document, or what its words name: code and findings."""

    def call(what, *words):
        if isinstance(what, dict):
            path = tmp_path / "recipe.yml"
            path.write_text(yaml.safe_dump(what, sort_keys=False))
            what = path
        result = layerswap("check", what, *words)
        lines = re.findall(r"^.*?: (error|warning|note): (.*)$", result.output, re.MULTILINE)
        return result.exit_code, lines

    return call


def swap(experts, language="language", **parameters):
    models = {"task": experts["task"], "language": experts[language]}
    return merging.recipe(models, parameters or ONE_EACH, dtype="float32")


def test_a_good_recipe_has_no_finding(tmp_path, experts, check):
    assert check(swap(experts), "--strict") == (0, [])
    result = layerswap("check", tmp_path / "recipe.yml")
    assert result.output == "1 recipe: 0 errors, 0 warnings\n"


def test_every_problem_is_named_at_once(experts, check):
    document = swap(experts, botom_layers=1, top_layers=-1)
    document["models"][1]["parameters"] = {"role": "langauge"}
    wrong = {"dtype": "bfloat61", "tokeniser": "base", "chat_template": "chatlm"}
    code, found = check(document | wrong)
    assert code == 2
    for part in (
        "parameters.botom_layers: unknown key; did you mean 'bottom_layers'?",
        "parameters.top_layers: must be 0 or more, not -1",
        "did you mean 'language'?",
        "dtype: 'bfloat61' must be one of",
        "tokeniser: unknown key",
        "chat_template: 'chatlm' is neither a template nor one's name; did you mean 'chatml'?",
    ):
        assert any(part in message for level, message in found if level == "error"), part


def test_layer_counts_and_depths_are_checked_against_the_models(experts, check):
    message = "bottom_layers + top_layers = 3 + 2 = 5 is more than the model's 4 layers"
    assert check(swap(experts, bottom_layers=3, top_layers=2)) == (2, [("error", message)])
    code, found = check(swap(experts, "deep"))
    assert (code, "different depths" in found[0][1]) == (2, True)


def test_warnings_fail_only_if_asked(experts, check):
    document = swap(experts, bottom_layers=2, top_layers=1)
    code, ((level, message),) = check(document)
    assert (code, level) == (0, "warning")
    assert "3 of the 4 layers" in message
    assert check(document, "--strict")[0] == 2


def test_parameters_that_mergekits_own_methods_do_not_have(experts, check):
    entry = {"model": str(experts["task"]), "parameters": {"wieght": 0.5}}
    other = {"model": str(experts["language"]), "parameters": {"weight": 0.5}}
    document = {"merge_method": "linear", "models": [entry, other], "dtype": "float32"}
    code, ((_, first), (_, second)) = check({**document, "parameters": {"normalise": True}})
    assert code == 2
    assert first.startswith("models[0]: unknown parameter 'wieght' of linear, which mergekit ign")
    assert second.endswith("did you mean 'normalize'?")
    del document["models"][0]["parameters"]["wieght"]
    _, ((_, message),) = check(document | {"chat_template": "chatlm"})
    assert "did you mean 'chatml'?" in message


def test_a_config_on_the_hub_is_enough_for_the_layer_counts(experts, check, monkeypatch):
    def download(repository, file, revision):
        return str(experts[repository.removeprefix("owner/")] / file)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    monkeypatch.setattr("ablations.recipe_commands.model_facts.hub_answers", lambda: True)
    models = {"task": "owner/task", "language": "owner/language"}
    counts = {"bottom_layers": 4, "top_layers": 2}
    code, found = check(merging.recipe(models, counts, dtype="float32"))
    assert code == 2
    assert "4 + 2 = 6 is more than the model's 4 layers" in found[0][1]
    unpinned = [message for level, message in found if level == "note"]
    assert len(unpinned) == 2
    assert all("names no revision" in message for message in unpinned)


@pytest.mark.parametrize(
    ("language", "code", "level"), [("{}/gone", 2, "error"), ("nobody/gone@main", 0, "note")]
)
def test_a_folder_that_is_not_here_is_an_error_and_a_hub_id_a_note(
    tmp_path, experts, check, language, code, level
):
    found = check(swap({**experts, "language": language.format(tmp_path)}), "--offline")
    assert (found[0], [each for each, _ in found[1]]) == (code, [level])


def test_the_last_line_says_how_many_models_were_not_looked_at(tmp_path, experts):
    """Each once, in however many recipes it is."""
    gone, lost = {"language": "nobody/gone@main"}, {"task": "nobody/lost@main"}
    (tmp_path / "one.yml").write_text(yaml.safe_dump(swap(experts | gone)))
    (tmp_path / "other.yml").write_text(yaml.safe_dump(swap(experts | gone | lost)))
    for recipe, end in (
        (tmp_path / "one.yml", "1 recipe: 0 errors, 0 warnings, 1 model not checked\n"),
        (tmp_path, "2 recipes: 0 errors, 0 warnings, 2 models not checked\n"),
        (ROOT / "recipes/swahili.yml", "1 recipe: 0 errors, 0 warnings, 3 models not checked\n"),
    ):
        assert layerswap("check", recipe, "--offline").output.endswith(f"\n{end}")


def test_a_folder_without_weights_is_an_error(tmp_path, experts, check):
    (tmp_path / "config.json").write_bytes((experts["language"] / "config.json").read_bytes())
    code, ((level, message),) = check(swap({**experts, "language": tmp_path}))
    assert (code, level) == (2, "error")
    assert "has no weights" in message


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("{}/r.yml", "a: 1\na: 2\n", "has the key 'a' again"),
        ("{}/r.yml", "a: [\n", "cannot be read"),
        ("swahilli.yml", "", "did you mean 'swahili.yml'?"),
        ("{}/gone.yml", "", "gone.yml: no such file"),
        ("{}/empty", "", "holds no recipe"),
    ],
)
def test_what_is_no_recipe(tmp_path, name, text, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "r.yml").write_text(text)
    result = layerswap("check", name.format(tmp_path))
    assert (result.exit_code, message in result.output) == (2, True)


def test_every_shipped_recipe_passes(check, monkeypatch):
    monkeypatch.chdir(ROOT)
    code, found = check("recipes", "--offline")
    assert code == 0
    assert {level for level, _ in found} <= {"warning", "note"}
    assert all("names no revision" in message for level, message in found if level == "warning")
    assert len(RECIPES) > 40


def test_a_fresh_clone_has_no_error_and_one_line_a_model(tmp_path, check, monkeypatch):
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    monkeypatch.chdir(tmp_path)
    code, found = check("recipes", "--offline")
    assert (code, {level for level, _ in found} - {"note", "warning"}) == (0, set())
    result = layerswap("check", "recipes/community", "--offline")
    for recipe in sorted(Path("recipes/community").glob("*.yml")):
        lines = [line for line in result.output.splitlines() if line.startswith(f"{recipe}: ")]
        assert len(lines) == len({*named_models(yaml.safe_load(recipe.read_text()))}), lines


@pytest.mark.parametrize("name", ["./experts/own/{}", "org/base+./experts/own/{}"])
def test_a_placeholder_is_a_note_until_its_folder_is_there(name, tmp_path, check, monkeypatch):
    monkeypatch.chdir(tmp_path)
    models = {role: name.format(role) for role in ("task", "language")}
    base = "org/base" if "+" in name else None
    document = merging.recipe(models, ONE_EACH, base, dtype="float32")
    code, found = check(document, "--offline")
    placeholders = [message for level, message in found if "a placeholder: put a model" in message]
    assert (code, len(placeholders), {level for level, _ in found}) == (0, 2, {"note"})
    assert all("./experts/own/" in message for message in placeholders)
    recipe = merging.write_recipe(tmp_path / "recipe.yml", document)
    result = layerswap("merge", recipe, "out")
    assert (result.exit_code, Path("out").exists()) == (2, False)
    if "+" not in name:
        assert result.output.startswith("Error: ./experts/own/task: no such folder (")
        assert "; it is a placeholder: put a model of your own there, or name" in result.output
        Path("experts/own/taks").mkdir(parents=True)
        code, found = check(document, "--offline")
        assert (code, "did you mean 'taks'?" in found[0][1]) == (2, True)


def test_an_adapter_that_was_trained_on_another_base_is_told(tmp_path, experts, check):
    for trained_on, count in (("task", 0), ("language", 1)):
        adapter = train_adapter(experts[trained_on], tmp_path / trained_on, 1)
        code, found = check(swap({**experts, "task": f"{experts['task']}+{adapter}"}))
        told = f"was trained on {experts['language']}"
        assert (code, sum(told in message for _, message in found)) == (0, count)
        assert sum("was trained on" in message for _, message in found) == count
        prefix = {"peft_type": "PREFIX_TUNING"}
        for change, why in (({"r": 3}, "not of the config's rank 3"), (prefix, "swap-adapters")):
            edited(adapter, "adapter_config.json", **change)
            code, found = check(swap({**experts, "task": f"{experts['task']}+{adapter}"}))
            assert (code, why in str(found)) == (2, True)


def test_an_adapter_that_peft_could_not_merge_is_an_error(tmp_path, experts, check):
    base = experts["task"]
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    rows = model.config.vocab_size
    model.resize_token_embeddings(rows + 16)
    model.save_pretrained(tmp_path / "wide")
    tables = ["embed_tokens", "lm_head"]
    options = {"target_modules": ["q_proj"], "r": 2, "modules_to_save": tables}
    adapter = train_adapter(tmp_path / "wide", tmp_path / "adapter", **options)
    code, found = check(swap({**experts, "task": f"{base}+{adapter}"}))
    assert code == 2
    assert f"is [{rows + 16}, 16] and the base's [{rows}, 16]" in str(found)
    assert f"resize_token_embeddings({rows + 16})" in str(found)
    # As the message advises.
    with_rows = {"task": f"{tmp_path / 'wide'}+{adapter}", "language": tmp_path / "wide"}
    document = merging.recipe(with_rows, ONE_EACH, tmp_path / "wide", dtype="float32")
    code, found = check(document)
    assert (code, [m for level, m in found if level == "error"]) == (0, [])
    assert layerswap("merge", tmp_path / "recipe.yml", tmp_path / "out").exit_code == 0
