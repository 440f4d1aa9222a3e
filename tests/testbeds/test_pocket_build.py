"""Building: whole checkpoints, determinism, resume; the base that ships is one that is rebuilt."""

import itertools
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from ablations.machine.fingerprint import hash_file
from ablations.machine.locks import try_claim
from ablations.machine.whole_files import Stage
from ablations.scoring.evaluation import EvaluationRequest
from ablations.testbeds.pocket import build
from ablations.testbeds.pocket.build import EXPERTS_OF_A_SEED, MANIFEST, PocketConfig, build_pocket
from ablations.testbeds.pocket.pretraining import base_batches, build_model, pretrain
from ablations.train.config import read_training_file
from ablations.train.run import train_expert
from layerswap_method.errors import InputError, LayerSwapError
from tests.standins.command import layerswap, output_of
from tests.standins.fresh_engines import evaluate_cold

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
    found = {name: Stage(root / name, "", MANIFEST).hashes(root / name) for name in MODELS}
    for files in found.values():
        files.pop("training.json", None)
    return found


def written_at(root):
    return {name: (root / name / MANIFEST).stat().st_mtime_ns for name in MODELS}


def keys(config, **options):
    return {stage.name: stage.key for stage in build.stages_of(Path("/nowhere"), config, **options)}


def test_a_change_rebuilds_what_depends_on_it_and_nothing_else():
    before = keys(TINY)
    assert list(before) == ["base", *EXPERTS_OF_A_SEED, "tasks"]
    for changes, names in [
        ({}, set()),
        ({"seed": 1}, {"base", *EXPERTS_OF_A_SEED}),
        ({"base": TINY.base.model_copy(update={"rare_words": 0.2})}, {"base", *EXPERTS_OF_A_SEED}),
        ({"expert_settings": ("trainer.learning_rate=0.1",)}, set(EXPERTS_OF_A_SEED)),
        ({"expert_seeds": (0, 1)}, {f"{role}-1" for role in EXPERTS_OF_A_SEED}),
    ]:
        after = keys(PocketConfig.preset("tiny", **changes))
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
    torch.set_num_threads(threads)
    # An expert is what the train command makes, and nothing else.
    model = {"model.safetensors", "config.json", "generation_config.json"}
    files = {path.name for path in tiny_pocket.language.iterdir()}
    assert files == {*model, "tokenizer.json", "tokenizer_config.json", "training.json", MANIFEST}
    settings = ("seed=0", f"base={tiny_pocket.base}", *TINY.expert_settings)
    with build._on_one_thread():
        train_expert(read_training_file("pocket/swahili", settings), tmp_path / "by_hand")
    for name in model:
        assert hash_file(tmp_path / "by_hand" / name) == hash_file(tiny_pocket.language / name)


def test_a_moved_testbed_trains_nothing_and_a_second_build_does_nothing(copied, tiny_pocket):
    before = written_at(copied)
    assert before == written_at(tiny_pocket.root)
    for task in (copied / "tasks").glob("pocket_*.yaml"):
        assert str(copied) in task.read_text()
        assert str(tiny_pocket.root) not in task.read_text()
    words = ("pocket", "build", "--preset", "tiny", "--out", copied)
    claim = try_claim(copied, ".lock")
    result = layerswap(*words)
    assert (result.exit_code, "another build is writing to" in result.output) == (2, True)
    claim.release()
    output = output_of(*words)
    assert f"{copied}: up to date, nothing to do" in output
    assert f"tasks: {copied / 'tasks'}" in output
    assert written_at(copied) == before


def test_failed_training_is_one_error_and_keeps_finished_stages(copied, tiny_pocket, tmp_path):
    (copied / "base" / "config.json").write_text("{")
    stage = Stage(copied / "base", "", MANIFEST)
    manifest = {**stage.read(), "files": stage.hashes(stage.folder)}
    (stage.folder / MANIFEST).write_text(json.dumps(manifest))
    shutil.rmtree(copied / "language")
    with pytest.raises(LayerSwapError, match=r"making 'language' failed: .* to continue"):
        build_pocket(copied, TINY)
    assert hashes(copied)["task"] == hashes(tiny_pocket.root)["task"]
    assert not (copied / "language").exists()
    (tmp_path / "other/base").mkdir(parents=True)
    (tmp_path / "other/base/mine.txt").touch()
    with pytest.raises(InputError, match="give another folder"):
        build_pocket(tmp_path / "other", TINY)


def test_it_is_the_base_of_seed_0_and_no_other():
    note = build.read_note()
    assert note["licence"] == "Apache-2.0"
    assert build.WEIGHTS.stat().st_size < 4_000_000  # which it adds to the wheel
    for config, ships in (PocketConfig(), True), (PocketConfig(seed=1), False):
        assert (keys(config, retrain=True)["base"] == note["key"]) is ships


def test_other_weights_are_refused(tmp_path, monkeypatch):
    damaged = tmp_path / "base.safetensors"
    monkeypatch.setattr(build, "WEIGHTS", damaged)
    with pytest.raises(InputError, match="has no file; install layerswap again"):
        build_pocket(tmp_path / "pocket")
    damaged.write_bytes(b"0" * 100)
    with pytest.raises(InputError, match=r"should have SHA-256 .*; install layerswap again"):
        build_pocket(tmp_path / "pocket")
    assert not (tmp_path / "pocket").exists()


rebuild = pytest.mark.skipif("REBUILD" not in os.environ, reason="make rebuild-base")


@pytest.mark.slow
@pytest.mark.parametrize("retrain", [False, pytest.param(True, marks=rebuild)])
def test_the_base_and_a_rebuild_score_what_the_note_says(retrain, tmp_path):
    untrained = ("samples=4", "batch_size=4", "trainer.warmup_steps=0")
    config = PocketConfig(expert_settings=untrained)
    paths = build_pocket(tmp_path / "pocket", config, retrain=retrain)
    scores = build.read_note()["scores"]
    tasks = tuple(scores) if retrain else ("pocket_math_sw",)
    request = EvaluationRequest(tasks=tasks, include_path=paths.tasks_dir, limit=300)
    evaluation = evaluate_cold(paths.base, request)
    for task in tasks:
        metric = "acc" if "comprehension" in task else "exact_match"
        # Two standard errors of 300 items: another processor trains other bytes.
        tolerance = 0.06 if retrain else 0.01
        (found,) = (s.value for s in evaluation.scores if (s.task, s.metric) == (task, metric))
        assert found == pytest.approx(scores[task], abs=tolerance), task


@pytest.mark.slow
def test_a_rebuild_begins_with_the_loss_of_the_note():
    """The first steps of the command in the note; all of them take a quarter of an hour."""
    config = PocketConfig()
    with build._on_one_thread():
        model = build_model(config.shape, config.seed)
        steps = pretrain(model, base_batches(config.base, config.seed), config.base)
        losses = list(itertools.islice(steps, 20))
    assert sum(losses) / 20 == pytest.approx(build.read_note()["first_loss"], abs=0.01)
