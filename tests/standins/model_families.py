"""Tiny random models of every family: what each is made of."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

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
_HEADS = {"head_dim": 8}
_TIED = {"tie_word_embeddings": True}
_ROPE = {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2]}}
_GPT2 = {
    "vocab_size": VOCAB,
    "n_embd": 16,
    "n_layer": LAYERS,
    "n_head": 2,
    "n_positions": 64,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
_GLM = {
    "n_routed_experts": 3,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 2,
    **_HEADS,
}
_T5 = {
    "vocab_size": VOCAB,
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 24,
    "num_layers": LAYERS,
    "num_heads": 2,
    "decoder_start_token_id": 0,
}
_EXPERTS = {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 8}


class Family(NamedTuple):
    """Classes of transformers (NAME KIND and NAME CONFIG_KIND Config) and options of a config."""

    name: str
    options: Mapping[str, Any] = MappingProxyType({})
    kind: str = "ForCausalLM"
    config_kind: str = ""
    common: bool = True  # whether the options of the common tiny decoder apply at the top

    @property
    def model(self):
        """The name of the transformers model class."""
        return f"{self.name}{self.kind}"


def _vision(name, text, **options):
    options = {"tie_word_embeddings": False, "text_config": {**_BASE, **text}, **options}
    return Family(name, options, "ForConditionalGeneration", common=False)


_QWEN_VISION = {
    "depth": 3,
    "hidden_size": 16,
    "num_heads": 2,
    "out_hidden_size": 16,
    "intermediate_size": 24,
}
_QWEN_TOKENS = {"image_token_id": 5, "video_token_id": 6}

FAMILIES = {
    "llama": Family("Llama"),
    "llama_tied": Family("Llama", _TIED),
    "mistral": Family("Mistral"),
    "qwen2": Family("Qwen2"),
    "qwen3": Family("Qwen3", _HEADS),
    "gemma2": Family("Gemma2", {**_HEADS, **_TIED}),
    "gemma3": Family("Gemma3", {**_HEADS, **_TIED}, config_kind="Text"),
    "phi3": Family("Phi3"),
    "olmo2": Family("Olmo2"),
    "mixtral": Family("Mixtral", {"num_local_experts": 3}),
    "qwen2_moe": Family("Qwen2Moe", {**_EXPERTS, "shared_expert_intermediate_size": 12}),
    "qwen3_moe": Family("Qwen3Moe", {**_EXPERTS, **_HEADS}),
    "gpt2": Family("GPT2", _GPT2, "LMHeadModel", common=False),
    "gpt_neox": Family("GPTNeoX", {"num_key_value_heads": None}),
    "smollm3": Family("SmolLM3"),
    "olmo3": Family("Olmo3"),
    "opt": Family("OPT", {"ffn_dim": 24, "word_embed_proj_dim": 16, "do_layer_norm_before": True}),
    "gpt_oss": Family("GptOss", {"num_local_experts": 3, "num_experts_per_tok": 2, **_HEADS}),
    "glm4_moe": Family("Glm4Moe", _GLM),
    "t5": Family("T5", _T5, "ForConditionalGeneration", common=False),
    "gemma3_vl": _vision(
        "Gemma3",
        {**_HEADS, **_TIED},
        vision_config={**_VISION, "vision_use_head": False},
        mm_tokens_per_image=4,
        image_token_index=5,
        boi_token_index=6,
        eoi_token_index=7,
        **_TIED,
    ),
    "mistral3_vl": _vision(
        "Mistral3",
        {"model_type": "mistral", **_HEADS},
        vision_config={**_VISION, "model_type": "pixtral", **_HEADS},
        image_token_index=5,
    ),
    "qwen2_vl": _vision(
        "Qwen2VL",
        _ROPE,
        vision_config={**_QWEN_VISION, "embed_dim": 16, "mlp_ratio": 2},
        **_QWEN_TOKENS,
    ),
    "qwen2_5_vl": _vision(
        "Qwen2_5_VL",
        _ROPE,
        vision_config={**_QWEN_VISION, "fullatt_block_indexes": [1]},
        **_QWEN_TOKENS,
    ),
    "qwen3_vl": _vision(
        "Qwen3VL",
        {**_HEADS, **_ROPE},
        vision_config={
            **_QWEN_VISION,
            "deepstack_visual_indexes": [0, 1, 2],
            "num_position_embeddings": 16,
        },
        **_QWEN_TOKENS,
    ),
    "video_llava": _vision(
        "VideoLlava",
        {"model_type": "llama"},
        # Both towers are as deep as the text model.
        vision_config={
            **_VISION,
            "num_hidden_layers": LAYERS,
            "model_type": "clip_vision_model",
            "projection_dim": 16,
        },
        image_token_index=5,
        video_token_index=6,
    ),
    "llava": _vision(
        "Llava",
        {"model_type": "llama"},
        vision_config={**_VISION, "model_type": "clip_vision_model", "projection_dim": 16},
        image_token_index=5,
    ),
}


_SPEECH = {
    "input_dim": 8,
    "hidden_dim": 16,
    "output_dim": 10,
    "feedforward_mult": 2,
    "num_layers": LAYERS,
    "num_heads": 2,
    "dim_head": 8,
    "context_size": 10,
    "max_pos_emb": 12,
}
_MAMBA = {"mamba_d_state": 8, "mamba_expand": 2, "n_mamba_heads": 2, "mamba_ngroups": 1}

SPECIAL = {
    "qwen3_5": Family(
        "Qwen3_5", {**_HEADS, "layer_types": ["full_attention"] * LAYERS}, config_kind="Text"
    ),
    "xlm": Family(
        "XLM",
        {
            "emb_dim": 16,
            "n_heads": 2,
            "n_layers": LAYERS,
            "n_words": VOCAB,
            "max_position_embeddings": 64,
        },
        "WithLMHeadModel",
        common=False,
    ),
    # One attention block, stored in layer 1, is that of layers 1, 3 and 5.
    "zamba2": Family(
        "Zamba2",
        {
            **_MAMBA,
            "num_key_value_heads": 2,
            "num_mem_blocks": 1,
            "adapter_rank": 4,
            "layers_block_type": ["mamba", "hybrid"] * (LAYERS // 2),
        },
    ),
    # A speech encoder that is called "encoder.layers", with batch norms, which count.
    "granite_speech": Family(
        "GraniteSpeech",
        {
            "text_config": {**_BASE, "model_type": "granite"},
            "encoder_config": _SPEECH,
            "projector_config": {
                "model_type": "blip_2_qformer",
                "num_hidden_layers": 1,
                "hidden_size": 16,
                "num_attention_heads": 2,
                "intermediate_size": 24,
                "encoder_hidden_size": 16,
            },
        },
        "ForConditionalGeneration",
        common=False,
    ),
}
"""What some tests need, and not every one of all families."""


def make_config(family, **changes):
    entry = (FAMILIES | SPECIAL)[family]
    options = {**(_BASE if entry.common else {}), **entry.options, **changes}
    return getattr(transformers, f"{entry.name}{entry.config_kind}Config")(**options)


def make_model(family, folder, seed, *, dtype=torch.bfloat16, fill=None, shard="5GB", **changes):
    """Write a random model of `family` to `folder`; every parameter differs between seeds.

    With `fill`, every parameter is that number instead.
    """
    config = make_config(family, **changes)
    config.dtype = dtype
    torch.manual_seed(seed)
    model = getattr(transformers, (FAMILIES | SPECIAL)[family].model)(config)
    with torch.no_grad():
        for parameter in model.parameters():
            centre = parameter.mean() if parameter.ndim == 1 else 0.0
            parameter.copy_(centre + 0.1 * torch.randn(parameter.shape))
            if fill is not None:
                parameter.fill_(fill)
    model.to(dtype).save_pretrained(folder, max_shard_size=shard)
    return folder
