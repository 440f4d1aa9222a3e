"""Tiny random Llamas, Mistrals and Qwens in float64, and their logits. Knows transformers."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

from layerswap_method.harmonize.model import Model
from layerswap_method.harmonize.settings import config_of
from layerswap_method.harmonize.write import plan_files
from layerswap_method.stream.write import write_files

SIZES: dict[str, Any] = {
    "vocab_size": 48,
    "hidden_size": 24,
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
        family: `Llama`, `Mistral`, `Qwen2` or `Qwen3`.
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


def save(model: Model, origin: Path, folder: Path) -> Path:
    """Write a model that was made of the one in `origin`; return its folder."""
    folder.mkdir()
    write_files(plan_files(model, folder, 20_000))
    document = json.loads((origin / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config_of(model.shape, document)))
    return folder


def logits(folder: Path, length: int = 24, seed: int = 0) -> torch.Tensor:
    """Return the logits of a saved model on random tokens, in float64: [2, length, vocab].

    transformers computes norms in float32 whatever the dtype of the model, and the rounding of that
    hides what is compared here; so the norms are computed in float64.
    """
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="sdpa"
    )
    norms = [module for module in model.modules() if type(module).__name__.endswith("RMSNorm")]
    per_layer = 4 if model.config.model_type == "qwen3" else 2
    assert len(norms) == per_layer * model.config.num_hidden_layers + 1
    for norm in norms:
        norm.forward = partial(_rms_norm, norm)
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(model.config.vocab_size, (2, length), generator=generator)
    with torch.no_grad():
        found: torch.Tensor = model(tokens).logits
    return found


def _rms_norm(norm: Any, values: torch.Tensor) -> torch.Tensor:
    mean_square = values.pow(2).mean(-1, keepdim=True)
    normed: torch.Tensor = norm.weight * values * (mean_square + norm.variance_epsilon).rsqrt()
    return normed
