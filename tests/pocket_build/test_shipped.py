"""The base that ships: whole, refused when damaged, and the one that a rebuild makes."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ablations.pocket_build import shipped
from ablations.pocket_build.base import LOSS_INTERVAL, base_batches
from ablations.pocket_build.build import build_pocket, plan_jobs
from ablations.pocket_build.config import PocketConfig
from ablations.pocket_build.pretraining import build_model, train
from ablations.scoring.records import EvaluationRequest
from layerswap_method.errors import InputError
from tests.standins.cold import evaluate_cold

LIMIT = 4_000_000
"""Bytes that a base may add to the wheel."""


def test_it_is_the_base_of_seed_0_and_no_other() -> None:
    def ships(config: PocketConfig, *, retrain: bool = False) -> bool:
        own, found = (plan_jobs(Path("/nowhere"), config, retrain=r)[0] for r in (True, retrain))
        return own.stage.key != found.stage.key

    assert ships(PocketConfig())
    assert ships(PocketConfig.preset("full"))
    assert not ships(PocketConfig(), retrain=True)
    assert not ships(PocketConfig(seed=1))
    assert not ships(PocketConfig.preset("tiny"))


def test_the_weights_are_whole_and_small() -> None:
    assert shipped.WEIGHTS.stat().st_size < LIMIT
    note = shipped.read_note()
    assert note.licence == "Apache-2.0"
    assert note.seed == PocketConfig().seed
    model = build_model(PocketConfig().shape, seed=1)
    shipped.load_into(model)
    state = load_file(shipped.WEIGHTS)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, state[name])


def test_other_weights_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = tmp_path / "base.safetensors"
    monkeypatch.setattr(shipped, "WEIGHTS", damaged)
    with pytest.raises(InputError, match="found no file; install layerswap again"):
        build_pocket(tmp_path / "pocket")
    damaged.write_bytes(b"0" * 100)
    with pytest.raises(InputError, match=r"should have SHA-256 .*--retrain-base"):
        build_pocket(tmp_path / "pocket")
    assert not (tmp_path / "pocket").exists()


@pytest.mark.slow
def test_it_scores_what_the_note_says(tmp_path: Path) -> None:
    config = PocketConfig(expert_settings=("samples=4", "batch_size=4", "trainer.warmup_steps=0"))
    paths = build_pocket(tmp_path / "pocket", config)
    task = "pocket_math_sw"
    request = EvaluationRequest(tasks=(task,), include_path=paths.tasks_dir, limit=300)
    found = evaluate_cold(paths.base, request).score(task).value
    assert found == pytest.approx(shipped.read_note().scores[task], abs=0.01)


@pytest.mark.slow
@pytest.mark.skipif("REBUILD" not in os.environ, reason="trains for minutes: make rebuild-base")
def test_a_rebuild_scores_what_the_note_says(tmp_path: Path) -> None:
    config = PocketConfig(expert_settings=("samples=4", "batch_size=4", "trainer.warmup_steps=0"))
    paths = build_pocket(tmp_path / "pocket", config, retrain=True)
    note = shipped.read_note()
    request = EvaluationRequest(tasks=tuple(note.scores), include_path=paths.tasks_dir, limit=300)
    found = evaluate_cold(paths.base, request)
    for task, score in note.scores.items():
        metric = "acc" if "comprehension" in task else "exact_match"
        # Two standard errors of 300 items: another processor trains other bytes.
        assert found.score(task, metric).value == pytest.approx(score, abs=0.06), task


@pytest.mark.slow
def test_a_rebuild_follows_the_losses_of_the_note() -> None:
    """The first steps of the command in the note; all of them take a quarter of an hour."""
    config = PocketConfig()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    class Enough(Exception):
        pass

    losses: list[float] = []

    def stop(step: int, loss: float) -> None:
        losses.append(loss)
        if step == LOSS_INTERVAL:
            raise Enough

    batches = itertools.islice(base_batches(config), LOSS_INTERVAL)
    with pytest.raises(Enough):
        train(build_model(config.shape, config.seed), batches, config.base, stop)
    torch.set_num_threads(threads)
    assert sum(losses) / LOSS_INTERVAL == pytest.approx(shipped.read_note().losses[0], abs=0.01)
