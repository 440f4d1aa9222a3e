"""The choice of an engine, and its options."""

from __future__ import annotations

from typing import Any, Literal, get_args

from pydantic import Field

from layerswap_method.frozen import Described

MEMORY_OPTIONS = ("kv_cache_gib", "gpu_memory_utilization")
"""Fields of `EngineOptions` that say how much memory an engine may use; they change no score."""

BackendChoice = Literal["auto", "hf", "vllm"]
"""The engines that a user may ask for; ``auto`` is vLLM when it is installed, else HF."""


_UNREAD_BY: dict[str, tuple[str, ...]] = {
    "hf": ("tensor_parallel_size", "pipeline_parallel_size", "max_num_seqs", "enforce_eager"),
    "vllm": ("batch_size",),
}
"""Backend -> the fields that are the other one's."""


class EngineOptions(Described):
    """The options of an engine. None should change a score beyond rounding, but it may."""

    batch_size: int = Field(default=64, ge=1)
    """transformers: sequences in one forward pass. vLLM has `max_num_seqs` in its place."""

    max_model_len: int | None = Field(default=None, ge=1)
    """Context length in tokens, prompt and answer together. Without it, the model's own."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Number type of the weights in memory, one for all models of a study. ``auto``: as the base is
    stored."""

    kv_cache_gib: int = Field(default=4, ge=1)
    """vLLM on CPU: GiB for the key-value cache, unless ``VLLM_CPU_KVCACHE_SPACE`` is set."""

    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    """vLLM on GPU: share of the GPU's memory for weights and key-value cache together."""

    tensor_parallel_size: int = Field(default=1, ge=1)
    """vLLM: number of GPUs that share every layer, for models that do not fit one."""

    pipeline_parallel_size: int = Field(default=1, ge=1)
    """vLLM: number of groups of layers, each on GPUs of its own. A model takes this times
    `tensor_parallel_size` GPUs."""

    max_num_seqs: int | None = Field(default=None, ge=1)
    """vLLM: how many sequences run at once, at most. Without it, vLLM's own choice."""

    enforce_eager: bool | None = None
    """vLLM: run without compiling the model and without CUDA graphs, so it starts sooner and
    answers slower. Without it, true on CPU and false on a GPU."""

    @property
    def gpus(self) -> int:
        """GPUs that vLLM takes for one model."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    def of_backend(self, backend: Literal["hf", "vllm"]) -> EngineOptions:
        """Return the options that this backend reads; all others are set to their defaults."""
        fields = type(self).model_fields
        return self.model_copy(update={n: fields[n].default for n in _UNREAD_BY[backend]})

    def with_stored_dtype(self, stored: str | None) -> EngineOptions:
        """Return the options with the dtype of a stored base in place of ``auto``.

        As they are where they state one, or where no engine runs `stored`.
        """
        dtypes = get_args(type(self).model_fields["dtype"].annotation)
        if self.dtype != "auto" or stored not in dtypes:
            return self
        return self.model_copy(update={"dtype": stored})

    def identity(self) -> dict[str, Any]:
        """Return the options that are part of a score's identity, as JSON holds them."""
        return self.model_dump(mode="json", exclude=set(MEMORY_OPTIONS))
