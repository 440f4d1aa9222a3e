"""Models to merge, and both ways to merge them."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from click.testing import CliRunner, Result

from ablations.cli import main
from tests.standins.tokenizers import save_word_tokenizer, words
from tests.standins.tuned import tune
from tests.standins.zoo import VOCAB, make_model


@pytest.fixture(scope="session")
def trio(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Return folders of a base and two experts with tokenizers. Do not write to them."""
    root = tmp_path_factory.mktemp("trio")
    base = make_model("llama", root / "base", 0)
    save_word_tokenizer(base, words(VOCAB), chat_template="{{ messages }}")
    made = {
        role: tune(base, root / role, seed, 0.02, torch.bfloat16)
        for seed, role in enumerate(("task", "language"))
    }
    return SimpleNamespace(base=base, **made)


@pytest.fixture
def own_trio(trio: SimpleNamespace, tmp_path: Path) -> SimpleNamespace:
    """Return a copy of `trio` that a test may change."""
    copies = {name: tmp_path / "models" / name for name in vars(trio)}
    for name, folder in copies.items():
        shutil.copytree(getattr(trio, name), folder)
    return SimpleNamespace(**copies)


def run_merge(document: dict[str, Any], out: Path, *options: str) -> Result:
    """Return the result of `layerswap merge`; the recipe stands beside `out`."""
    recipe = out.parent / "recipe.yml"
    recipe.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return CliRunner().invoke(main, ["merge", str(recipe), str(out), *options])


def content(folder: Path) -> dict[str, bytes]:
    """Return file name -> bytes of a folder, to see that nothing changed."""
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}
