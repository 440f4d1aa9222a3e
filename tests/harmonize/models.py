"""Tiny random Llamas, Mistrals and Qwens in float64, what harmonize makes of them, and logits."""

import json
from functools import partial

import torch
import transformers
from safetensors.torch import load_file, save_file

from ablations.harmonize.steps import config_of
from tests.standins.command import layerswap
from tests.standins.model_families import make_model

SIZES = {
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


def random_model(folder, seed=0, family="llama", **sizes):
    """Save a random model in float64; `sizes` are what differs from `SIZES`."""
    return make_model(family.lower(), folder, seed, dtype=torch.float64, **{**SIZES, **sizes})


def run(*args):
    """Return what `layerswap harmonize` gave, its output on one line."""
    result = layerswap("harmonize", *args)
    return result.exit_code, " ".join(result.output.split())


def save(model, origin, folder):
    """Write what a conversion makes of the model in `origin`; return its folder."""
    folder.mkdir()
    before = load_file(origin / "model.safetensors")
    after = {name: model.make(name, before[old]).clone() for name, old in model.origins.items()}
    save_file(after, folder / "model.safetensors", {"format": "pt"})
    document = json.loads((origin / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config_of(model.shape, document)))
    return folder


def logits(folder, length=24):
    """Return the logits of a saved model on random tokens, in float64: [2, length, vocab].

    transformers computes norms in float32 whatever the dtype of the model, and the rounding of that
    hides what is compared; so the norms are computed in float64.
    """
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="sdpa"
    )
    norms = [module for module in model.modules() if type(module).__name__.endswith("RMSNorm")]
    per_layer = 4 if model.config.model_type == "qwen3" else 2
    assert len(norms) == per_layer * model.config.num_hidden_layers + 1
    for norm in norms:
        norm.forward = partial(_rms_norm, norm)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(model.config.vocab_size, (2, length), generator=generator)
    with torch.no_grad():
        return model(tokens).logits


def distance(one, other, length=24):
    """Return the largest difference of the logits of two saved models."""
    return float((logits(one, length) - logits(other, length)).abs().max())


def _rms_norm(norm, values):
    mean_square = values.pow(2).mean(-1, keepdim=True)
    return norm.weight * values * (mean_square + norm.variance_epsilon).rsqrt()
