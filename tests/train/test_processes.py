"""Several processes train the model that one trains."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ablations.train.files import read_config
from ablations.train.folder import TrainingFolder
from ablations.train.run import train_expert
from tests.train.runs import weights, write_config


@pytest.mark.slow
@pytest.mark.parametrize("regime", [{"kind": "full"}, {"kind": "lora"}], ids=["full", "lora"])
def test_accelerate_launch_with_two_processes(
    tmp_path: Path, base: Path, rows: Path, regime: dict[str, Any]
) -> None:
    config = write_config(
        tmp_path / "c.yml", base, rows, save_every=8, regime=regime, measure=False
    )
    bin = Path(sys.executable).parent
    if not (bin / "layerswap").is_file():
        pytest.skip("the package is not installed in this environment")
    together, alone = tmp_path / "together", tmp_path / "alone"
    words = (
        f"launch --cpu --num_processes 2 --num_machines 1 --mixed_precision no {PORT} --no_python"
    )
    subprocess.run(
        [bin / "accelerate", *words.split(), bin / "layerswap", "train", config, "--out", together],
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    train_expert(read_config(str(config)), alone)
    found = [TrainingFolder(out).checkpoints() for out in (together, alone)]
    assert [each.samples for each in found[0]] == [each.samples for each in found[1]] == [8, 16]
    one, two = weights(alone), weights(together)
    first = weights(found[1][0].folder)
    assert set(one) == set(two)
    difference = sum(float((one[name] - two[name]).square().sum()) for name in one)
    change = sum(float((one[name] - first[name]).square().sum()) for name in one)
    assert difference < 1e-3 * change


PORT = "--main_process_port 0"
"""Any that is free: other tests may launch at the same time."""
