"""Building for real with the `tiny` preset: complete checkpoints, determinism, cache, resume."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from ablations.machine.locks import try_claim
from ablations.pocket.build import PocketPaths, build_pocket
from ablations.pocket.config import PocketConfig
from ablations.pocket.stages import hash_files, read_manifest
from layerswap_method.errors import InputError, LayerSwapError
from tests.waiting import wait_for_end, wait_until

TINY = PocketConfig.preset("tiny")
MODELS = ("base", "task", "language")

pytestmark = pytest.mark.slow


@pytest.fixture
def copied(tiny_pocket: PocketPaths, tmp_path: Path) -> Path:
    """Return a copy that a test may harm, its tasks repaired for the new place."""
    shutil.copytree(tiny_pocket.root, tmp_path / "pocket")
    build_pocket(tmp_path / "pocket", TINY)
    return tmp_path / "pocket"


def written_at(root: Path) -> dict[str, int]:
    return {name: (root / name / "pocket_stage.json").stat().st_mtime_ns for name in MODELS}


def test_checkpoints_are_whole_float32_and_load(tiny_pocket: PocketPaths) -> None:
    for name in MODELS:
        folder = tiny_pocket.root / name
        tensors = load_file(folder / "model.safetensors")
        assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}
        model = AutoModelForCausalLM.from_pretrained(folder)
        assert model.config.num_hidden_layers == TINY.shape.num_layers
        assert model.config.tie_word_embeddings
        assert model.generation_config.eos_token_id == 2
        tokenizer = AutoTokenizer.from_pretrained(folder)
        assert len(tokenizer) == model.config.vocab_size
        ids = tokenizer("Juma ana ba bi ka la . solve :", return_tensors="pt")
        assert tokenizer.unk_token_id not in ids["input_ids"]
        assert ids["input_ids"][0, 0] == tokenizer.bos_token_id
        assert torch.isfinite(model(**ids).logits).all()


def test_training_learns_and_experts_differ_from_their_base(tiny_pocket: PocketPaths) -> None:
    stages = json.loads((tiny_pocket.root / "pocket.json").read_text())["stages"]
    losses = stages["base"]["losses"]
    assert len(losses) == 2
    assert losses[1] < 0.9 * losses[0]
    base = load_file(tiny_pocket.base / "model.safetensors")
    for role in ("task", "language"):
        expert = load_file(tiny_pocket.root / role / "model.safetensors")
        moved = {name for name in base if not torch.equal(base[name], expert[name])}
        assert moved == set(base) - {"model.embed_tokens.weight"}


def test_same_config_gives_the_same_bytes(tiny_pocket: PocketPaths, tmp_path: Path) -> None:
    again = build_pocket(tmp_path / "again", TINY)
    for name in MODELS:
        assert hash_files(again.root / name) == hash_files(tiny_pocket.root / name)


def test_a_moved_testbed_trains_nothing_and_a_second_build_does_nothing(
    copied: Path, tiny_pocket: PocketPaths, caplog: pytest.LogCaptureFixture
) -> None:
    before = written_at(copied)
    assert before == written_at(tiny_pocket.root)
    for task in (copied / "tasks").glob("pocket_*.yaml"):
        assert str(copied) in task.read_text()
        assert str(tiny_pocket.root) not in task.read_text()
    with caplog.at_level(logging.INFO):
        build_pocket(copied, TINY)
    assert written_at(copied) == before
    assert f"{copied}: up to date, nothing to do" in caplog.text


def test_damaged_and_missing_stages_are_rebuilt_alone(
    copied: Path, tiny_pocket: PocketPaths, caplog: pytest.LogCaptureFixture
) -> None:
    before = written_at(copied)
    weights = copied / "task" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    (copied / ".language.1.partial").mkdir()
    shutil.rmtree(copied / "language")
    with caplog.at_level(logging.INFO):
        build_pocket(copied, TINY)
    assert "to build: task, language" in caplog.text
    assert "training task: step 10/10" in caplog.text
    after = written_at(copied)
    assert after["base"] == before["base"]
    assert after["task"] != before["task"]
    assert not list(copied.glob(".*.partial"))
    for name in MODELS:
        assert hash_files(copied / name) == hash_files(tiny_pocket.root / name)


def test_failed_training_is_one_error_and_keeps_finished_stages(
    copied: Path, tiny_pocket: PocketPaths
) -> None:
    (copied / "base" / "config.json").write_text("{")
    manifest = read_manifest(copied / "base")
    manifest["files"] = hash_files(copied / "base")
    (copied / "base" / "pocket_stage.json").write_text(json.dumps(manifest))
    shutil.rmtree(copied / "language")
    with pytest.raises(LayerSwapError, match=r"training 'language' failed \(exit code 1\)"):
        build_pocket(copied, TINY)
    assert hash_files(copied / "task") == hash_files(tiny_pocket.task)


def test_training_ends_when_the_build_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "build.py"
    script.write_text(
        "from pathlib import Path\n"
        "from ablations.pocket.build import build_pocket\n"
        "if __name__ == '__main__':\n"
        f"    build_pocket(Path({str(tmp_path / 'pocket')!r}), retrain=True)\n"
    )
    paths = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    parent = subprocess.Popen([sys.executable, script], env={**os.environ, "PYTHONPATH": paths})
    root = tmp_path / "pocket"
    wait_until(lambda: next(root.glob(".base.*.partial/base"), None), running=parent)
    family = psutil.Process(parent.pid).children(recursive=True)
    assert family
    parent.kill()
    parent.wait()
    wait_for_end(family)


def test_two_builds_at_once_are_refused(copied: Path) -> None:
    claim = try_claim(copied, ".lock")
    assert claim is not None
    with pytest.raises(InputError, match="another build is writing to"):
        build_pocket(copied, TINY)
    claim.release()
    build_pocket(copied, TINY)
