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

from ablations.machine.fingerprint import hash_file
from ablations.machine.locks import try_claim
from ablations.machine.stages import Stage
from ablations.pocket_build.build import MANIFEST, PocketPaths, build_pocket
from ablations.pocket_build.config import PocketConfig
from ablations.train.files import read_config
from ablations.train.run import train_expert
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


def hashes(folder: Path) -> dict[str, str]:
    """Return the hash of every file that does not say where the base was."""
    found = Stage(folder, "", MANIFEST).hashes(folder)
    found.pop("training.json", None)
    return found


def written_at(root: Path) -> dict[str, int]:
    return {name: (root / name / MANIFEST).stat().st_mtime_ns for name in MODELS}


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
        assert moved == {name for name in base if ".layers." in name}


def test_an_expert_is_what_the_train_command_makes_and_nothing_else(
    tiny_pocket: PocketPaths, tmp_path: Path
) -> None:
    model = {"model.safetensors", "config.json", "generation_config.json"}
    files = {path.name for path in tiny_pocket.language.iterdir()}
    assert files == {*model, "tokenizer.json", "tokenizer_config.json", "training.json", MANIFEST}
    settings = ("seed=0", f"base={tiny_pocket.base}", *TINY.expert_settings)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    train_expert(read_config("pocket/swahili", settings), tmp_path / "by_hand")
    torch.set_num_threads(threads)
    for name in model:
        assert hash_file(tmp_path / "by_hand" / name) == hash_file(tiny_pocket.language / name)


def test_same_config_gives_the_same_bytes(tiny_pocket: PocketPaths, tmp_path: Path) -> None:
    again = build_pocket(tmp_path / "again", TINY)
    for name in MODELS:
        assert hashes(again.root / name) == hashes(tiny_pocket.root / name)


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
        assert hashes(copied / name) == hashes(tiny_pocket.root / name)


def test_failed_training_is_one_error_and_keeps_finished_stages(
    copied: Path, tiny_pocket: PocketPaths
) -> None:
    (copied / "base" / "config.json").write_text("{")
    manifest = Stage(copied / "base", "", MANIFEST).read()
    manifest["files"] = hashes(copied / "base")
    (copied / "base" / MANIFEST).write_text(json.dumps(manifest))
    shutil.rmtree(copied / "language")
    with pytest.raises(LayerSwapError, match=r"training 'language' failed \(exit code 1\)"):
        build_pocket(copied, TINY)
    assert hashes(copied / "task") == hashes(tiny_pocket.task)


def test_training_ends_when_the_build_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "build.py"
    script.write_text(
        "from pathlib import Path\n"
        "from ablations.pocket_build.build import build_pocket\n"
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
