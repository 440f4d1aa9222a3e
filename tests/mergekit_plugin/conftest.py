"""Tiny random checkpoints, and the command `mergekit-yaml` as a program and in this process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from tests.families.conftest import loads  # noqa: F401 - a fixture
from tests.standins.merging import recipe
from tests.standins.oracle import layer_number
from tests.standins.tokenizers import save_word_tokenizer, words
from tests.standins.tuned import tune
from tests.standins.zoo import make_model

NUM_LAYERS, VOCAB = 8, 64


def save_llama(folder: Path, seed: int, **changes: Any) -> Path:
    settings = {"num_hidden_layers": NUM_LAYERS, "vocab_size": VOCAB, **changes}
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

    def with_models(self, task: Any, language: Any = None, **changes: Any) -> dict[str, Any]:
        document = self.recipe(**changes)
        for entry, model in zip(document["models"], (task, language), strict=True):
            entry["model"] = str(model or entry["model"])
        return document


@pytest.fixture(scope="session")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Experts:
    """Return three models with one tokenizer. Do not write to them."""
    root = tmp_path_factory.mktemp("experts")
    names = ("base", "task", "language")
    folders = [save_llama(root / name, seed) for seed, name in enumerate(names)]
    for folder in folders:
        save_word_tokenizer(folder, words(VOCAB))
    return Experts(root, *folders)


MOVES: dict[str, tuple[float, dict[int | None, float], str]] = {
    "math": (4e-4, {3: 2.0, 4: 2.0}, ""),
    "math_2": (2e-4, {4: 3.0}, ".mlp."),
    "swahili": (1e-4, {0: 4.0, 7: 2.0}, ".self_attn."),
    "swahili_2": (3e-4, {1: 2.0}, ""),
}
"""How far an expert moves, and in which layers and module it moves so many times as far."""


def _moved(expert: str, tensor: str) -> float:
    size, layers, module = MOVES[expert]
    return size * (layers.get(layer_number(tensor), 1.0) if module in tensor else 1.0)


@pytest.fixture(scope="session")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a base and float32 fine-tunes, far enough apart that weights and layers matter."""
    root = tmp_path_factory.mktemp("tuned")
    base = save_llama(root / "base", 0)
    save_word_tokenizer(base, words(VOCAB))  # its fine-tunes are copies
    made = {name: tune(base, root / name, i, partial(_moved, name)) for i, name in enumerate(MOVES)}
    return {"base": base, **made}


@dataclass(frozen=True)
class Merged:
    exit_code: int
    output: str
    folder: Path
    imported: frozenset[str] = frozenset()


def write_recipe(path: Path, document: Mapping[Any, Any] | str) -> Path:
    is_text = isinstance(document, str)
    text = document if is_text else yaml.safe_dump(dict(document), sort_keys=False)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def command(tmp_path: Path) -> Any:
    """Run the program `mergekit-yaml` as a shell does, and note every module that it imports."""
    program = Path(sys.executable).with_name("mergekit-yaml")
    assert program.is_file()

    def run(document: Any, *options: str, out: str = "merged", **variables: str) -> Merged:
        folder = tmp_path / "program" / out
        path = write_recipe(tmp_path / "recipe.yml", document)
        done = subprocess.run(
            [str(program), str(path), str(folder), *options],
            env={**os.environ, "PYTHONPROFILEIMPORTTIME": "1", **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        lines = done.stdout.splitlines()
        times = [line for line in lines if line.startswith("import time:")]
        said = "\n".join(line for line in lines if not line.startswith("import time:"))
        modules = frozenset(line.rpartition("|")[2].strip() for line in times)
        assert "layerswap_method" in modules, said
        return Merged(done.returncode, said, folder, modules)

    return run


@pytest.fixture
def merge(tmp_path: Path) -> Any:
    """Run mergekit's own click command in this process, where mergekit is imported."""

    def run(document: Mapping[Any, Any] | str, *options: str) -> Merged:
        from mergekit.scripts.run_yaml import main

        path = write_recipe(tmp_path / "recipe.yml", document)
        folder = tmp_path / "out" / "merged"
        words = [str(path), str(folder), "--no-copy-tokenizer", "--quiet", *options]
        result = CliRunner().invoke(main, words)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Merged(result.exit_code, result.output, folder)

    return run


@pytest.fixture
def refused(merge: Any) -> Any:
    """Fail unless mergekit-yaml refuses a recipe in one message and writes nothing; return it."""

    def check(document: Any, *fragments: str, options: tuple[str, ...] = ()) -> str:
        result = merge(document, *options)
        assert result.exit_code == 2, result.output
        assert result.output.startswith("Error: "), result.output
        assert "Traceback" not in result.output
        for fragment in fragments:
            assert fragment in result.output, result.output
        parent = result.folder.parent
        assert not parent.exists() or not list(parent.iterdir()), "something was written"
        return result.output

    return check


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
