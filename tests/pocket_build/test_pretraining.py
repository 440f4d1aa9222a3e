"""The training loop itself: it lowers the loss, and repeats to the bit."""

from __future__ import annotations

import pytest
import torch

from ablations.pocket.batches import draw_batches
from ablations.pocket.corpora import draw_documents
from ablations.pocket.tokenizer import vocabulary
from ablations.pocket_build.config import PocketConfig, Pretraining
from ablations.pocket_build.muon import Muon, orthogonalise
from ablations.pocket_build.pretraining import build_model, train

SHAPE = PocketConfig.preset("tiny").shape


def train_on_problems(steps: int) -> tuple[list[float], torch.Tensor]:
    model = build_model(SHAPE, seed=0)
    training = Pretraining(
        steps=steps,
        learning_rate=3e-3,
        matrix_rate=0.02,
        tokens_per_batch=256,
    )
    batches = draw_batches(draw_documents("task", 0), vocabulary(), tokens_per_batch=256, seed=0)
    seen: list[int] = []
    losses = train(model, batches, training, lambda step, loss: seen.append(step))
    assert seen == list(range(1, steps + 1))
    return losses, model.get_input_embeddings().weight.detach().clone()


@pytest.mark.slow
def test_loss_falls_and_repeats_exactly() -> None:
    losses, embeddings = train_on_problems(60)
    assert sum(losses[-10:]) < 0.85 * sum(losses[:10])
    again, same = train_on_problems(60)
    assert again == losses
    assert torch.equal(embeddings, same)


def test_the_seed_decides_the_first_weights_and_training_moves_them() -> None:
    fresh, other = (build_model(SHAPE, seed).get_input_embeddings().weight for seed in (0, 1))
    assert not torch.equal(fresh, other)
    _, trained = train_on_problems(3)
    assert not torch.equal(fresh, trained)


def test_muon_steps_along_orthogonal_matrices_and_each_shape_by_itself() -> None:
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
        assert parameter.grad is not None
        expected = -0.1 * scale * orthogonalise(parameter.grad[None] * 1.95)[0]
        assert torch.allclose(parameter.detach(), expected, atol=1e-6)
        assert (parameter.detach() * parameter.grad).sum() < 0
