"""The regimes of training: the weights that are trained, as a training file declares them.

A new one is a class here, and a branch of `apply_regime.prepare_model`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StrictBool, StrictStr, model_validator

from layerswap_method.frozen import Frozen
from layerswap_method.layer_plan import parse_layers


class Full(Frozen):
    """Every weight is trained, as in the paper."""

    kind: Literal["full"] = "full"


class Lora(Frozen):
    """A low-rank change of some matrices (arXiv 2106.09685); `TrainConfig.lora` says which."""

    kind: Literal["lora"]
    merge: StrictBool = False
    """Whether the expert is written as a whole checkpoint. DoRA needs this for merges and studies,
    which read plain low-rank changes only."""


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
    """The named layers, or what is outside of layers, stay as in the base; the rest is trained."""

    kind: Literal["frozen"]
    layers: StrictStr = ""
    """Layers that stay, such as ``0-4,30,31`` (0-based, ends included); empty for none."""
    outside: StrictBool = True
    """Whether embeddings, final norm and output matrix are trained."""

    @model_validator(mode="after")
    def _something_stays(self) -> FrozenLayers:
        if self.layers:
            parse_layers(self.layers, name="layers")
        elif self.outside:
            raise ValueError("nothing is frozen: name layers, or set outside to false")
        return self

    def trained_layers(self, num_layers: int) -> set[int]:
        """Return the 0-based layers that are trained; ValueError for layers that do not exist."""
        frozen = parse_layers(self.layers, num_layers, "layers") if self.layers else ()
        return set(range(num_layers)) - set(frozen)


class Disjoint(Frozen):
    """A task expert in the middle layers only, or a language expert in the outer ones only.

    No weight is changed by both, so a swap of such a pair loses nothing (arXiv 2505.18356).
    """

    kind: Literal["disjoint"]
    role: Literal["task", "language"]
    """The role of this expert in a swap."""
    bottom_layers: int = Field(5, ge=0)
    """Layers of the language expert at the input side."""
    top_layers: int = Field(2, ge=0)
    """Layers of the language expert at the output side."""
    outside: StrictBool = False
    """Whether embeddings, final norm and output matrix are trained; in one of the two at most."""

    def trained_layers(self, num_layers: int) -> set[int]:
        """Return the 0-based layers that are trained; ValueError where there is no middle."""
        if self.bottom_layers + self.top_layers >= num_layers:
            raise ValueError(
                f"bottom_layers {self.bottom_layers} and top_layers {self.top_layers} leave no "
                f"middle in {num_layers} layers"
            )
        middle = set(range(self.bottom_layers, num_layers - self.top_layers))
        return middle if self.role == "task" else set(range(num_layers)) - middle


ADAPTERS = (Lora, Prefix, AdapterFusion)
"""Regimes whose checkpoints are adapters."""

Regime = Annotated[
    Full | Lora | Prefix | AdapterFusion | FrozenLayers | Disjoint, Field(discriminator="kind")
]
