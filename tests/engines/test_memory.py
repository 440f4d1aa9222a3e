"""A swap on HF needs a few blocks of memory beside the model.

Measuring rows takes some ten MiB more, whatever the size of the model: its threads' blocks.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.standins.talkers import write_model
from tests.standins.tuned import tune

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*torch_dtype.*")]

ROWS, WIDTH = 40_000, 256
LARGEST = 4 * ROWS * WIDTH
"""Bytes of either embedding: 39 MiB, most of the model."""


def write_wide(folder: Path, seed: int) -> Path:
    """Write a random float32 Llama that is nearly all vocabulary."""
    return write_model(
        folder,
        seed,
        words=["w"],
        says_special=True,
        vocab_size=ROWS,
        hidden_size=WIDTH,
        intermediate_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=64,
        initializer_range=0.02,
    )


def test_swaps_that_change_everything(tmp_path: Path) -> None:
    folders = [write_wide(tmp_path / str(seed), seed) for seed in range(3)]
    folders.append(tune(folders[0], tmp_path / "tuned", 3))
    # In a process of its own: what other tests have left behind may come and go meanwhile.
    command = [sys.executable, "-m", "tests.engines.swap_memory", "hf", *map(str, folders)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    swaps = json.loads(ran.stdout.splitlines()[-1])
    assert len(swaps) == 4
    for swap, tensors in zip(swaps, [0.5, 0.5, 0.5, 1.0], strict=True):
        if swap is swaps[0]:
            continue  # transformers maps the checkpoint; what is written becomes our own
        assert swap["anonymous_rise_bytes"] < tensors * LARGEST
        assert swap["rss_rise_bytes"] < tensors * LARGEST
