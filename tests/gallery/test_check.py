"""`layerswap check`: everything that is wrong at once, on files and on models that are here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from click.testing import CliRunner

from ablations.cli import main
from tests.standins import merging
from tests.standins.recipe_files import RECIPES, ROOT
from tests.standins.tuned import train_adapter
from tests.standins.zoo import make_model


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("experts")
    sizes: dict[str, Any] = {"num_hidden_layers": 4, "dtype": torch.float32}
    made = {
        role: make_model("llama", root / role, seed, **sizes)
        for seed, role in enumerate(("task", "language"))
    }
    made["deep"] = make_model("llama", root / "deep", 2, **{**sizes, "num_hidden_layers": 5})
    half = {**sizes, "dtype": torch.bfloat16}
    return {**made, "half": make_model("llama", root / "half", 3, **half)}


def check(*arguments: str | Path) -> tuple[int, list[dict[str, Any]]]:
    words = ["check", "--format", "json", *map(str, arguments)]
    result = CliRunner().invoke(main, words, catch_exceptions=False)
    found: list[dict[str, Any]] = json.loads(result.output)
    return result.exit_code, found


def written(tmp_path: Path, document: dict[str, Any]) -> Path:
    path = tmp_path / "recipe.yml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


def swap(experts: dict[str, Path], language: str = "language", **parameters: Any) -> dict[str, Any]:
    models = {"task": experts["task"], "language": experts[language]}
    return merging.recipe(models, parameters, dtype="float32")


def test_a_good_recipe_has_no_finding(tmp_path: Path, experts: dict[str, Path]) -> None:
    path = written(tmp_path, swap(experts, bottom_layers=1, top_layers=1))
    assert check(path, "--strict") == (0, [])
    result = CliRunner().invoke(main, ["check", str(path)])
    assert result.output == "1 recipe: 0 errors, 0 warnings\n"


def test_every_problem_is_named_at_once(tmp_path: Path, experts: dict[str, Path]) -> None:
    document = swap(experts, botom_layers=1, top_layers=-1)
    document["models"][1]["parameters"] = {"role": "langauge"}
    document |= {"dtype": "bfloat61", "tokeniser": "base"}
    path = written(tmp_path, document)
    code, found = check(path)
    assert code == 2
    errors = [each["message"] for each in found if each["level"] == "error"]
    for part in (
        "parameters.botom_layers: unknown key; did you mean 'bottom_layers'?",
        "parameters.top_layers: must be 0 or more, not -1",
        "did you mean 'language'?",
        "dtype: 'bfloat61' must be one of",
        "tokeniser: unknown key",
    ):
        assert any(part in message for message in errors), part


def test_layer_counts_are_checked_against_the_models(
    tmp_path: Path, experts: dict[str, Path]
) -> None:
    code, found = check(written(tmp_path, swap(experts, bottom_layers=3, top_layers=2)))
    assert code == 2
    assert [each["message"] for each in found] == [
        "bottom_layers + top_layers = 3 + 2 = 5 is more than the model's 4 layers"
    ]


def test_models_that_do_not_fit_each_other(tmp_path: Path, experts: dict[str, Path]) -> None:
    code, found = check(written(tmp_path, swap(experts, "deep", bottom_layers=1, top_layers=1)))
    assert code == 2
    assert "different depths" in found[0]["message"]


def test_dtype_traps_are_warnings(tmp_path: Path, experts: dict[str, Path]) -> None:
    document = swap(experts, bottom_layers=1, top_layers=1) | {"dtype": "bfloat16"}
    code, found = check(written(tmp_path, document))
    assert code == 0
    assert {each["level"] for each in found} == {"warning"}
    assert all("is stored in float32 and dtype is bfloat16" in each["message"] for each in found)
    del document["dtype"]
    assert check(written(tmp_path, document)) == (0, [])
    half = merging.recipe(
        {"task": experts["half"], "language": experts["half"]},
        {"bottom_layers": 1, "top_layers": 1},
        dtype="float16",
    )
    half["models"] = half["models"][:1]
    half |= {"merge_method": "passthrough", "models": [{"model": str(experts["half"])}]}
    half.pop("parameters")
    assert "65504" in check(written(tmp_path, half))[1][0]["message"]


def test_warnings_fail_only_if_asked(tmp_path: Path, experts: dict[str, Path]) -> None:
    path = written(tmp_path, swap(experts, bottom_layers=2, top_layers=1))
    code, found = check(path)
    assert (code, [finding["level"] for finding in found]) == (0, ["warning"])
    assert "3 of the 4 layers" in found[0]["message"]
    assert check(path, "--strict")[0] == 2


def test_parameters_that_mergekits_own_methods_do_not_have(
    tmp_path: Path, experts: dict[str, Path]
) -> None:
    entry = {"model": str(experts["task"]), "parameters": {"wieght": 0.5}}
    other = {"model": str(experts["language"]), "parameters": {"weight": 0.5}}
    document = {"merge_method": "linear", "models": [entry, other], "dtype": "float32"}
    code, found = check(written(tmp_path, {**document, "parameters": {"normalise": True}}))
    assert code == 2
    assert [each["message"] for each in found] == [
        "models[0]: unknown parameter 'wieght' of linear, which mergekit ignores; did you mean "
        "'weight'?",
        "unknown parameter 'normalise' of linear, which mergekit ignores; did you mean "
        "'normalize'?",
    ]


def test_a_config_on_the_hub_is_enough_for_the_layer_counts(
    tmp_path: Path, experts: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(repository: str, file: str, revision: str | None) -> str:
        return str(experts[repository.removeprefix("owner/")] / file)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    monkeypatch.setattr("ablations.gallery.models._hub_answers", lambda endpoint: True)
    models: dict[str, Path | str] = {"task": "owner/task", "language": "owner/language"}
    document = merging.recipe(models, {"bottom_layers": 4, "top_layers": 2}, dtype="float32")
    code, found = check(written(tmp_path, document))
    assert code == 2
    assert "4 + 2 = 6 is more than the model's 4 layers" in found[0]["message"]
    unpinned = [each["message"] for each in found if each["level"] == "note"]
    assert all("names no revision" in message for message in unpinned)
    assert len(unpinned) == 2


def test_a_folder_that_is_not_here_is_an_error_and_a_hub_id_a_note(
    tmp_path: Path, experts: dict[str, Path]
) -> None:
    for language, code, level in (
        (tmp_path / "gone", 2, "error"),
        (tmp_path / "tsk", 2, "error"),
        ("nobody/gone@main", 0, "note"),
    ):
        given: Any = {**experts, "language": language}
        path = written(tmp_path, swap(given, bottom_layers=1, top_layers=1))
        found = check(path, "--offline")
        assert (found[0], [finding["level"] for finding in found[1]]) == (code, [level])


@pytest.mark.parametrize("text", ["a: 1\na: 2\n", "[1, 2]\n", "a: [\n"])
def test_files_that_are_no_recipe(tmp_path: Path, text: str) -> None:
    path = tmp_path / "recipe.yml"
    path.write_text(text)
    code, found = check(path)
    assert code == 2
    assert found[0]["level"] == "error"


def test_names_that_are_no_recipe(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["check", "swahilli.yml"])
    assert result.exit_code == 2
    assert "did you mean 'swahili.yml'?" in result.output
    assert CliRunner().invoke(main, ["check", str(tmp_path)]).exit_code == 2
    result = CliRunner().invoke(main, ["check", str(tmp_path / "gone.yml")])
    assert result.exit_code == 2
    assert "gone.yml: no such file" in result.output


def test_every_shipped_recipe_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    code, found = check("recipes", "--offline")
    assert code == 0
    assert {each["level"] for each in found} <= {"warning", "note"}
    warnings = [each["message"] for each in found if each["level"] == "warning"]
    assert all("names no revision" in message for message in warnings)
    assert len(RECIPES) > 40


def test_an_adapter_that_was_trained_on_another_base_is_told(
    tmp_path: Path, experts: dict[str, Path]
) -> None:
    for trained_on, is_told in (("task", False), ("language", True)):
        adapter = train_adapter(experts[trained_on], tmp_path / trained_on, 1)
        given: Any = {**experts, "task": f"{experts['task']}+{adapter}"}
        code, found = check(written(tmp_path, swap(given, bottom_layers=1, top_layers=1)))
        assert code == 0
        told = [each["message"] for each in found if "was trained on" in each["message"]]
        assert bool(told) == is_told
        assert all(f"was trained on {experts['language']}" in message for message in told)
