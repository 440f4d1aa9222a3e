"""The pretraining of a base, from fresh weights: tokenizer, batches, the optimiser, the loop.

A loop of its own, with Muon, because this is not fine-tuning: experts are trained by
`ablations.train`. On one thread the same inputs give the same bytes.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ablations.machine.progress import Step, show_step
from ablations.pocket_world.corpora import draw_documents
from ablations.pocket_world.exercises import Exercise
from ablations.pocket_world.world import (
    NAMES,
    NUMBERS,
    SENTENCES,
    TRANSLATION,
)
from layerswap_method.frozen import Frozen

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

PAD_ID, BOS_ID, EOS_ID = 0, 1, 2

FINAL_RATE = 0.05
BETAS = (0.9, 0.98)
GRADIENT_NORM = 1.0
POOL_BATCHES = 24


class PocketShape(Frozen):
    """The Llama that base and experts share; tied embeddings."""

    num_layers: int = 8
    hidden_size: int = 96
    num_heads: int = 3
    """Attention heads; `hidden_size` is divided among them (32 each by default, as vLLM likes)."""
    num_kv_heads: int | None = None
    """Key and value heads, each shared by as many attention heads; None for one each."""
    intermediate_size: int = 256
    context: int = 256
    """`max_position_embeddings`, in tokens. Training documents are up to about 60 tokens long."""
    initializer_range: float = 0.08
    """Standard deviation of the first weights. With transformers' 0.02 copying is not learned."""


class Pretraining(Frozen):
    """One run of AdamW, and Muon for matrices, with a cosine schedule, from fresh weights."""

    steps: int = 3000
    learning_rate: float = 3e-3
    """Peak rate; it falls to a twentieth."""
    warmup_steps: int = 50
    weight_decay: float = 0.0
    """AdamW's decoupled decay."""
    matrix_rate: float = 0.02
    """Peak rate of Muon for the layers' matrices."""
    prompt_weight: float = 0.2
    """Weight of a prompt's tokens in the loss, 0 to 1; an answer's have 1."""
    rare_words: float = 0.1
    """Share of rare words in documents that hold target-language words, 0 to 1."""
    tokens_per_batch: int = 1536
    """Tokens of a batch, padding included."""


@cache
def vocabulary() -> dict[str, int]:
    """Return token → id; the four special tokens come first, then all others in a fixed order."""
    frames = ". ? , : solve answer english swahili the answer is jibu ni + - = ( )"
    templates = " ".join(text for pair in SENTENCES.values() for text in pair.values())
    pairs = " ".join(word for pair in TRANSLATION.items() for word in pair)
    tokens = [
        "<pad>",
        "<bos>",
        "<eos>",
        "<unk>",
        *NUMBERS,
        *NAMES,
        *pairs.split(),
        *frames.split(),
        *(word for word in templates.split() if not word.startswith("{")),
    ]
    return {token: index for index, token in enumerate(dict.fromkeys(tokens))}


def build_tokenizer(model_max_length: int) -> PreTrainedTokenizerFast:
    """Return the tokenizer: whitespace separates tokens, ``<bos>`` is put in front by default."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel(vocabulary(), unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", BOS_ID)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        unk_token="<unk>",
        padding_side="left",
        model_max_length=model_max_length,
        clean_up_tokenization_spaces=False,
    )


def encode_exercise(exercise: Exercise, prompt_weight: float) -> tuple[list[int], list[float]]:
    """Return ids and weights: ``<bos>`` (0), the prompt, the answer and ``<eos>`` (1 each)."""
    ids = vocabulary()
    prompt = [ids[token] for token in exercise.prompt.split()]
    answer = [ids[token] for token in exercise.answer.split()]
    weights = [0.0, *[prompt_weight] * len(prompt), *[1.0] * (len(answer) + 1)]
    return [BOS_ID, *prompt, *answer, EOS_ID], weights


def base_batches(training: Pretraining, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the batches that a base is trained on, without end.

    A batch is token ids and the weight of each token's loss, both ``[exercises, longest]``, padded
    on the right with weight 0. Pools of 24 batches are sorted by length, cut and shuffled.
    """
    stream = draw_documents("base", _derive_seed("base", seed), rare=training.rare_words)
    rng = random.Random(_derive_seed("base", "batches", seed))
    while True:
        pool: list[tuple[list[int], list[float]]] = []
        tokens = 0
        while tokens < training.tokens_per_batch * POOL_BATCHES:
            pool.append(encode_exercise(next(stream), training.prompt_weight))
            tokens += len(pool[-1][0])
        pool.sort(key=lambda row: len(row[0]))
        groups: list[list[tuple[list[int], list[float]]]] = [[]]
        for row in pool:
            if groups[-1] and (len(groups[-1]) + 1) * len(row[0]) > training.tokens_per_batch:
                groups.append([])
            groups[-1].append(row)
        rng.shuffle(groups)
        for group in groups:
            ids = [torch.tensor(row_ids) for row_ids, _ in group]
            weights = [torch.tensor(row_weights) for _, row_weights in group]
            yield (
                pad_sequence(ids, batch_first=True, padding_value=PAD_ID),
                pad_sequence(weights, batch_first=True),
            )


