"""How engines are chosen and run. Knows no engine."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from layerswap_method.frozen import Described

MEMORY_OPTIONS = ("kv_cache_gib", "gpu_memory_utilization")
"""Fields of `EngineOptions` that say how much memory an engine may use; they change no score."""

BackendChoice = Literal["auto", "hf", "vllm"]
"""What a user may ask for; ``auto`` is vLLM when it is installed, else HF."""


class EngineOptions(Described):
    """How a model is run. Nothing here should change a score beyond rounding, but it may."""

    batch_size: int = Field(default=64, ge=1)
    """How many sequences run at once. HF: per forward pass; vLLM: at most."""

    max_model_len: int | None = Field(default=None, ge=1)
    """Context length in tokens, prompt and answer together. Without it, the model's own."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Number type of the weights in memory. A study runs all models in one type: ``auto`` is
    that in which the base is stored."""

    kv_cache_gib: int = Field(default=4, ge=1)
    """vLLM on CPU: GiB for the key-value cache, unless ``VLLM_CPU_KVCACHE_SPACE`` is set."""

    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    """vLLM on GPU: share of the GPU's memory for weights and cache together."""
