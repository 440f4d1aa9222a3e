"""Tiny random models under the names that recipes use, with the recipes' real layer counts."""

import zlib

import torch

from layerswap_method.tensor_names import decoder_layer
from tests.recipes.documents import is_hub_id
from tests.standins.tokenizers import save_word_tokenizer, words
from tests.standins.tuned import train_adapter

HARMONIZED = "./experts/different_bases/"
"""Where recipes expect what `layerswap harmonize` wrote."""

ORIGINALS = {
    # The real sizes: hidden and MLP over 256, heads over 4.
    "meta-math/MetaMath-7B-V1.0": {
        **{"intermediate_size": 43, "num_attention_heads": 8, "num_key_value_heads": 8},
    },
    "LeoLM/leo-mistral-hessianai-7b": {
        **{"intermediate_size": 56, "num_attention_heads": 8, "num_key_value_heads": 2},
        **{"architecture": "Mistral", "sliding_window": 16},
    },
    "Lugha-Llama/Lugha-Llama-8B-wura": {
        **{"intermediate_size": 56, "num_attention_heads": 8, "num_key_value_heads": 2},
    },
    "MergeBench/Llama-3.2-3B_math": {
        **{"hidden_size": 12, "intermediate_size": 32, "num_hidden_layers": 28},
        **{"num_attention_heads": 6, "num_key_value_heads": 2, "tie_word_embeddings": True},
        # As the real pair: another RoPE, which --force is for.
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
    },
}
"""What models that recipes harmonise have of their own, beside the common stand-in."""

# Lugha-Llama is stored in float32 (a first-party page seen in part), the others in bfloat16.
FLOAT32_ON_HUB = ("Lugha-Llama/",)


def layer_count(model):
    """Return the real number of decoder layers: 8 in pocket models, 36 in Qwen3-8B, else 32."""
    if model.startswith("runs/pocket/"):
        return 8
    return 36 if "Qwen" in model else 32


def stored_dtype(model):
    if is_hub_id(model) and not model.startswith(FLOAT32_ON_HUB):
        return torch.bfloat16
    return torch.float32


def folder_of(name, hub, workspace):
    """Return where a model is; one of the hub in the hub's cache, as its only commit."""
    if not is_hub_id(name):
        return workspace / name
    cached = hub / f"models--{name.replace('/', '--')}"
    (cached / "refs").mkdir(parents=True, exist_ok=True)
    (cached / "refs" / "main").write_text("0" * 40)
    return cached / "snapshots" / ("0" * 40)


def build(references, hub, workspace):
    """Write a stand-in for every model and adapter, each once, but for harmonised models."""
    for reference in references:
        if reference.model.startswith(HARMONIZED):
            continue
        folder = folder_of(reference.model, hub, workspace)
        if not folder.exists():
            build_model(reference.model, folder)
        if reference.adapter is not None:
            adapter = folder_of(reference.adapter, hub, workspace)
            if not adapter.exists():
                targets = {"target_modules": ["q_proj", "down_proj"], "r": 2, "lora_alpha": 4}
                train_adapter(folder, adapter, zlib.crc32(reference.adapter.encode()), **targets)


def build_model(name, folder, architecture="Llama", **sizes):
    """Write a model and its tokenizer."""
    import transformers

    common = {
        "vocab_size": 64,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": layer_count(name),
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 64,
        "tie_word_embeddings": name.startswith("runs/pocket/"),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    config = getattr(transformers, f"{architecture}Config")(**common | sizes)
    model = getattr(transformers, f"{architecture}ForCausalLM")(config)
    shared = torch.Generator().manual_seed(0)
    own = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    with torch.no_grad():
        paces = 0.7 + 0.6 * torch.rand(config.num_hidden_layers + 1, generator=own)
        for tensor, parameter in model.named_parameters():  # norms too: no two share any tensor
            parent = torch.randn(parameter.shape, generator=shared) * 0.1 + 0.05
            change = torch.randn(parameter.shape, generator=own)
            # Some features move far and some hardly, so that rules on rows have a choice.
            moved = 0.04 * torch.rand(parameter.shape[-1:], generator=own).square()
            # And some layers further than others, so that rules on layers have one, too.
            layer = decoder_layer(tensor)
            pace = paces[-1 if layer is None else layer]
            parameter.copy_(parent + change * moved * pace)
    model.to(stored_dtype(name)).save_pretrained(folder)
    save_word_tokenizer(folder, words(64))