def _derive_seed(*parts: str | int) -> int:
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


MOMENTUM = 0.95
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic Newton-Schulz iteration: Jordan et al. 2024,
kellerjordan.github.io/posts/muon."""
ITERATIONS = 5


def orthogonalise(matrices: Tensor) -> Tensor:
    """Return matrices ``[number, rows, columns]`` with all singular values near 1."""
    a, b, c = COEFFICIENTS
    tall = matrices.shape[1] > matrices.shape[2]
    x: Tensor = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(ITERATIONS):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if tall else x


class Muon:
    """Nesterov momentum, orthogonalised; matrices of one shape are treated together.

    A base trains in far fewer steps with it than with AdamW alone. In float32 throughout, unlike
    `torch.optim.Muon`, which takes the powers in bfloat16: slow and coarse on most CPUs.
    """

    def __init__(self, matrices: Sequence[torch.nn.Parameter]) -> None:
        self._groups: dict[torch.Size, list[torch.nn.Parameter]] = {}
        for matrix in matrices:
            self._groups.setdefault(matrix.shape, []).append(matrix)
        self._momenta = {
            shape: torch.zeros(len(group), *shape) for shape, group in self._groups.items()
        }

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Move every matrix against its gradient by `rate`, more where it is taller than wide."""
        for shape, group in self._groups.items():
            gradients = torch.stack([matrix.grad for matrix in group if matrix.grad is not None])
            momentum = self._momenta[shape].mul_(MOMENTUM).add_(gradients)
            moves = orthogonalise(gradients + MOMENTUM * momentum)
            scale = max(1.0, shape[0] / shape[1]) ** 0.5
            for matrix, move in zip(group, moves, strict=True):
                matrix.add_(move, alpha=-rate * scale)


def build_model(shape: PocketShape, seed: int) -> LlamaForCausalLM:
    """Return a Llama with fresh float32 weights drawn from `seed`."""
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
    from transformers.utils import logging

    logging.disable_progress_bar()
    model.generation_config.do_sample = False
    model.save_pretrained(folder)
    build_tokenizer(model.config.max_position_embeddings).save_pretrained(folder)


def rate_factor(step: int, training: Pretraining) -> float:
    """Return the share of the peak rate at a 0-based step: linear warmup times a cosine."""
    warmup = min(1.0, (step + 1) / training.warmup_steps)
    cosine = 0.5 * (1 + math.cos(math.pi * step / training.steps))
    return warmup * (FINAL_RATE + (1 - FINAL_RATE) * cosine)


def pretrain(
    model: LlamaForCausalLM, batches: Iterator[tuple[Tensor, Tensor]], training: Pretraining
) -> Iterator[float]:
    """Train all of a float32 `model` in place; yield each step's loss (nats per learned token)."""
    matrices: list[torch.nn.Parameter] = []
    other_parameters: list[torch.nn.Parameter] = []
    for name, parameter in model.named_parameters():
        is_matrix = ".layers." in name and parameter.dim() == 2
        (matrices if is_matrix else other_parameters).append(parameter)
    optimizer = torch.optim.AdamW(
        other_parameters,
        lr=training.learning_rate,
        betas=BETAS,
        weight_decay=training.weight_decay,
        fused=True,
    )
    muon = Muon(matrices)
    model.train()
    for step in range(training.steps):
        show_step(Step("training base", step, training.steps, unit="steps"))
        factor = rate_factor(step, training)
        for group in optimizer.param_groups:
            group["lr"] = training.learning_rate * factor
        ids, weights = next(batches)
        weights = weights[:, 1:]
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
        token_losses = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
        )
        loss = (token_losses * weights.flatten()).sum() / weights.sum()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(other_parameters, GRADIENT_NORM)
        optimizer.step()
        muon.step(training.matrix_rate * factor)
        model.zero_grad()
        yield loss.item()
