"""What the commands before the studies of different bases write is what the studies name."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from ablations.cli import main
from ablations.pocket.config import PocketConfig
from ablations.study.experts import find_experts_file, read_experts_file
from tests.harmonize.models import random_model
from tests.harmonize.test_run import LLAMA3_ROPE, PAIRS, sizes
from tests.standins.scripted import DATA
from tests.standins.tokenizers import save_word_tokenizer, words

ROOT = Path(__file__).parents[2]


def test_every_expert_of_the_study_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make = ["make", "-n", "-C", str(ROOT), "different-bases"]
    listed = subprocess.run(make, capture_output=True, text=True, check=True).stdout
    (line,) = (shlex.split(line) for line in listed.splitlines() if " harmonize " in line)
    command = line[line.index("harmonize") :]
    models = command[1 : command.index("--out")]
    assert len(models) == 10
    for seed, model in enumerate(models):
        shape = PocketConfig.preset("other_size" if "other_size" in model else "quickstart").shape
        heads = (shape.num_heads, shape.num_kv_heads or shape.num_heads)
        width, head_dim = shape.hidden_size, shape.hidden_size // shape.num_heads
        given = sizes(width, shape.intermediate_size, shape.num_layers, heads, head_dim)
        random_model(tmp_path / model, seed, **given, tie_word_embeddings=True)
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    experts = read_experts_file(find_experts_file("pocket_bases")).references()
    assert len(experts) == 11
    assert all((tmp_path / expert / "config.json").is_file() for expert in experts.values())


LLAMA2, MISTRAL = ({**each, "num_hidden_layers": 8} for each in PAIRS["llama2_mistral"].values())
LLAMA31, LLAMA32 = PAIRS["llama31_llama32"].values()
ROPE_32 = {"rope_parameters": {**LLAMA3_ROPE, "factor": 32.0}}
REAL = {
    "llama_bases": {
        "Lugha-Llama/Lugha-Llama-8B-wura": LLAMA31,
        "MergeBench/Llama-3.1-8B_math": {**LLAMA31, "vocab_size": 49},
        "MergeBench/Llama-3.2-3B_math": {**LLAMA32, "vocab_size": 49, **ROPE_32},
    },
    "mistral_bases": {
        "augmxnt/shisa-gamma-7b-v1": MISTRAL,
        "meta-math/MetaMath-Mistral-7B": {**MISTRAL, "vocab_size": 49},
        "meta-math/MetaMath-7B-V1.0": {**LLAMA2, "vocab_size": 49},
    },
}
"""Experts file -> model that its command names -> ratios of the real one."""


@pytest.mark.parametrize("experts", REAL)
def test_the_headers_command_makes_the_experts_of_the_real_study(experts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed, (name, given) in enumerate(REAL[experts].items()):
        folder = random_model(tmp_path / name, seed, **given)
        save_word_tokenizer(folder, words(given.get("vocab_size", 48)))
    text = find_experts_file(experts).read_text().replace("\n#", " ")
    (harmonize,) = map(shlex.split, re.findall(r"`layerswap (harmonize [^`]+)`", text))
    assert harmonize[1 : harmonize.index("--out")] == list(REAL[experts])
    result = CliRunner().invoke(main, harmonize)
    assert result.exit_code == 0, result.output
    assert ("THE FUNCTION CHANGES" in result.output) == (experts == "llama_bases")
    (command,) = re.findall(r"Run: +layerswap (.*?) +Needs:", text)
    arguments = [*shlex.split(command), "--backend", "hf", "--data-dir", str(DATA), "--dry-run"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    code = "sw" if experts == "llama_bases" else "ja"
    for task in (f"mgsm_{code}", f"belebele_{code}", f"flores_en-{code}"):
        assert f"layerswap_{task}" in result.output
