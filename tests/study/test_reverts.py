"""A study of `delta_revert`: its parameters vary like any, and are checked before a cell runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from ablations.cli import main
from tests.standins.studies import write_expert, write_tasks


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reverts")
    for seed, name in enumerate(("base", "math", "swahili")):
        write_expert(folder / name, seed, layers=4)
    write_tasks(folder / "tasks", ["some_task"])
    names = {name: str(folder / name) for name in ("base", "math", "swahili")}
    document = {"experts": names, "include_path": str(folder / "tasks")}
    (folder / "experts.yml").write_text(yaml.safe_dump(document))
    return folder


def dry_run(work: Path, vary: Any, **recipe: Any) -> Result:
    study = {
        "name": "reverts",
        "question": "What can go back?",
        "recipe": {
            "merge_method": "delta_revert",
            "models": [{"model": "task"}],
            "base_model": "base",
            **recipe,
        },
        "vary": vary,
        "experts": {"base": "base", "task": ["math"], "language": {"sw": ["swahili"]}},
        "evaluate": {"tasks": ["some_task"]},
    }
    (work / "reverts.yml").write_text(yaml.safe_dump(study))
    words = ["run", str(work / "reverts.yml"), "--experts", str(work / "experts.yml")]
    return CliRunner().invoke(main, [*words, "--backend", "hf", "--dry-run"])


def test_parameters_need_not_stand_in_the_template(work: Path) -> None:
    result = dry_run(work, {"keep_fraction": [0.5, 0.7], "bottom_layers": [0, 1]})
    assert result.exit_code == 0, result.output
    cells = [line for line in result.output.splitlines() if line.endswith("(delta_revert)")]
    assert len(cells) == 4
    assert all("keep_fraction=0.5" in line or "keep_fraction=0.7" in line for line in cells)
    assert "models to load: 4" in result.output
    assert "checkpoints written to disk: 0 (0 bytes in all" in result.output


@pytest.mark.parametrize(
    ("vary", "message"),
    [
        (
            {"keep_fracton": [0.5]},
            "parameters.keep_fracton: unknown key; did you mean 'keep_fraction'?",
        ),
        ({"keep_fraction": [1.5]}, "parameters.keep_fraction: must be 1 or less, not 1.5"),
        ([{"bottom_layers": 3, "top_layers": 2}], "3 + 2 = 5 is more than the model's 4 layers"),
        ([{"threshold": 0.1, "keep_fraction": 0.5}], "both say which features stay"),
        ([{"revert_modules": "atention"}], "did you mean 'attention'?"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(work: Path, vary: Any, message: str) -> None:
    result = dry_run(work, vary)
    assert result.exit_code == 2, result.output
    assert message in result.output


def test_a_tokenizer_has_no_place(work: Path) -> None:
    result = dry_run(work, {"keep_fraction": [0.5]}, tokenizer={"source": "base"})
    assert result.exit_code == 2
    assert "tokenizer cannot be used here" in result.output
