"""What a pocket testbed is made of: sizes, steps, rates, seeds."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from ablations.pocket.tasks import Evaluation
from layerswap_method.frozen import Frozen

Preset = Literal["quickstart", "full", "tiny", "other_size"]


class ModelShape(Frozen):
    """The Llama that base and experts share; tied embeddings."""

    num_layers: int = 8
    hidden_size: int = 96
    num_heads: int = 3
    """Attention heads; `hidden_size` is divided among them (32 each by default, as vLLM likes)."""
    num_kv_heads: int | None = None
    """Key and value heads, each shared by as many attention heads; None for one each."""
    intermediate_size: int = 256
    context: int = 256
    """`max_position_embeddings`, in tokens. Training documents are up to about 60 tokens long."""
    initializer_range: float = 0.08
    """Standard deviation of the first weights. With transformers' 0.02 copying is not learned."""


class Pretraining(Frozen):
    """One run of AdamW, and Muon for matrices, with a cosine schedule, from fresh weights."""

    steps: int
    learning_rate: float
    """Peak rate; it falls to a twentieth."""
    warmup_steps: int = 20
    weight_decay: float = 0.0
    """AdamW's decoupled decay."""
    matrix_rate: float
    """Peak rate of Muon for the layers' matrices."""
    prompt_weight: float = 0.0
    """Weight of a prompt's tokens in the loss, 0 to 1; an answer's have 1."""
    rare_words: float = 0.5
    """Share of rare words in documents that hold target-language words, 0 to 1."""
    tokens_per_batch: int = 1024
    """Padding included."""


class PocketConfig(Frozen):
    """Everything that decides the bytes of a pocket testbed. The default is `quickstart`."""

    seed: int = Field(0, ge=0)
    """Seed of the base: first weights and pretraining stream."""
    expert_seeds: tuple[int, ...] = Field((0,), min_length=1)
    """One pair of experts is trained for each seed."""
    shape: ModelShape = ModelShape()
    base: Pretraining = Pretraining(
        steps=3000,
        learning_rate=3e-3,
        matrix_rate=0.02,
        warmup_steps=50,
        tokens_per_batch=1536,
        prompt_weight=0.2,
        rare_words=0.1,
    )
    expert_settings: tuple[str, ...] = ()
    """``NAME=VALUE`` in place of what the experts' shipped configurations say."""
    evaluation: Evaluation = Evaluation()

    @classmethod
    def preset(cls, name: Preset, **changes: Any) -> PocketConfig:
        """Return a named configuration with some fields changed.

        Args:
            name: `quickstart` (minutes), `full` (three expert pairs, more items), `tiny` (seconds;
                its scores mean nothing) or `other_size` (as `quickstart`, with another width,
                depth and number of key heads).
            changes: fields of `PocketConfig` that replace the preset's.
        """
        return cls(**{**_PRESETS[name], **changes})


_PRESETS: dict[Preset, dict[str, Any]] = {
    "quickstart": {},
    "full": {"expert_seeds": (0, 1, 2), "evaluation": Evaluation(items=1000)},
    "other_size": {
        "shape": ModelShape(
            num_layers=6, hidden_size=128, num_heads=4, num_kv_heads=2, intermediate_size=256
        ),
    },
    "tiny": {
        "shape": ModelShape(num_layers=4, hidden_size=32, num_heads=1, intermediate_size=64),
        "base": PocketConfig().base.model_copy(
            update={"steps": 40, "warmup_steps": 5, "tokens_per_batch": 512}
        ),
        "expert_settings": ("samples=60", "held_out=2", "batch_size=6", "trainer.warmup_steps=2"),
        "evaluation": Evaluation(items=20),
    },
}
