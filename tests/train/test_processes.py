"""Several processes train the model that one trains; which device they train on."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ablations.train.folder import step_of, whole_checkpoints
from tests.train.runs import run, weights, write_config


@pytest.mark.slow
@pytest.mark.parametrize("regime", ["full", "lora"])
def test_accelerate_launch_with_two_processes(tmp_path, base, rows, regime):
    save = {"save_strategy": "steps", "save_steps": 2}
    config = write_config(tmp_path / "c.yml", base, rows, regime=regime, trainer=save)
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
    run(config, alone)
    for out in (together, alone):
        assert [step_of(checkpoint) for checkpoint in whole_checkpoints(out)] == [2, 4]
    one, two, first = weights(alone), weights(together), weights(whole_checkpoints(alone)[0])
    assert set(one) == set(two)
    difference = sum(float((one[name] - two[name]).square().sum()) for name in one)
    change = sum(float((one[name] - first[name]).square().sum()) for name in one)
    assert difference < 1e-3 * change
