"""The base that ships: whole, refused when damaged, and the one that a rebuild makes."""

import itertools
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ablations.pocket import shipped
from ablations.pocket.build import build_pocket, plan_stages
from ablations.pocket.config import PocketConfig, Pretraining
from ablations.pocket.pretraining import (
    Muon,
    base_batches,
    build_model,
    orthogonalise,
    rate_factor,
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


@pytest.mark.parametrize(
    ("config", "retrain", "ships"),
    [
        (PocketConfig(), False, True),
        (PocketConfig(), True, False),
        (PocketConfig(seed=1), False, False),
    ],
)
def test_it_is_the_base_of_seed_0_and_no_other(config, retrain, ships):
    own, planned = (
        next(iter(plan_stages(Path("/nowhere"), config, retrain=each))) for each in (True, retrain)
    )
    assert (own.key != planned.key) is ships


def test_the_weights_are_whole_and_small():
    assert shipped.WEIGHTS.stat().st_size < LIMIT
    note = shipped.read_note()
    assert note["licence"] == "Apache-2.0"
    assert note["seed"] == PocketConfig().seed
    model = build_model(PocketConfig().shape, seed=1)
    shipped.load_into(model)
    state = load_file(shipped.WEIGHTS)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, state[name])


def test_other_weights_are_refused(tmp_path, monkeypatch):
    damaged = tmp_path / "base.safetensors"
    monkeypatch.setattr(shipped, "WEIGHTS", damaged)
    with pytest.raises(InputError, match="has no file; install layerswap again"):
        build_pocket(tmp_path / "pocket")
    damaged.write_bytes(b"0" * 100)
    with pytest.raises(InputError, match=r"should have SHA-256 .*--retrain-base"):
        build_pocket(tmp_path / "pocket")
    assert not (tmp_path / "pocket").exists()


@pytest.mark.slow
def test_it_scores_what_the_note_says(tmp_path):
    paths = build_pocket(tmp_path / "pocket", PocketConfig(expert_settings=UNTRAINED))
    task = "pocket_math_sw"
    request = EvaluationRequest(tasks=(task,), include_path=paths.tasks_dir, limit=300)
    score = evaluate_cold(paths.base, request).score(task).value
    assert score == pytest.approx(shipped.read_note()["scores"][task], abs=0.01)


@pytest.mark.slow
@pytest.mark.skipif("REBUILD" not in os.environ, reason="trains for minutes: make rebuild-base")
def test_a_rebuild_scores_what_the_note_says(tmp_path):
    config = PocketConfig(expert_settings=UNTRAINED)
    paths = build_pocket(tmp_path / "pocket", config, retrain=True)
    note = shipped.read_note()
    request = EvaluationRequest(
        tasks=tuple(note["scores"]), include_path=paths.tasks_dir, limit=300
    )
    evaluation = evaluate_cold(paths.base, request)
    for task, score in note["scores"].items():
        metric = "acc" if "comprehension" in task else "exact_match"
        # Two standard errors of 300 items: another processor trains other bytes.
        assert evaluation.score(task, metric).value == pytest.approx(score, abs=0.06), task


@pytest.mark.slow
def test_a_rebuild_follows_the_losses_of_the_note(one_thread):
    """The first steps of the command in the note; all of them take a quarter of an hour."""
    config = PocketConfig()
    interval = shipped.LOSS_INTERVAL
    steps = train(build_model(config.shape, config.seed), base_batches(config), config.base)
    losses = list(itertools.islice(steps, interval))
    assert sum(losses) / interval == pytest.approx(shipped.read_note()["losses"][0], abs=0.01)


def test_rate_warms_up_then_falls_to_a_twentieth():
    training = Pretraining(steps=200, learning_rate=1.0, matrix_rate=0.1, warmup_steps=20)
    rates = [rate_factor(step, training) for step in range(200)]
    assert rates[0] == pytest.approx(1 / 20)
    assert max(rates) == rates[19]
    assert rates[19:] == sorted(rates[19:], reverse=True)
    assert rates[-1] == pytest.approx(0.05, abs=1e-3)


def test_muon_steps_along_orthogonal_matrices_and_each_shape_by_itself():
    torch.manual_seed(0)
    wide, tall = torch.randn(3, 8, 20), torch.randn(2, 20, 8)
    for matrices in (wide, tall):
        values = torch.linalg.svdvals(orthogonalise(matrices))
        assert values.min() > 0.5
        assert values.max() < 1.5
    parameters = [torch.nn.Parameter(torch.zeros(8, 20)), torch.nn.Parameter(torch.zeros(20, 8))]
    muon = Muon(parameters)
    for parameter, matrices in zip(parameters, (wide, tall), strict=True):
        parameter.grad = matrices[0].clone()
    muon.step(0.1)
    for parameter, scale in zip(parameters, (1.0, 2.5**0.5), strict=True):
        expected = -0.1 * scale * orthogonalise(parameter.grad[None] * 1.95)[0]
        assert torch.allclose(parameter.detach(), expected, atol=1e-6)
        assert (parameter.detach() * parameter.grad).sum() < 0
