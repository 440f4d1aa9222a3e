"""The contract of everything that can evaluate a model. Knows no engine.

A checkpoint on disk is one way to name a model (`lm_eval_backend.CheckpointEvaluator`). An engine
that stays alive and streams a cell's weights into itself is another: there the model is a layer
plan with its experts. A runner needs only this contract, so it can be tested with an evaluator
that lives in the test.
"""

from __future__ import annotations

from typing import Literal, Protocol, TypeVar

from pydantic import Field

from ablations.scoring.records import Backend, Evaluation, EvaluationRequest
from layerswap_method.frozen import Frozen

BackendChoice = Literal["auto", "hf", "vllm"]
"""What a user may ask for; ``auto`` is vLLM when it is installed, else HF."""

Model_contra = TypeVar("Model_contra", contravariant=True)


class EngineOptions(Frozen):
    """How a model is run. Nothing here should change a score beyond rounding, but it may."""

    batch_size: int = Field(default=64, ge=1)
    """Sequences at once (HF: per forward pass; vLLM schedules by itself, with at most so many)."""

    max_model_len: int | None = Field(default=None, ge=1)
    """Context length in tokens, prompt and answer; None for the model's own."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of the weights in memory, and so of the scores; ``auto`` keeps the checkpoint's. A study runs
    all of its models in one dtype: there ``auto`` is that of its base."""

    kv_cache_gib: int = Field(default=4, ge=1)
    """vLLM on CPU: GiB for the key-value cache, unless VLLM_CPU_KVCACHE_SPACE is set."""

    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    """vLLM on GPU: share of the GPU's memory for weights and cache together."""


class Evaluator(Protocol[Model_contra]):
    """Evaluates models one after the other; may keep between calls what is costly to start.

    Two promises: nothing of one model (weights, prefix cache, adapter) may show in the scores of
    the next, and a failed `evaluate` leaves an evaluator that either works or raises again.
    """

    @property
    def backend(self) -> Backend:
        """The engine that runs the models."""
        ...

    def evaluate(self, model: Model_contra, request: EvaluationRequest) -> Evaluation:
        """Return scores and records of `model`.

        Raises:
            InputError: for unknown tasks, or a model that is not there or cannot be loaded.
        """
        ...

    def close(self) -> None:
        """Give back engine and memory; the evaluator is not used afterwards."""
        ...
