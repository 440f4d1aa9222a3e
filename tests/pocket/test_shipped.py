"""The base that ships: whole, refused when damaged, and the one that a rebuild makes."""

import itertools
import os
from pathlib import Path

import pytest
import torch

from ablations.pocket import build
from ablations.pocket.build import PocketConfig, build_pocket, plan_stages
from ablations.pocket.pretraining import (
    base_batches,
    build_model,
    train,
)
from ablations.scoring.records import EvaluationRequest
from layerswap_method.errors import InputError
from tests.standins.cold import evaluate_cold

LIMIT = 4_000_000
"""Bytes that a base may add to the wheel."""
UNTRAINED = ("samples=4", "batch_size=4", "trainer.warmup_steps=0")


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_it_is_the_base_of_seed_0_and_no_other():
    note = build.read_note()
    assert note["licence"] == "Apache-2.0"
    assert build.WEIGHTS.stat().st_size < LIMIT
    for config, ships in (PocketConfig(), True), (PocketConfig(seed=1), False):
        stages = plan_stages(Path("/nowhere"), config, retrain=True)
        assert (next(iter(stages)).key == note["key"]) is ships


def test_other_weights_are_refused(tmp_path, monkeypatch):
    damaged = tmp_path / "base.safetensors"
    monkeypatch.setattr(build, "WEIGHTS", damaged)
    with pytest.raises(InputError, match="has no file; install layerswap again"):
        build_pocket(tmp_path / "pocket")
    damaged.write_bytes(b"0" * 100)
    with pytest.raises(InputError, match=r"should have SHA-256 .*; install layerswap again"):
        build_pocket(tmp_path / "pocket")
    assert not (tmp_path / "pocket").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "retrain",
    [
        False,
        pytest.param(
            True,
            marks=pytest.mark.skipif("REBUILD" not in os.environ, reason="make rebuild-base"),
        ),
    ],
)
def test_the_base_and_a_rebuild_score_what_the_note_says(retrain, tmp_path):
    config = PocketConfig(expert_settings=UNTRAINED)
    paths = build_pocket(tmp_path / "pocket", config, retrain=retrain)
    scores = build.read_note()["scores"]
    tasks = tuple(scores) if retrain else ("pocket_math_sw",)
    request = EvaluationRequest(tasks=tasks, include_path=paths.tasks_dir, limit=300)
    evaluation = evaluate_cold(paths.base, request)
    for task in tasks:
        metric = "acc" if "comprehension" in task else "exact_match"
        # Two standard errors of 300 items: another processor trains other bytes.
        tolerance = 0.06 if retrain else 0.01
        found = evaluation.score(task, metric).value
        assert found == pytest.approx(scores[task], abs=tolerance), task


@pytest.mark.slow
def test_a_rebuild_begins_with_the_loss_of_the_note(one_thread):
    """The first steps of the command in the note; all of them take a quarter of an hour."""
    config = PocketConfig()
    model = build_model(config.shape, config.seed)
    steps = train(model, base_batches(config.base, config.seed), config.base)
    losses = list(itertools.islice(steps, 20))
    assert sum(losses) / 20 == pytest.approx(build.read_note()["first_loss"], abs=0.01)
