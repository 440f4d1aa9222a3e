"""Building with the `tiny` preset: complete checkpoints, determinism, cache, resume."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from ablations.cli.training import pocket
from ablations.machine.fingerprint import hash_file
from ablations.machine.locks import try_claim
from ablations.machine.stages import Stage
from ablations.pocket.build import (
    EXPERTS_OF_A_SEED,
    MANIFEST,
    PocketConfig,
    build_pocket,
    plan_stages,
)
from ablations.train.config import read_config
from ablations.train.run import train_expert
from layerswap_method.errors import InputError, LayerSwapError

TINY = PocketConfig.preset("tiny")
MODELS = ("base", "task", "language")


@pytest.fixture
def copied(tiny_pocket, tmp_path):
    """Return a copy that a test may harm, its tasks repaired for the new place."""
    shutil.copytree(tiny_pocket.root, tmp_path / "pocket")
    build_pocket(tmp_path / "pocket", TINY)
    return tmp_path / "pocket"


def hashes(root):
    """Return the hash of every file of the models that does not say where the base was."""
    found = {}
    for folder in filter(Path.is_dir, (root / name for name in MODELS)):
        found[folder.name] = Stage(folder, "", MANIFEST).hashes(folder)
        found[folder.name].pop("training.json", None)
    return found


def written_at(root):
    return {name: (root / name / MANIFEST).stat().st_mtime_ns for name in MODELS}


def keys(**changes):
    stages = plan_stages(Path("/nowhere"), PocketConfig.preset("tiny", **changes))
    return {stage.name: stage.key for stage in stages}


def test_a_change_rebuilds_what_depends_on_it_and_nothing_else():
    before = keys()
    assert list(before) == ["base", *EXPERTS_OF_A_SEED, "tasks"]
    for changes, names in [
        ({}, set()),
        ({"seed": 1}, {"base", *EXPERTS_OF_A_SEED}),
        ({"base": TINY.base.model_copy(update={"rare_words": 0.2})}, {"base", *EXPERTS_OF_A_SEED}),
        ({"expert_settings": ("trainer.learning_rate=0.1",)}, set(EXPERTS_OF_A_SEED)),
        ({"expert_seeds": (0, 1)}, {f"{role}-1" for role in EXPERTS_OF_A_SEED}),
    ]:
        after = keys(**changes)
        assert {name for name in after if after[name] != before.get(name)} == names


def test_checkpoints_are_whole_float32_and_load(tiny_pocket):
    weights = {n: load_file(tiny_pocket.root / n / "model.safetensors") for n in MODELS}
    for name, tensors in weights.items():
        assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}
        model = AutoModelForCausalLM.from_pretrained(tiny_pocket.root / name)
        assert model.config.num_hidden_layers == TINY.shape.num_layers
        assert model.config.tie_word_embeddings
        tokenizer = AutoTokenizer.from_pretrained(tiny_pocket.root / name)
        assert len(tokenizer) == model.config.vocab_size
        ids = tokenizer("Juma ana ba bi ka la . solve :", return_tensors="pt")
        assert tokenizer.unk_token_id not in ids["input_ids"]
        assert torch.isfinite(model(**ids).logits).all()
    assert json.loads((tiny_pocket.base / MANIFEST).read_text())["loss"] < 3.5  # of 5 at first
    base = weights.pop("base")
    for expert in weights.values():
        moved = {name for name in base if not torch.equal(base[name], expert[name])}
        assert moved == {name for name in base if ".layers." in name}


@pytest.mark.slow
def test_same_config_gives_the_same_bytes_and_the_process_is_as_before(tiny_pocket, tmp_path):
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    again = build_pocket(tmp_path / "again", TINY)
    assert hashes(again.root) == hashes(tiny_pocket.root)
    assert torch.get_num_threads() == 2
    assert not torch.are_deterministic_algorithms_enabled()
    # An expert is what the train command makes, and nothing else.
    model = {"model.safetensors", "config.json", "generation_config.json"}
    files = {path.name for path in tiny_pocket.language.iterdir()}
    assert files == {*model, "tokenizer.json", "tokenizer_config.json", "training.json", MANIFEST}
    torch.set_num_threads(1)
    settings = ("seed=0", f"base={tiny_pocket.base}", *TINY.expert_settings)
    train_expert(read_config("pocket/swahili", settings), tmp_path / "by_hand")
    torch.set_num_threads(threads)
    for name in model:
        assert hash_file(tmp_path / "by_hand" / name) == hash_file(tiny_pocket.language / name)


def test_a_moved_testbed_trains_nothing_and_a_second_build_does_nothing(copied, tiny_pocket):
    before = written_at(copied)
    assert before == written_at(tiny_pocket.root)
    for task in (copied / "tasks").glob("pocket_*.yaml"):
        assert str(copied) in task.read_text()
        assert str(tiny_pocket.root) not in task.read_text()
    arguments = ["build", "--preset", "tiny", "--out", str(copied)]
    claim = try_claim(copied, ".lock")
    result = CliRunner().invoke(pocket, arguments)
    assert result.exit_code == 2
    assert "another build is writing to" in result.output
    claim.release()
    result = CliRunner().invoke(pocket, arguments)
    assert result.exit_code == 0, result.output
    assert f"{copied}: up to date, nothing to do" in result.output
    assert f"tasks: {copied / 'tasks'}" in result.output
    assert written_at(copied) == before


def test_failed_training_is_one_error_and_keeps_finished_stages(copied, tiny_pocket, tmp_path):
    (copied / "base" / "config.json").write_text("{")
    manifest = Stage(copied / "base", "", MANIFEST).read()
    manifest["files"] = Stage(copied / "base", "", MANIFEST).hashes(copied / "base")
    (copied / "base" / MANIFEST).write_text(json.dumps(manifest))
    shutil.rmtree(copied / "language")
    with pytest.raises(LayerSwapError, match=r"making 'language' failed: .* to continue"):
        build_pocket(copied, TINY)
    assert hashes(copied)["task"] == hashes(tiny_pocket.root)["task"]
    assert not (copied / "language").exists()
    (tmp_path / "other/base").mkdir(parents=True)
    with pytest.raises(InputError, match="build in another folder"):
        build_pocket(tmp_path / "other", TINY)
