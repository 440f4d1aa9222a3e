"""The pretraining of a base, from fresh weights. Knows torch and transformers; not the text.

A loop of its own, with Muon, because this is no fine-tuning: experts are trained by
`ablations.train`. On one thread the same inputs give the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ablations.pocket.batches import Batch
from ablations.pocket.tokenizer import BOS_ID, EOS_ID, PAD_ID, build_tokenizer, vocabulary
from ablations.pocket_build.config import ModelShape, Pretraining
from ablations.pocket_build.muon import Muon

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

FINAL_RATE = 0.05
BETAS = (0.9, 0.98)
GRADIENT_NORM = 1.0


def build_model(shape: ModelShape, seed: int) -> LlamaForCausalLM:
    """Return a Llama with fresh float32 weights drawn from `seed` and tied embeddings."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(vocabulary()),
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads or shape.num_heads,
        max_position_embeddings=shape.context,
        initializer_range=shape.initializer_range,
        tie_word_embeddings=True,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
        pad_token_id=PAD_ID,
        dtype="float32",
    )
    torch.manual_seed(seed)
    return LlamaForCausalLM(config)


def save_checkpoint(model: LlamaForCausalLM, folder: Path) -> None:
    """Write weights, config, generation config and tokenizer to `folder`."""
    model.generation_config.do_sample = False
    model.save_pretrained(folder)
    build_tokenizer(model.config.max_position_embeddings).save_pretrained(folder)


def rate_factor(step: int, training: Pretraining) -> float:
    """Return the share of the peak rate at a 0-based step: linear warmup times a cosine.

    The cosine falls from 1 to 0.05 over all steps.
    """
    warmup = min(1.0, (step + 1) / training.warmup_steps) if training.warmup_steps else 1.0
    cosine = 0.5 * (1 + math.cos(math.pi * step / training.steps))
    return warmup * (FINAL_RATE + (1 - FINAL_RATE) * cosine)


def train(
    model: LlamaForCausalLM,
    batches: Iterator[Batch],
    training: Pretraining,
    on_step: Callable[[int, float], None],
) -> list[float]:
    """Train `model` in place and return the loss of every step (nats per learned token).

    Args:
        model: float32 model; all of it is trained.
        batches: an endless iterator.
        training: steps, rates.
        on_step: called after every step with the number of steps done and the loss.
    """
    matrices: list[torch.nn.Parameter] = []
    others: list[torch.nn.Parameter] = []
    for name, parameter in model.named_parameters():
        is_matrix = ".layers." in name and parameter.dim() == 2
        by_muon = is_matrix and training.matrix_rate is not None
        (matrices if by_muon else others).append(parameter)
    optimizer = torch.optim.AdamW(
        others,
        lr=training.learning_rate,
        betas=BETAS,
        weight_decay=training.weight_decay,
        fused=True,
    )
    muon = Muon(matrices)
    model.train()
    losses: list[float] = []
    for step in range(training.steps):
        factor = rate_factor(step, training)
        for group in optimizer.param_groups:
            group["lr"] = training.learning_rate * factor
        batch = next(batches)
        ids, weights = torch.tensor(batch.ids), torch.tensor(batch.weights)[:, 1:]
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
        each = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
        )
        loss = (each * weights.flatten()).sum() / weights.sum()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(others, GRADIENT_NORM)
        optimizer.step()
        muon.step((training.matrix_rate or 0.0) * factor)
        model.zero_grad()
        losses.append(loss.item())
        on_step(step + 1, losses[-1])
    model.eval()
    return losses
