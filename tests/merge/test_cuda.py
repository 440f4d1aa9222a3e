"""A merge on a GPU writes the files that a merge on the CPU writes, by both commands."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.standins.merging import recipe, write_recipe
from tests.standins.talkers import write_model

PROGRAMS = Path(sys.executable).parent
SWAP = {"bottom_layers": 2, "top_layers": 1, "bottom_transition": 1, "top_transition": 1}


def run(*words):
    subprocess.run([str(word) for word in words], check=True, capture_output=True)


def digests(folder):
    files = sorted(folder.glob("*.safetensors"))
    assert files
    return [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]


@pytest.mark.gpu
@pytest.mark.parametrize("weighting", ["uniform", "magnitude"])
def test_both_commands_write_the_files_that_the_cpu_writes(weighting, tmp_path):
    import torch

    for seed, name in enumerate(("base", "task", "language")):
        write_model(
            tmp_path / name,
            seed,
            dtype=torch.bfloat16,
            num_hidden_layers=8,
            hidden_size=512,
            intermediate_size=1024,
        )
    experts = {role: tmp_path / role for role in ("task", "language")}
    document = recipe(experts, SWAP | {"weighting": weighting}, tmp_path / "base")
    file = write_recipe(tmp_path / "recipe.yml", document | {"dtype": "bfloat16"})
    layerswap, mergekit = PROGRAMS / "layerswap", PROGRAMS / "mergekit-yaml"
    run(layerswap, "merge", file, tmp_path / "cpu", "--verify")
    run(layerswap, "merge", file, tmp_path / "cuda", "--device", "cuda", "--verify")
    run(mergekit, file, tmp_path / "yaml", "--cuda")
    assert digests(tmp_path / "cuda") == digests(tmp_path / "cpu")
    assert digests(tmp_path / "yaml") == digests(tmp_path / "cpu")
