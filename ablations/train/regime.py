"""Which weights a run trains, as a configuration says it. Knows layers; opens no model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StrictBool, StrictStr, field_validator, model_validator

from layerswap_method.algorithm.layer_lists import parse_layers
from layerswap_method.frozen import Frozen


class Full(Frozen):
    """Every weight is trained, as in the paper."""

    kind: Literal["full"] = "full"


class Lora(Frozen):
    """A low-rank change of some matrices (arXiv 2106.09685), trained with peft."""

    kind: Literal["lora"]

    rank: int = Field(16, ge=1)
    """Rank of every change."""

    alpha: float = Field(32.0, gt=0)
    """The change is scaled by alpha/rank, or alpha/sqrt(rank) with `rslora`."""

    dropout: float = Field(0.0, ge=0, lt=1)
    """Share of inputs dropped in training."""

    targets: tuple[StrictStr, ...] | Literal["all-linear"] = "all-linear"
    """Names of modules, such as ``q_proj``; ``all-linear`` takes all but the output matrix."""

    dora: StrictBool = False
    """Weight-decomposed changes (arXiv 2402.09353)."""

    rslora: StrictBool = False
    """Rank-stabilised scaling (arXiv 2312.03732)."""

    merge: StrictBool = False
    """Whether the expert is written as a whole checkpoint with the change in it. DoRA needs this
    for merges and studies, which read plain low-rank changes only."""


class Prefix(Frozen):
    """Trained keys and values before every layer's own (arXiv 2101.00190), with peft."""

    kind: Literal["prefix"]

    tokens: int = Field(20, ge=1)
    """Length of the prefix in each layer."""


class AdapterFusion(Frozen):
    """Frozen LoRA experts, and a learned choice among them (arXiv 2005.00247); see `fusion`."""

    kind: Literal["adapter_fusion"]

    experts: dict[StrictStr, StrictStr] = Field(min_length=1)
    """Name -> LoRA adapter of the base, a folder or hub id."""

    value_penalty: float = Field(0.01, ge=0, allow_inf_nan=False)
    """Weight of the squared distance of every V from the identity."""


class FrozenLayers(Frozen):
    """Some layers stay as in the base, or what is outside of the layers; the rest is trained."""

    kind: Literal["frozen"]

    layers: StrictStr = ""
    """Layers that stay, such as ``0-4,30,31`` (0-based, ends included); empty for none."""

    outside: StrictBool = True
    """Whether embeddings, final norm and output matrix are trained."""

    @field_validator("layers")
    @classmethod
    def _readable(cls, text: str) -> str:
        if text:
            parse_layers(text, name="layers")
        return text

    @model_validator(mode="after")
    def _something_stays(self) -> FrozenLayers:
        if not self.layers and self.outside:
            raise ValueError("nothing is frozen: name layers, or set outside to false")
        return self


class Disjoint(Frozen):
    """A task expert in the middle layers only, or a language expert in the outer ones only.

    No weight is changed by both, so a swap of such a pair loses nothing of either: the positive
    control of every swap (arXiv 2505.18356).
    """

    kind: Literal["disjoint"]

    role: Literal["task", "language"]
    """Which of the two this expert is."""

    bottom_layers: int = Field(5, ge=0)
    """Layers of the language expert at the input side."""

    top_layers: int = Field(2, ge=0)
    """Layers of the language expert at the output side."""

    outside: StrictBool = False
    """Whether embeddings, final norm and output matrix are trained; in one of the two at most."""

    @model_validator(mode="after")
    def _some_outer(self) -> Disjoint:
        if self.bottom_layers + self.top_layers == 0:
            raise ValueError("bottom_layers and top_layers are both 0: no layer is the language's")
        return self


ADAPTERS = (Lora, Prefix, AdapterFusion)
"""Regimes whose checkpoints are adapters."""

Regime = Annotated[
    Full | Lora | Prefix | AdapterFusion | FrozenLayers | Disjoint,
    Field(discriminator="kind"),
]


def trained_layers(regime: FrozenLayers | Disjoint, num_layers: int) -> tuple[int, ...]:
    """Return the 0-based layers that are trained, ascending.

    Args:
        regime: which.
        num_layers: decoder layers of the model.

    Raises:
        ValueError: for layers that the model does not have, or where none is left.
    """
    if isinstance(regime, FrozenLayers):
        kept = set(parse_layers(regime.layers, num_layers, "layers")) if regime.layers else set()
        found = tuple(layer for layer in range(num_layers) if layer not in kept)
    else:
        b, u = regime.bottom_layers, regime.top_layers
        if b + u >= num_layers:
            raise ValueError(
                f"bottom_layers {b} and top_layers {u} leave no middle in {num_layers} layers"
            )
        middle = range(b, num_layers - u)
        is_task = regime.role == "task"
        found = tuple(layer for layer in range(num_layers) if (layer in middle) == is_task)
    if not found and not regime.outside:
        raise ValueError("all layers are frozen, and so is everything outside of them")
    return found
