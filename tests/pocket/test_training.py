"""The training loop itself: it lowers the loss, and repeats to the bit."""

from __future__ import annotations

import pytest
import torch

from ablations.pocket.batches import draw_batches
from ablations.pocket.config import PocketConfig, Training
from ablations.pocket.corpora import draw_documents
from ablations.pocket.tokenizer import vocabulary
from ablations.pocket.training import build_model, train

SHAPE = PocketConfig.preset("tiny").shape


def train_on_equations(steps: int, *, train_embeddings: bool) -> tuple[list[float], torch.Tensor]:
    model = build_model(SHAPE, seed=0)
    training = Training(
        steps=steps, learning_rate=3e-3, tokens_per_batch=256, train_embeddings=train_embeddings
    )
    batches = draw_batches(draw_documents("copying", 0), vocabulary(), tokens_per_batch=256, seed=0)
    seen: list[int] = []
    losses = train(model, batches, training, lambda step, loss: seen.append(step))
    assert seen == list(range(1, steps + 1))
    return losses, model.get_input_embeddings().weight.detach().clone()


@pytest.mark.slow
def test_loss_falls_and_repeats_exactly() -> None:
    losses, embeddings = train_on_equations(60, train_embeddings=True)
    assert sum(losses[-10:]) < 0.85 * sum(losses[:10])
    again, same = train_on_equations(60, train_embeddings=True)
    assert again == losses
    assert torch.equal(embeddings, same)


def test_frozen_embeddings_stay_to_the_bit() -> None:
    fresh = build_model(SHAPE, seed=0).get_input_embeddings().weight
    _, frozen = train_on_equations(3, train_embeddings=False)
    assert torch.equal(fresh, frozen)
    _, trained = train_on_equations(3, train_embeddings=True)
    assert not torch.equal(fresh, trained)
    other = build_model(SHAPE, seed=1).get_input_embeddings().weight
    assert not torch.equal(fresh, other)
