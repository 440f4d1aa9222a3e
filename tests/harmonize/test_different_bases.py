"""`make different-bases`: what it writes is what the study different_bases names."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ablations.cli import main
from ablations.pocket_build.config import ModelShape, PocketConfig, Preset
from ablations.study.experts import find_experts_file, read_experts_file
from tests.harmonize.models import random_model

ROOT = Path(__file__).parents[2]


def commands() -> list[list[str]]:
    """Return the arguments of every `layerswap harmonize` that make would call."""
    listed = subprocess.run(
        ["make", "-n", "-C", str(ROOT), "different-bases"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    lines = [shlex.split(line) for line in listed.splitlines() if " harmonize " in line]
    return [words[words.index("harmonize") :] for words in lines]


def sizes_of(shape: ModelShape) -> dict[str, Any]:
    """Return the settings of a model of the pocket, under transformers' names."""
    return {
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads or shape.num_heads,
        "head_dim": shape.hidden_size // shape.num_heads,
        "tie_word_embeddings": True,
    }


def test_every_expert_of_the_study_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    naive, aligned = commands()
    assert "--align" in aligned
    assert "--align" not in naive
    models = [word for word in naive if word.startswith("runs/") and "naive" not in word]
    assert len(models) == 10
    for seed, model in enumerate(models):
        preset: Preset = "other_size" if "other_size" in model else "quickstart"
        random_model(tmp_path / model, seed, **sizes_of(PocketConfig.preset(preset).shape))
    for command in (naive, aligned):
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 0, result.output
    experts = read_experts_file(find_experts_file("pocket_bases")).references()
    assert len(experts) == 18
    assert [
        each for each in experts.values() if not (tmp_path / each / "config.json").is_file()
    ] == []
