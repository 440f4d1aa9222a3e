"""A run that is ended goes on to the same weights; a folder belongs to one run."""

import os
import signal
import subprocess
import sys

import pytest

from ablations.train.folder import step_of, whole_checkpoints
from layerswap_method.errors import LayerSwapError
from tests.standins.tuned import train_adapter
from tests.train.runs import call, equal_weights, run, write_config, write_rows
from tests.waiting import wait_until


def steps(out):
    return [step_of(checkpoint) for checkpoint in whole_checkpoints(out)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"regime": "full"},
        {"regime": "lora", "lora": {"r": 4, "lora_dropout": 0.2}},
        {"regime": {"kind": "adapter_fusion", "experts": {"a": "a", "b": "b"}}},
    ],
    ids=["full", "lora", "fusion"],
)
def test_a_run_ended_by_sigkill_goes_on_to_the_same_weights(tmp_path, base, rows, changes):
    if "experts" in changes["regime"]:
        experts = {
            name: str(train_adapter(base, tmp_path / name, seed, target_modules=["q_proj"]))
            for seed, name in enumerate("ab")
        }
        changes = {"regime": {**changes["regime"], "experts": experts}}
    trainer = {"save_strategy": "steps", "save_steps": 5}
    config = write_config(tmp_path / "c.yml", base, rows, samples=200, trainer=trainer, **changes)
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    command = [sys.executable, "-c", "from ablations.cli import main; main()", "train", str(config)]
    options = {"env": {**os.environ, "OMP_NUM_THREADS": "1"}}
    subprocess.run([*command, "--out", str(undisturbed)], check=True, **options)
    process = subprocess.Popen([*command, "--out", str(killed)], **options)
    wait_until(lambda: len(steps(killed)) >= 3, running=process)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it was over before it could be ended"
    assert not (killed / "experts.yml").exists()
    done = subprocess.run(
        [*command, "--out", str(killed)], check=True, capture_output=True, text=True, **options
    )
    assert "going on from" in done.stderr
    assert steps(killed) == list(range(5, 51, 5))
    assert equal_weights(undisturbed, killed)
    for step in steps(killed):
        name = f"checkpoints/checkpoint-{step}"
        assert equal_weights(undisturbed / name, killed / name)


def test_half_a_checkpoint_is_removed_and_the_one_before_is_used(tmp_path, base, rows):
    trainer = {"save_strategy": "steps", "save_steps": 1}
    config = write_config(tmp_path / "c.yml", base, rows, trainer=trainer)
    whole, out = tmp_path / "whole", tmp_path / "out"
    run(config, whole)
    assert steps(whole) == [1, 2, 3, 4]
    _stop_at(config, out, 2)
    assert steps(out) == [1]
    # As if it had been killed while the second checkpoint was being written.
    half = out / "checkpoints/checkpoint-2"
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half")
    (half / "trainer_state.json").write_text('{"global_step"')
    assert steps(out) == [1]
    run(config, out)
    assert steps(out) == steps(whole)
    assert equal_weights(out, whole)


def _stop_at(config, out, step):
    """Train until the loss after a step is not finite, as it were."""
    from ablations.train import trainer

    def stop(self, args, state, control, logs, **_):
        if state.global_step == step:
            raise LayerSwapError("stopped")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer._Watch, "on_log", stop)
        with pytest.raises(LayerSwapError, match="stopped"):
            run(config, out)


def test_only_the_newest_checkpoint_has_the_optimiser_and_limits_hold(tmp_path, base, rows):
    trainer = {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 3}
    config = write_config(tmp_path / "c.yml", base, rows, trainer=trainer)
    out = tmp_path / "out"
    _stop_at(config, out, 4)
    assert [p.parent.name for p in out.rglob("optimizer.pt")] == ["checkpoint-3"]
    run(config, out)
    assert steps(out) == [2, 3, 4]
    assert not [*out.rglob("optimizer.pt"), *out.rglob("*.bin")]


def test_a_finished_run_is_left_as_it_is_and_its_folder_belongs_to_it(tmp_path, base, rows, caplog):
    config, out = write_config(tmp_path / "c.yml", base, rows), tmp_path / "out"
    run(config, out)
    files = [path for path in out.rglob("*") if path.is_file() and ".lock" not in path.name]
    before = [path.stat().st_mtime_ns for path in files]
    with caplog.at_level("INFO", logger="ablations"):
        run(
            config, out, "trainer.logging_steps=3", "trainer.save_steps=2"
        )  # no weight depends on it
    assert [path.stat().st_mtime_ns for path in files] == before
    assert "nothing to do" in caplog.text
    for setting, text in {
        "trainer.learning_rate=0.5": "trainer is",
        "seed=3": "seed is 0 there and 3 here",
        "regime=lora": 'regime is {"kind": "full"} there',
        f"data=[{{path: {write_rows(tmp_path / 'r.jsonl', shift=2)}, prompt: '{{question}} ', "
        "answer: '{reply}'}]": "rows is",
    }.items():
        result = call(config, out, setting)
        assert result.exit_code == 2
        assert "holds a run of other settings; choose another --out" in result.output
        assert text in result.output
    result = call(config, tmp_path)
    assert result.exit_code == 2
    assert "is no training folder" in result.output
