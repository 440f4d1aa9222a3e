"""What a pocket testbed is made of: sizes, steps, rates, seeds."""

from __future__ import annotations

from typing import Any, Literal, get_args

from pydantic import Field, model_validator

from ablations.pocket.tasks import Evaluation
from layerswap_method.frozen import Frozen

Preset = Literal["quickstart", "full", "tiny", "other_size"]


class ModelShape(Frozen):
    """The Llama that base and experts share; tied embeddings."""

    num_layers: int = Field(8, ge=2)
    """Decoder layers."""
    hidden_size: int = Field(96, ge=8)
    """Width of the residual stream."""
    num_heads: int = Field(3, ge=1)
    """Attention heads; `hidden_size` is divided among them (32 each by default, as vLLM likes)."""
    num_kv_heads: int | None = Field(None, ge=1)
    """Key and value heads, each shared by as many attention heads; None for one each."""
    intermediate_size: int = Field(256, ge=8)
    """Width of the MLP."""
    context: int = Field(256, ge=128)
    """`max_position_embeddings`, in tokens. Training documents are up to about 60 tokens long."""
    initializer_range: float = Field(0.08, gt=0)
    """Standard deviation of the first weights. With transformers' 0.02 copying is not learned."""

    @model_validator(mode="after")
    def _heads_divide(self) -> ModelShape:
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}"
            )
        if self.num_heads % (self.num_kv_heads or 1):
            raise ValueError(
                f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}"
            )
        return self


class Pretraining(Frozen):
    """One run of AdamW, and Muon for matrices, with a cosine schedule, from fresh weights."""

    steps: int = Field(ge=1)
    """Optimiser steps."""
    learning_rate: float = Field(gt=0)
    """Peak rate; it falls to a twentieth."""
    warmup_steps: int = Field(20, ge=0)
    """Steps of linear warmup."""
    weight_decay: float = Field(0.0, ge=0)
    """AdamW's decoupled decay."""
    matrix_rate: float | None = Field(None, gt=0)
    """Peak rate of Muon for the layers' matrices; None leaves them to AdamW."""
    prompt_weight: float = Field(0.0, ge=0, le=1)
    """Weight of a prompt's tokens in the loss; an answer's have 1."""
    rare_words: float = Field(0.5, ge=0, le=1)
    """Share of rare words in documents that hold target-language words."""
    tokens_per_batch: int = Field(1024, ge=64)
    """Tokens of a batch, padding included."""


class PocketConfig(Frozen):
    """Everything that decides the bytes of a pocket testbed. The default is `quickstart`."""

    seed: int = Field(0, ge=0)
    """Seed of the base: first weights and pretraining stream."""
    expert_seeds: tuple[int, ...] = Field((0,), min_length=1)
    """One pair of experts is trained for each seed."""
    shape: ModelShape = ModelShape()
    """Sizes of the model."""
    base: Pretraining = Pretraining(
        steps=3000,
        learning_rate=3e-3,
        matrix_rate=0.02,
        warmup_steps=50,
        tokens_per_batch=1536,
        prompt_weight=0.2,
        rare_words=0.1,
    )
    """How the base is trained."""
    expert_settings: tuple[str, ...] = ()
    """``NAME=VALUE`` in place of what the experts' shipped configurations say."""
    evaluation: Evaluation = Evaluation()
    """Test items."""

    @model_validator(mode="after")
    def _seeds_differ(self) -> PocketConfig:
        if len(set(self.expert_seeds)) != len(self.expert_seeds):
            raise ValueError(f"expert_seeds repeats a seed: {list(self.expert_seeds)}")
        return self

    @classmethod
    def preset(cls, name: Preset, **changes: Any) -> PocketConfig:
        """Return a named configuration with some fields changed.

        Args:
            name: `quickstart` (minutes), `full` (three expert pairs, more items), `tiny` (seconds;
                its scores mean nothing) or `other_size` (as `quickstart`, with another width,
                depth and number of key heads).
            changes: fields of `PocketConfig` that replace the preset's.

        Raises:
            ValueError: the name is unknown or a field is invalid.
        """
        if name not in get_args(Preset):
            raise ValueError(f"unknown preset {name!r}; one of {', '.join(get_args(Preset))}")
        return cls(**{**_PRESETS[name], **changes})


_PRESETS: dict[Preset, dict[str, Any]] = {
    "quickstart": {},
    "full": {
        "expert_seeds": (0, 1, 2),
        "evaluation": Evaluation(items=1000),
    },
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
