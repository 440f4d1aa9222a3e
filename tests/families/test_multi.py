"""`mergekit-multi`: a later merge that uses the result of an earlier `layer_swap`."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner, Result

from tests.standins.merging import linear_recipe, recipe, roles
from tests.standins.oracle import Swap, assert_same, average, expected, stored
from tests.standins.zoo import LAYERS

FIRST = Swap(LAYERS)
SECOND = Swap(LAYERS, b=1, u=2, t_b=0, t_u=1)


def run_multi(documents: list[dict[str, Any]], folder: Path) -> Result:
    """Run the command `mergekit-multi` on a file of several documents."""
    from mergekit.scripts.multimerge import main

    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "recipes.yml"
    file.write_text(yaml.safe_dump_all(documents, sort_keys=False))
    command: click.Command = main
    return CliRunner().invoke(
        command,
        [
            str(file),
            "--out-path",
            str(folder / "final"),
            "--intermediate-dir",
            str(folder / "steps"),
            "--no-copy-tokenizer",
            "--quiet",
        ],
    )


def documents(given: SimpleNamespace) -> list[dict[str, Any]]:
    """Return a swap called `first` and a swap of the base's bottom into it."""
    final = recipe({"task": "first", "language": given.base}, SECOND.parameters(), "first")
    return [{"name": "first", **recipe(roles(given), FIRST.parameters())}, final]


@pytest.mark.parametrize("reverse", [False, True], ids=["in order", "out of order"])
def test_a_swap_of_a_swap(reverse: bool, experts: Any, loads: Any, tmp_path: Path) -> None:
    given = experts("llama")
    listed = documents(given)
    result = run_multi(listed[::-1] if reverse else listed, tmp_path)
    assert result.exit_code == 0, result.output
    first = expected(FIRST, stored(given.task), stored(given.language))
    assert_same(stored(tmp_path / "steps" / "first"), first)
    assert_same(stored(tmp_path / "final"), expected(SECOND, first, stored(given.base)))
    for out in (tmp_path / "steps" / "first", tmp_path / "final"):
        assert (out / "layer_swap_plan.json").is_file()
    loads(tmp_path / "final")


def test_stock_methods_take_a_swap_as_input(experts: Any, tmp_path: Path) -> None:
    given = experts("llama")
    final = linear_recipe(["first", given.base])
    result = run_multi([documents(given)[0], final], tmp_path)
    assert result.exit_code == 0, result.output
    first, base = stored(tmp_path / "steps" / "first"), stored(given.base)
    wanted = {name: average(tensor, base[name], FIRST) for name, tensor in first.items()}
    assert_same(stored(tmp_path / "final"), wanted)
    assert not (tmp_path / "final" / "layer_swap_plan.json").exists()


def test_a_wrong_later_recipe_says_so_without_a_traceback(experts: Any, tmp_path: Path) -> None:
    listed = documents(experts("llama"))
    listed[1]["parameters"]["bottom_layers"] = 9
    result = run_multi(listed, tmp_path)
    assert result.exit_code == 2
    assert "9 + 2 + 0 + 1 = 12 is more than the model's 6 layers" in result.output
    assert "Traceback" not in result.output
    assert not (tmp_path / "final").exists()
