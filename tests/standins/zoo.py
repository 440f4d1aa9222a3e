"""Tiny random models of every family: what each is made of. Knows transformers; not mergekit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

LAYERS = 6
VOCAB = 96

_BASE = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "tie_word_embeddings": False,
}
_VISION = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}


@dataclass(frozen=True)
class Family:
    """How to make one tiny model of a family."""

    config: str
    """The transformers config class."""

    model: str
    """The transformers model class."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """What differs from the common tiny decoder."""

    common: bool = True
    """Whether the common decoder options apply at the top of the config."""


def _text(**more: Any) -> dict[str, Any]:
    return {**_BASE, **more}


FAMILIES: dict[str, Family] = {
    "llama": Family("LlamaConfig", "LlamaForCausalLM"),
    "llama_tied": Family("LlamaConfig", "LlamaForCausalLM", {"tie_word_embeddings": True}),
    "mistral": Family("MistralConfig", "MistralForCausalLM"),
    "qwen2": Family("Qwen2Config", "Qwen2ForCausalLM"),
    "qwen3": Family("Qwen3Config", "Qwen3ForCausalLM", {"head_dim": 8}),
    "gemma2": Family(
        "Gemma2Config", "Gemma2ForCausalLM", {"head_dim": 8, "tie_word_embeddings": True}
    ),
    "gemma3": Family(
        "Gemma3TextConfig", "Gemma3ForCausalLM", {"head_dim": 8, "tie_word_embeddings": True}
    ),
    "phi3": Family("Phi3Config", "Phi3ForCausalLM"),
    "olmo2": Family("Olmo2Config", "Olmo2ForCausalLM"),
    "mixtral": Family("MixtralConfig", "MixtralForCausalLM", {"num_local_experts": 3}),
    "qwen2_moe": Family(
        "Qwen2MoeConfig",
        "Qwen2MoeForCausalLM",
        {
            "num_experts": 3,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 8,
            "shared_expert_intermediate_size": 12,
        },
    ),
    "qwen3_moe": Family(
        "Qwen3MoeConfig",
        "Qwen3MoeForCausalLM",
        {
            "num_experts": 3,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 8,
            "head_dim": 8,
        },
    ),
    "gpt2": Family(
        "GPT2Config",
        "GPT2LMHeadModel",
        {
            "vocab_size": VOCAB,
            "n_embd": 16,
            "n_layer": LAYERS,
            "n_head": 2,
            "n_positions": 64,
            "bos_token_id": 0,
            "eos_token_id": 1,
        },
        common=False,
    ),
    "gpt_neox": Family("GPTNeoXConfig", "GPTNeoXForCausalLM", {"num_key_value_heads": None}),
    "smollm3": Family("SmolLM3Config", "SmolLM3ForCausalLM"),
    "olmo3": Family("Olmo3Config", "Olmo3ForCausalLM"),
    "opt": Family(
        "OPTConfig",
        "OPTForCausalLM",
        {"ffn_dim": 24, "word_embed_proj_dim": 16, "do_layer_norm_before": True},
    ),
    "gpt_oss": Family(
        "GptOssConfig",
        "GptOssForCausalLM",
        {"num_local_experts": 3, "num_experts_per_tok": 2, "head_dim": 8},
    ),
    "glm4_moe": Family(
        "Glm4MoeConfig",
        "Glm4MoeForCausalLM",
        {
            "n_routed_experts": 3,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 8,
            "head_dim": 8,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 2,
        },
    ),
    "t5": Family(
        "T5Config",
        "T5ForConditionalGeneration",
        {
            "vocab_size": VOCAB,
            "d_model": 16,
            "d_kv": 8,
            "d_ff": 24,
            "num_layers": 6,
            "num_heads": 2,
            "decoder_start_token_id": 0,
        },
        common=False,
    ),
    "gemma3_vl": Family(
        "Gemma3Config",
        "Gemma3ForConditionalGeneration",
        {
            "text_config": _text(head_dim=8, tie_word_embeddings=True),
            "vision_config": {**_VISION, "vision_use_head": False},
            "mm_tokens_per_image": 4,
            "image_token_index": 5,
            "boi_token_index": 6,
            "eoi_token_index": 7,
            "tie_word_embeddings": True,
        },
        common=False,
    ),
    "mistral3_vl": Family(
        "Mistral3Config",
        "Mistral3ForConditionalGeneration",
        {
            "text_config": _text(model_type="mistral", head_dim=8),
            "vision_config": {**_VISION, "model_type": "pixtral", "head_dim": 8},
            "image_token_index": 5,
            "tie_word_embeddings": False,
        },
        common=False,
    ),
    "qwen2_vl": Family(
        "Qwen2VLConfig",
        "Qwen2VLForConditionalGeneration",
        {
            "text_config": _text(
                rope_parameters={"rope_type": "default", "mrope_section": [1, 1, 2]}
            ),
            "vision_config": {
                "depth": 3,
                "embed_dim": 16,
                "hidden_size": 16,
                "num_heads": 2,
                "mlp_ratio": 2,
            },
            "image_token_id": 5,
            "video_token_id": 6,
            "tie_word_embeddings": False,
        },
        common=False,
    ),
    "qwen2_5_vl": Family(
        "Qwen2_5_VLConfig",
        "Qwen2_5_VLForConditionalGeneration",
        {
            "text_config": _text(
                rope_parameters={"rope_type": "default", "mrope_section": [1, 1, 2]}
            ),
            "vision_config": {
                "depth": 3,
                "hidden_size": 16,
                "out_hidden_size": 16,
                "num_heads": 2,
                "intermediate_size": 24,
                "fullatt_block_indexes": [1],
            },
            "image_token_id": 5,
            "video_token_id": 6,
            "tie_word_embeddings": False,
        },
        common=False,
    ),
    "qwen3_vl": Family(
        "Qwen3VLConfig",
        "Qwen3VLForConditionalGeneration",
        {
            "text_config": _text(
                head_dim=8, rope_parameters={"rope_type": "default", "mrope_section": [1, 1, 2]}
            ),
            "vision_config": {
                "depth": 3,
                "hidden_size": 16,
                "out_hidden_size": 16,
                "num_heads": 2,
                "intermediate_size": 24,
                "deepstack_visual_indexes": [0, 1, 2],
                "num_position_embeddings": 16,
            },
            "image_token_id": 5,
            "video_token_id": 6,
            "tie_word_embeddings": False,
        },
        common=False,
    ),
    "llava": Family(
        "LlavaConfig",
        "LlavaForConditionalGeneration",
        {
            "text_config": _text(model_type="llama"),
            "vision_config": {**_VISION, "model_type": "clip_vision_model", "projection_dim": 16},
            "image_token_index": 5,
            "tie_word_embeddings": False,
        },
        common=False,
    ),
}


def make_config(family: str, **changes: Any) -> Any:
    """Return the transformers config of a tiny model."""
    entry = FAMILIES[family]
    options = {**(_BASE if entry.common else {}), **entry.options, **changes}
    return getattr(transformers, entry.config)(**options)


def make_model(
    family: str,
    folder: Path,
    seed: int,
    *,
    dtype: torch.dtype = torch.bfloat16,
    fill: float | None = None,
    shard: str = "5GB",
    **changes: Any,
) -> Path:
    """Write a random model of `family` to `folder`; every parameter differs between seeds.

    With `fill`, every parameter is that number instead.
    """
    config = make_config(family, **changes)
    config.dtype = dtype
    torch.manual_seed(seed)
    model = getattr(transformers, FAMILIES[family].model)(config)
    with torch.no_grad():
        for parameter in model.parameters():
            centre = parameter.mean() if parameter.ndim == 1 else 0.0
            parameter.copy_(centre + 0.1 * torch.randn(parameter.shape))
            if fill is not None:
                parameter.fill_(fill)
    model.to(dtype).save_pretrained(folder, max_shard_size=shard)
    return folder
