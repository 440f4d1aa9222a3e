"""`report_to`: the real trackers of the Trainer, without a network."""

from __future__ import annotations

import importlib.util
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.train.runs import write_config

# In a process of its own: trackers start services, and warn at import.
TRAIN = "from ablations.cli import main; main()"


def trained(name: str, tmp_path: Path, base: Path, rows: Path) -> Path:
    """Return where a tracker kept a run of four steps."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    config = write_config(tmp_path / "config.yml", base, rows, report_to=[name], measure=False)
    kept = tmp_path / "kept"
    kept.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", TRAIN, "train", str(config), "--out", str(tmp_path / "expert")],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            **{"WANDB_MODE": "offline", "WANDB_DIR": str(kept), "TRACKIO_DIR": str(kept)},
        },
    )
    assert done.returncode == 0, done.stderr
    return kept


@pytest.mark.slow
def test_trackio_gets_the_loss_of_every_step(tmp_path: Path, base: Path, rows: Path) -> None:
    kept = trained("trackio", tmp_path, base, rows)
    (file,) = kept.glob("*.db")
    with sqlite3.connect(file) as database:
        sent = [json.loads(text) for (text,) in database.execute("select metrics from metrics")]
    record = json.loads((tmp_path / "expert/training.json").read_text())
    losses = [each["train/loss"] for each in sent if "train/loss" in each]
    assert losses == pytest.approx([each["loss"] for each in record["losses"]])
    assert len(losses) == 4


@pytest.mark.slow
def test_wandb_keeps_an_offline_run(tmp_path: Path, base: Path, rows: Path) -> None:
    (file,) = trained("wandb", tmp_path, base, rows).glob("wandb/offline-run-*/run-*.wandb")
    assert b"train/loss" in file.read_bytes()
