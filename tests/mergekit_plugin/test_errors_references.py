"""Model paths of a recipe: what stock mergekit merges is merged, the rest is one message."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from mergekit.card import is_hf

from layerswap_method.errors import InputError
from layerswap_method.output import check_output
from layerswap_method.recipe.references import path_problem, same_model_key
from tests.mergekit_plugin.conftest import Experts, Merge, Refused
from tests.standins.tuned import write_adapter


@pytest.mark.parametrize(
    "path", ["./task", "../{root}/task", "task/", "./task/", "../{root}/./task"]
)
def test_paths_that_can_be_no_hub_id_are_merged(
    experts: Experts, merge: Merge, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.chdir(experts.root)
    written = path.format(root=experts.root.name)
    assert not is_hf(written)
    recipe = experts.recipe()
    recipe["models"][0]["model"] = written
    result = merge(recipe)
    assert result.exit_code == 0, result.output


def test_paths_that_could_be_a_hub_id_are_refused(
    experts: Experts, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(experts.root)
    recipe = experts.recipe()
    recipe["models"][0]["model"] = "task"
    refused(recipe, "task: this folder's name could be a hub id", "write ./task")
    monkeypatch.chdir(experts.root.parent)
    recipe["models"][0]["model"] = f"{experts.root.name}/task"
    refused(recipe, f"write ./{experts.root.name}/task")


def test_an_empty_path(experts: Experts, refused: Refused) -> None:
    recipe = experts.recipe()
    recipe["models"][0]["model"] = ""
    refused(recipe, "a model's path is empty; write a folder or a hub id")
    refused(experts.recipe(base_model=""), "a model's path is empty")


def test_a_hub_id_has_no_path_problem() -> None:
    assert path_problem("nobody/no-such-model") is None


def test_one_folder_written_in_many_ways_is_one_model(
    experts: Experts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(experts.root)
    link = tmp_path / "link"
    link.symlink_to(experts.task)
    keys = {same_model_key(path) for path in ("./task", "task/", str(experts.task), str(link))}
    assert keys == {str(experts.task.resolve())}
    assert same_model_key(f"./task@main+{link}") == f"{experts.task}@main+{experts.task}"
    assert same_model_key("org/model@v1") == "org/model@v1"
    assert same_model_key("") == ""


def test_the_cause_of_an_error_that_takes_two_lines(
    experts: Experts, merge: Merge, tmp_path: Path
) -> None:
    """peft says in the second line which tensor does not fit."""
    adapter = write_adapter(tmp_path / "adapter", "model.layers.0.self_attn.q_proj", 5, 5)
    task = shutil.copytree(experts.task, tmp_path / "task")
    recipe = experts.recipe()
    recipe["models"][0]["model"] = f"{task}+{adapter}"
    result = merge(recipe, "--lora-merge-cache", str(tmp_path / "cache"))
    assert result.exit_code == 2, result.output
    assert "its weights are not available: RuntimeError: Error(s) in loading" in result.output
    assert "size mismatch for base_model.model.model.layers.0" in result.output


def test_a_name_too_long_for_a_file(experts: Experts, refused: Refused, tmp_path: Path) -> None:
    long = "x" * 300
    recipe = experts.recipe()
    for name, message in (
        (f"./{long}", f"./{long}: no such folder"),
        (long, f"{long}: its config cannot be loaded"),
        (f"{experts.base}+/{long}", f"/{long}: no such folder"),
    ):
        recipe["models"][0]["model"] = name
        cache = ["--lora-merge-cache", str(tmp_path / "cache")]
        refused(recipe, message, options=cache)
    assert same_model_key(long) == long
    with pytest.raises(InputError, match="File name too long; give another"):
        check_output(tmp_path / long, [])
