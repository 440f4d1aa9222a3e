"""Tiny random checkpoints and a way to merge them with the real mergekit-yaml command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from click.testing import CliRunner

NUM_LAYERS = 8


def save_llama(folder: Path, seed: int, **changes: Any) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    settings: dict[str, Any] = {
        "vocab_size": 64,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "tie_word_embeddings": False,
    }
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**{**settings, **changes}))
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


@dataclass(frozen=True)
class Experts:
    root: Path
    base: Path
    task: Path
    language: Path

    def recipe(self, **changes: Any) -> dict[str, Any]:
        return {
            "merge_method": "layer_swap",
            "base_model": str(self.base),
            "models": [
                {"model": str(self.task), "parameters": {"role": "task"}},
                {"model": str(self.language), "parameters": {"role": "language"}},
            ],
            "parameters": {"bottom_layers": 2, "top_layers": 1},
            **changes,
        }


@pytest.fixture(scope="session")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Experts:
    root = tmp_path_factory.mktemp("experts")
    return Experts(
        root, *(save_llama(root / name, i) for i, name in enumerate(("base", "task", "language")))
    )


@dataclass(frozen=True)
class Merged:
    exit_code: int
    output: str
    folder: Path


Merge = Callable[..., Merged]


@pytest.fixture
def merge(tmp_path: Path) -> Merge:
    """Run mergekit-yaml's own click command on a recipe, or on the text of one."""

    def run(recipe: dict[str, Any] | str, *options: str) -> Merged:
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
