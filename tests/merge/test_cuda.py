"""A merge on a GPU writes the files that a merge on the CPU writes, by both commands."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.standins.fine_tunes import tune
from tests.standins.merging import recipe, write_recipe
from tests.standins.word_models import write_model

PROGRAMS = Path(sys.executable).parent
SWAP = {"bottom_layers": 2, "top_layers": 1, "bottom_transition": 1, "top_transition": 1}


def run(*words):
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def digests(folder):
    files = sorted(folder.glob("*.safetensors"))
    assert files
    return [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]


@pytest.mark.gpu
@pytest.mark.parametrize("weighting", ["uniform", "magnitude"])
def test_both_commands_write_the_files_that_the_cpu_writes(weighting, tmp_path):
    import torch

    base = write_model(
        tmp_path / "base",
        dtype=torch.bfloat16,
        num_hidden_layers=8,
        hidden_size=512,
        intermediate_size=1024,
    )
    experts = {
        role: tune(base, tmp_path / role, seed, 0.1, torch.bfloat16)
        for seed, role in enumerate(("task", "language"))
    }
    document = recipe(experts, SWAP | {"weighting": weighting}, base)
    file = write_recipe(tmp_path / "recipe.yml", document | {"dtype": "bfloat16"})
    layerswap, mergekit = PROGRAMS / "layerswap", PROGRAMS / "mergekit-yaml"
    run(layerswap, "merge", file, tmp_path / "cpu", "--verify")
    run(layerswap, "merge", file, tmp_path / "cuda", "--device", "cuda", "--verify")
    run(mergekit, file, tmp_path / "yaml", "--cuda")
    assert digests(tmp_path / "cuda") == digests(tmp_path / "cpu")
    assert digests(tmp_path / "yaml") == digests(tmp_path / "cpu")
