"""Several processes train the model that one trains."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ablations.train import trainer
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
    programs = Path(sys.executable).parent
    if not (programs / "layerswap").is_file():
        pytest.skip("the package is not installed in this environment")
    together, alone = tmp_path / "together", tmp_path / "alone"
    # --multi_gpu is what starts several processes; without a GPU they compute on the processor.
    launch = "launch --multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no"
    launch += " --dynamo_backend no --main_process_port 0 --no_python"
    subprocess.run(
        [
            *(programs / "accelerate", *launch.split(), programs / "layerswap"),
            *("train", config, "--out", together),
        ],
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert json.loads((together / "training.json").read_text())["processes"] == 2
    train_expert(read_config(str(config)), alone)
    found = [TrainingFolder(out).checkpoints() for out in (together, alone)]
    assert [each.samples for each in found[0]] == [each.samples for each in found[1]] == [8, 16]
    one, two = weights(alone), weights(together)
    first = weights(found[1][0].folder)
    assert set(one) == set(two)
    difference = sum(float((one[name] - two[name]).square().sum()) for name in one)
    change = sum(float((one[name] - first[name]).square().sum()) for name in one)
    assert difference < 1e-3 * change


def test_the_cpu_trains_beside_a_gpu_where_accelerate_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("ACCELERATE_USE_CPU", raising=False)
    for there in (True, False):
        monkeypatch.setattr(torch.accelerator, "is_available", lambda there=there: there)
        assert trainer._on_cpu() is not there
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    for value, on_cpu in (("true", True), ("True", True), ("False", False)):
        monkeypatch.setenv("ACCELERATE_USE_CPU", value)
        assert trainer._on_cpu() is on_cpu
