"""A run that is ended goes on to the same weights; a folder belongs to one run."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from ablations.cli import main
from ablations.train.files import read_config
from ablations.train.folder import TrainingFolder
from ablations.train.run import train_expert
from layerswap_method.errors import LayerSwapError
from tests.standins.tuned import train_adapter
from tests.train.runs import weights, write_config
from tests.waiting import wait_until


def _same(one: Path, other: Path) -> bool:
    first, second = weights(one), weights(other)
    return set(first) == set(second) and all(torch.equal(first[n], second[n]) for n in first)


def _checkpoints(out: Path) -> list[tuple[int, int]]:
    return [(each.step, each.samples) for each in TrainingFolder(out).checkpoints()]


@pytest.mark.slow
@pytest.mark.parametrize(
    "regime",
    [
        {"kind": "full"},
        {"kind": "lora", "rank": 4, "dropout": 0.2},
        {"kind": "adapter_fusion", "experts": {"a": "a", "b": "b"}},
    ],
    ids=["full", "lora", "fusion"],
)
def test_a_run_ended_by_sigkill_goes_on_to_the_same_weights(
    tmp_path: Path, base: Path, rows: Path, regime: dict[str, Any]
) -> None:
    if "experts" in regime:
        names = [*regime["experts"]]
        experts = {
            name: str(train_adapter(base, tmp_path / name, seed, target_modules=["q_proj"]))
            for seed, name in enumerate(names)
        }
        regime = {**regime, "experts": experts}
    config = write_config(
        tmp_path / "c.yml", base, rows, samples=200, save_every=20, regime=regime, measure=False
    )
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    command = [sys.executable, "-c", "from ablations.cli import main; main()", "train", str(config)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*command, "--out", str(undisturbed)], check=True, env=environment)
    process = subprocess.Popen([*command, "--out", str(killed)], env=environment)
    wait_until(lambda: len(_checkpoints(killed)) >= 3, running=process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.returncode == -signal.SIGKILL, "it was over before it could be ended"
    assert not (killed / "experts.yml").exists()
    done = subprocess.run(
        [*command, "--out", str(killed)],
        check=True,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert "going on from" in done.stderr
    assert _checkpoints(killed) == [(step, 4 * step) for step in range(5, 51, 5)]
    assert _same(undisturbed, killed)
    for step, _ in _checkpoints(killed):
        name = f"checkpoints/checkpoint-{step}"
        assert _same(undisturbed / name, killed / name)


def test_half_a_checkpoint_is_removed_and_the_one_before_is_used(
    tmp_path: Path, base: Path, rows: Path
) -> None:
    config = read_config(
        str(write_config(tmp_path / "c.yml", base, rows, save_every=4, measure=False))
    )
    whole = tmp_path / "whole"
    train_expert(config, whole)
    assert _checkpoints(whole) == [(1, 4), (2, 8), (3, 12), (4, 16)]
    # As if it had been ended while the second checkpoint was being written.
    out = tmp_path / "out"
    _stop_at(config, out, 2)
    (out / "checkpoints/checkpoint-2").mkdir()
    (out / "checkpoints/checkpoint-2/model.safetensors").write_bytes(b"half")
    assert _checkpoints(out) == [(1, 4)]
    train_expert(config, out)
    assert _checkpoints(out) == _checkpoints(whole)
    assert _same(out, whole)


def _stop_at(config: Any, out: Path, step: int) -> None:
    """Train until the checkpoint of `step` cannot be written: the disk is full."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingFolder, "mark", _refuse_after(step, TrainingFolder.mark))
        with pytest.raises(LayerSwapError, match="No space left"):
            train_expert(config, out)


def _refuse_after(step: int, mark: Any) -> Any:
    def refusing(self: TrainingFolder, now: int, samples: int) -> None:
        if now == step:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        mark(self, now, samples)

    return refusing


def test_a_finished_run_is_left_as_it_is(
    tmp_path: Path, base: Path, rows: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = read_config(str(write_config(tmp_path / "c.yml", base, rows, measure=False)))
    first = train_expert(config, tmp_path / "out")
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("*") if p.is_file()}
    with caplog.at_level("INFO", logger="ablations"):
        assert train_expert(config, tmp_path / "out") == first
    after = {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("*") if p.is_file()}
    assert {p.name for p in before if before[p] != after.get(p)} <= {".lock", ".lock.holder"}
    assert "nothing to do" in caplog.text


def test_a_folder_of_another_run_is_refused(tmp_path: Path, base: Path, rows: Path) -> None:
    config = write_config(tmp_path / "c.yml", base, rows, measure=False)
    out = tmp_path / "out"
    train_expert(read_config(str(config)), out)
    call = ["train", str(config), "--out", str(out)]
    for settings, said in [
        (["--set", "learning_rate=0.5"], "learning_rate is 0.001 there and 0.5 here"),
        (["--seed", "3"], "seed is 0 there and 3 here"),
        (["--set", "regime={kind: lora}"], 'regime is {"kind": "full"} there'),
    ]:
        result = CliRunner().invoke(main, [*call, *settings])
        assert result.exit_code == 2
        assert "holds a run of other settings; choose another --out" in result.output
        assert said in result.output
    # What changes no weight may differ.
    assert CliRunner().invoke(main, [*call, "--set", "log_every=3"]).exit_code == 0
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    result = CliRunner().invoke(main, ["train", str(config), "--out", str(other)])
    assert result.exit_code == 2
    assert "is no training folder" in result.output


def test_other_rows_in_the_same_file_are_another_run(
    tmp_path: Path, base: Path, rows: Path
) -> None:
    mine = tmp_path / "mine.jsonl"
    mine.write_text(rows.read_text())
    config = write_config(tmp_path / "c.yml", base, mine, measure=False)
    train_expert(read_config(str(config)), tmp_path / "out")
    mine.write_text(rows.read_text().replace("w3", "w4"))
    with pytest.raises(LayerSwapError, match="rows is"):
        train_expert(read_config(str(config)), tmp_path / "out")
