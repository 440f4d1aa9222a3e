"""Tiny random Llamas and Mistrals in float64, and their logits. Knows transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

SIZES: dict[str, Any] = {
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def random_model(folder: Path, seed: int = 0, family: str = "Llama", **sizes: Any) -> Path:
    """Save a random model in float64 and return its folder; norms and biases are random, too.

    Args:
        folder: where to.
        seed: of its weights.
        family: `Llama` or `Mistral`.
        sizes: what differs from `SIZES`, under transformers' names.
    """
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **sizes})
    torch.manual_seed(seed)
    model = getattr(transformers, f"{family}ForCausalLM")(config).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    model.save_pretrained(folder)
    return folder


def logits(folder: Path, length: int = 24, seed: int = 0) -> torch.Tensor:
    """Return the logits of a saved model on random tokens, in float64: [2, length, vocab]."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager"
    )
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(model.config.vocab_size, (2, length), generator=generator)
    with torch.no_grad():
        found: torch.Tensor = model(tokens).logits
    return found
