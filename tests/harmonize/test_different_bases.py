"""What the commands before the studies of different bases write is what the studies name."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ablations.cli import main
from ablations.pocket.config import ModelShape, PocketConfig, Preset
from ablations.study.experts import find_experts_file, read_experts_file
from tests.harmonize.models import random_model
from tests.harmonize.test_run import LLAMA3_ROPE, PAIRS
from tests.standins.scripted import DATA
from tests.standins.tokenizers import save_word_tokenizer, words

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


LLAMA2, MISTRAL = PAIRS["llama2_mistral"].values()
LLAMA31, LLAMA32 = PAIRS["llama31_llama32"].values()
REAL: dict[str, dict[str, dict[str, Any]]] = {
    "llama_bases": {
        "Lugha-Llama/Lugha-Llama-8B-wura": LLAMA31,
        "MergeBench/Llama-3.1-8B_math": {**LLAMA31, "vocab_size": 49},
        "MergeBench/Llama-3.2-3B_math": {
            **{**LLAMA32, "vocab_size": 49},
            "rope_parameters": {**LLAMA3_ROPE, "factor": 32.0},
        },
    },
    "mistral_bases": {
        "augmxnt/shisa-gamma-7b-v1": {**MISTRAL, "num_hidden_layers": 8},
        "meta-math/MetaMath-Mistral-7B": {**MISTRAL, "num_hidden_layers": 8, "vocab_size": 49},
        "meta-math/MetaMath-7B-V1.0": {**LLAMA2, "num_hidden_layers": 8, "vocab_size": 49},
    },
}
"""Experts file -> model that its commands name -> ratios of the real one."""


@pytest.mark.parametrize("experts", REAL)
def test_the_headers_commands_make_the_experts_of_the_real_study(
    experts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for seed, (name, sizes) in enumerate(REAL[experts].items()):
        folder = random_model(tmp_path / name, seed, **sizes)
        save_word_tokenizer(folder, words(sizes.get("vocab_size", 48)))
    text = find_experts_file(experts).read_text().replace("\n#", " ")
    found = [shlex.split(each) for each in re.findall(r"`layerswap (harmonize [^`]+)`", text)]
    naive, aligned = found
    assert "--align" in aligned
    assert "--align" not in naive
    for command in found:
        assert [word for word in command if word in REAL[experts]] == list(REAL[experts])
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 0, result.output
        assert ("THE FUNCTION CHANGES" in result.output) == (experts == "llama_bases")
    (command,) = re.findall(r"Run: +layerswap (.*?) +Needs:", text)
    arguments = [*shlex.split(command), "--backend", "hf"]
    result = CliRunner().invoke(main, [*arguments, "--data-dir", str(DATA), "--dry-run"])
    assert result.exit_code == 0, result.output
    code = "sw" if experts == "llama_bases" else "ja"
    for task in (
        f"layerswap_mgsm_{code}",
        f"layerswap_belebele_{code}",
        f"layerswap_flores_en-{code}",
    ):
        assert task in result.output
