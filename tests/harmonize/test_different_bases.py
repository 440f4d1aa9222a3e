"""The commands in the headers of studies of different bases write what the studies name."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from ablations.cli import main
from ablations.study.experts import find_experts_file
from tests.harmonize.models import random_model
from tests.harmonize.test_run import LLAMA3_ROPE, PAIRS
from tests.standins.scripted import DATA
from tests.standins.tokenizers import save_word_tokenizer, words

ROOT = Path(__file__).parents[2]


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
