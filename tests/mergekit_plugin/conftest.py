"""Tiny random checkpoints and a way to merge them with the real mergekit-yaml command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pytest
import yaml
from click.testing import CliRunner

from tests.standins.merging import recipe
from tests.standins.oracle import layer_number
from tests.standins.tuned import tune
from tests.standins.zoo import make_model

NUM_LAYERS = 8


def save_llama(folder: Path, seed: int, **changes: Any) -> Path:
    settings = {"num_hidden_layers": NUM_LAYERS, "vocab_size": 64, **changes}
    return make_model("llama", folder, seed, **settings)


@dataclass(frozen=True)
class Experts:
    root: Path
    base: Path
    task: Path
    language: Path

    def recipe(self, **changes: Any) -> dict[str, Any]:
        models = {"task": self.task, "language": self.language}
        return recipe(models, {"bottom_layers": 2, "top_layers": 1}, self.base) | changes

    def with_task(self, model: object) -> dict[str, Any]:
        return self._with(0, model)

    def with_language(self, model: object) -> dict[str, Any]:
        return self._with(1, model)

    def _with(self, index: int, model: object) -> dict[str, Any]:
        document = self.recipe()
        document["models"][index]["model"] = str(model)
        return document


@pytest.fixture(scope="session")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Experts:
    root = tmp_path_factory.mktemp("experts")
    return Experts(
        root, *(save_llama(root / name, i) for i, name in enumerate(("base", "task", "language")))
    )


MOVES: dict[str, tuple[float, dict[int | None, float], str]] = {
    "math": (4e-4, {3: 2.0, 4: 2.0}, ""),
    "math_2": (2e-4, {4: 3.0}, ".mlp."),
    "swahili": (1e-4, {0: 4.0, 7: 2.0}, ".self_attn."),
    "swahili_2": (3e-4, {1: 2.0}, ""),
}
"""How far each expert moves, and in which layers and module it moves so many times as far."""


def _moved(expert: str, tensor: str) -> float:
    size, layers, module = MOVES[expert]
    return size * (layers.get(layer_number(tensor), 1.0) if module in tensor else 1.0)


@pytest.fixture(scope="session")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a base and float32 fine-tunes, far enough apart that weights and layers matter."""
    root = tmp_path_factory.mktemp("tuned")
    base = save_llama(root / "base", 0)
    made = {name: tune(base, root / name, i, partial(_moved, name)) for i, name in enumerate(MOVES)}
    return {"base": base, **made}


@dataclass(frozen=True)
class Merged:
    exit_code: int
    output: str
    folder: Path


class Merge(Protocol):
    def __call__(self, recipe: dict[Any, Any] | str, *options: str) -> Merged: ...


@pytest.fixture
def merge(tmp_path: Path) -> Merge:
    """Run mergekit-yaml's own click command on a recipe, or on the text of one."""

    def run(recipe: dict[Any, Any] | str, *options: str) -> Merged:
        from mergekit.scripts.run_yaml import main

        path = tmp_path / "recipe.yml"
        text = recipe if isinstance(recipe, str) else yaml.safe_dump(recipe, sort_keys=False)
        path.write_text(text, encoding="utf-8")
        folder = tmp_path / "out" / "merged"
        result = CliRunner().invoke(
            main, [str(path), str(folder), "--no-copy-tokenizer", "--quiet", *options]
        )
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Merged(result.exit_code, result.output, folder)

    return run


class Refused(Protocol):
    def __call__(
        self, recipe: dict[Any, Any] | str, *fragments: str, options: Sequence[str] = ()
    ) -> str: ...


@pytest.fixture
def refused(merge: Merge) -> Refused:
    """Fail unless mergekit-yaml refuses a recipe in one message and writes nothing; return it."""

    def check(recipe: dict[Any, Any] | str, *fragments: str, options: Sequence[str] = ()) -> str:
        result = merge(recipe, *options)
        assert result.exit_code == 2, result.output
        assert result.output.startswith("Error: "), result.output
        assert "Traceback" not in result.output
        for fragment in fragments:
            assert fragment in result.output, result.output
        parent = result.folder.parent
        assert not parent.exists() or not list(parent.iterdir()), "something was written"
        return result.output

    return check
