"""The shape of a model that can be harmonized, as its config states it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import PositiveFloat, PositiveInt, ValidationError

from ablations.harmonize.fields import DECODERS, stated_fields
from layerswap_method.errors import InputError
from layerswap_method.frozen import Frozen

if TYPE_CHECKING:
    from layerswap_method.checkpoint.checkpoint import Checkpoint


class ModelShape(Frozen):
    """The shape that two models must share before one can stand in the other's place.

    `heads * head_dim` need not be `hidden`. `sliding_window` is the number of tokens that attention
    looks back (None: all), `positions` the longest sequence, `rope_scaling` transformers'.
    """

    architecture: str
    hidden: PositiveInt
    layers: PositiveInt
    heads: PositiveInt
    kv_heads: PositiveInt
    head_dim: PositiveInt
    intermediate: PositiveInt
    vocab: PositiveInt
    tied: bool
    rope_base: PositiveFloat
    rope_scaling: Mapping[str, Any] | None
    sliding_window: int | None
    active_experts: int | None
    positions: PositiveInt
    eps: PositiveFloat
    activation: str
    attention_bias: bool
    mlp_bias: bool

    @property
    def group(self) -> int:
        """Number of query heads of one key-value head."""
        return self.heads // self.kv_heads


def read_shape(checkpoint: Checkpoint) -> ModelShape:
    """Return the shape that a checkpoint's config states.

    Raises `InputError` for another architecture, and for sizes that are missing or do not fit.
    """
    name, architecture = checkpoint.name, checkpoint.config.architecture
    document = checkpoint.document
    if architecture not in DECODERS:
        raise InputError(f"{name}: {architecture} is none of {', '.join(DECODERS)}")
    if document.get("use_sliding_window"):
        raise InputError(f"{name}: use_sliding_window is true: its layers have unequal windows")
    try:
        shape = ModelShape(**stated_fields(document))
    except ValidationError as error:
        fields = ", ".join(str(item["loc"][0]) for item in error.errors())
        raise InputError(f"{name}: config.json does not state {fields} as it must") from error
    if shape.heads % shape.kv_heads:
        raise InputError(f"{name}: {shape.heads} heads are not a multiple of {shape.kv_heads}")
    return shape
