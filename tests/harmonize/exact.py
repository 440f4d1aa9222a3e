"""Logits in float64 throughout. Knows transformers, whose norms and softmax are float32."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers


def exact_logits(folder: Path, length: int = 24) -> torch.Tensor:
    """Return the logits of a saved model on random tokens, [2, length, vocab]."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="sdpa"
    )
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = partial(_norm, module)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(model.config.vocab_size, (2, length), generator=generator)
    with torch.no_grad():
        found: torch.Tensor = model(tokens).logits
    return found


def _norm(module: Any, hidden: torch.Tensor) -> torch.Tensor:
    """Return what transformers' RMSNorm computes, without its cast to float32."""
    scale = (hidden.pow(2).mean(-1, keepdim=True) + module.variance_epsilon).rsqrt()
    found: torch.Tensor = module.weight * (hidden * scale)
    return found
