"""Several processes train the model that one trains; trackers get its losses."""

import importlib.util
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ablations.train import trainer
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


def test_the_cpu_trains_beside_a_gpu_where_accelerate_says_so(monkeypatch):
    monkeypatch.delenv("ACCELERATE_USE_CPU", raising=False)
    for is_there in (True, False):
        monkeypatch.setattr(torch.accelerator, "is_available", lambda is_there=is_there: is_there)
        assert trainer._on_cpu() is not is_there
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    for value, on_cpu in (("true", True), ("True", True), ("False", False)):
        monkeypatch.setenv("ACCELERATE_USE_CPU", value)
        assert trainer._on_cpu() is on_cpu


@pytest.mark.slow
@pytest.mark.parametrize("name", ["trackio", "wandb"])
def test_a_tracker_gets_the_losses(name, tmp_path, base, rows):
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    config = write_config(tmp_path / "config.yml", base, rows, trainer={"report_to": [name]})
    place = tmp_path / "place"
    place.mkdir()
    done = subprocess.run(  # a process of its own: trackers start services, and warn at import
        [
            *(sys.executable, "-c", "from ablations.cli import main; main()"),
            *("train", str(config), "--out", str(tmp_path / "expert")),
        ],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            **{"WANDB_MODE": "offline", "WANDB_DIR": str(place), "TRACKIO_DIR": str(place)},
        },
    )
    assert done.returncode == 0, done.stderr
    if name == "wandb":
        (file,) = place.glob("wandb/offline-run-*/run-*.wandb")
        assert b"train/loss" in file.read_bytes()
        return
    (file,) = place.glob("*.db")
    with sqlite3.connect(file) as database:
        sent = [json.loads(text) for (text,) in database.execute("select metrics from metrics")]
    record = json.loads((tmp_path / "expert/training.json").read_text())
    losses = [row["train/loss"] for row in sent if "train/loss" in row]
    assert losses == pytest.approx([row["loss"] for row in record["losses"]])
    assert len(losses) == 4
