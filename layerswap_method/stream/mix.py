"""One output tensor as numbers over stored tensors: its identity, and its bytes.

Knows safetensors files and the arithmetic of `layer_swap`, `delta_revert` and mergekit's `linear`;
not roles, layers or recipes. A `TensorMix` is hashable and goes through JSON, so an engine's worker
process is told what to read, never handed a tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from layerswap_method.checkpoints.lora import LowRankChange
from layerswap_method.frozen import Frozen


class TensorOrigin(Frozen):
    """One stored tensor, as it enters a mix."""

    file: Path
    """The safetensors file; absolute."""

    stamp: int
    """When that file was last written, in ns."""

    name: str
    """The tensor's name in it."""

    dtype: str | None = None
    """torch dtype it is cast to on loading; None keeps the stored one."""

    change: LowRankChange | None = None
    """What an adapter adds, after the cast."""


class RowChoice(Frozen):
    """Which rows of a tensor are the first term's; the others are the second's."""

    first: str
    """A bit a row (`deltas.rows.RowLayout`'s order), packed into bytes, in hexadecimal digits."""

    axis: int | None
    """What `deltas.rows.input_axis` says of the tensor."""


class TensorMix(Frozen):
    """The content of one output tensor. Equal mixes are equal bytes."""

    terms: tuple[tuple[TensorOrigin, float], ...]
    """Stored tensors and their coefficients, in the order of the sum; at least one."""

    divisor: float = 1.0
    """What the sum is divided by."""

    load_dtype: str | None = None
    """torch dtype that every term is rounded to before the sum; None keeps theirs."""

    dtype: str | None = None
    """torch dtype of the result; None keeps that of the (promoted) terms."""

    out_dtype: str | None = None
    """torch dtype of what is written (a recipe's ``out_dtype``); None keeps `dtype`."""

    rule: Literal["layer_swap", "linear"] = "layer_swap"
    """Whose arithmetic: they round averages differently."""

    rows: RowChoice | None = None
    """None for a sum. Where given there are two terms, nothing is added, and every row is either
    one's."""


_MIXES = TypeAdapter(dict[str, TensorMix])


def mixes_to_json(mixes: Mapping[str, TensorMix]) -> str:
    """Return tensor name -> mix as JSON text."""
    return _MIXES.dump_json(dict(mixes)).decode()


def mixes_from_json(text: str) -> dict[str, TensorMix]:
    """Return what `mixes_to_json` wrote."""
    return _MIXES.validate_json(text)
