"""One output tensor as numbers over stored tensors: its identity, and its bytes.

Knows safetensors files and the arithmetic of `layer_swap`, `delta_revert` and mergekit's `linear`;
not roles, layers or recipes. A `TensorMix` is hashable and goes through JSON, so an engine's worker
process is told what to read, never handed a tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, TypeAdapter

from layerswap_method.arithmetic import weighted_average
from layerswap_method.errors import InputError

DTYPES: Mapping[str, str] = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
"""Name of a dtype in safetensors -> in torch."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LowRankChange(_Frozen):
    """A LoRA adapter's change of one tensor: ``scaling * (up @ down)``."""

    file: Path
    """The adapter's safetensors file."""

    stamp: int
    """When that file was last written, in ns: another file of the same name is another change."""

    down: str
    """Name of ``lora_A`` (rank x inputs)."""

    up: str
    """Name of ``lora_B`` (outputs x rank)."""

    scaling: float
    """alpha/r, or alpha/sqrt(r) with rank-stabilised LoRA."""

    transposed: bool
    """Whether the tensor is stored inputs x outputs (embeddings, GPT-2's Conv1D)."""


class TensorOrigin(_Frozen):
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


class RowChoice(_Frozen):
    """Which rows of a tensor are the first term's; the others are the second's."""

    first: str
    """A bit a row (`deltas.rows.RowLayout`'s order), packed into bytes, in hexadecimal digits."""

    axis: int | None
    """What `deltas.rows.input_axis` says of the tensor."""


class TensorMix(_Frozen):
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


def read_mix(mix: TensorMix) -> torch.Tensor:
    """Return the tensor on CPU, bit-identical to the one mergekit writes; it is the caller's.

    `layerswap_method.readers` reads it in pieces.

    Raises:
        InputError: if a file is gone, cut short, or was written anew since the mix was made.
        LayerSwapError: if a tensor is not in its file.
    """
    from layerswap_method.readers import MixReader

    return MixReader(mix).read()


def combine(
    mix: TensorMix, tensors: Sequence[torch.Tensor], first: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the mix of its terms' content, or of the same part of each.

    It is computed value by value, so a part is bit for bit that part of the whole.

    Args:
        mix: the coefficients and dtypes.
        tensors: one a term, of one shape, as stored but for the term's own cast and change.
        first: where rows are chosen, whether a value is the first term's; of a shape that
            broadcasts to theirs.
    """
    coefficients = [coefficient for _, coefficient in mix.terms]
    if mix.load_dtype is not None:
        tensors = [tensor.to(torch_dtype(mix.load_dtype)) for tensor in tensors]
    common = tensors[0].dtype
    for tensor in tensors[1:]:
        common = torch.promote_types(common, tensor.dtype)
    tensors = [tensor.to(common) for tensor in tensors]  # as mergekit hands them to a method
    if first is not None:
        ours, theirs = tensors
        chosen = torch.where(first, ours, theirs)
        result = chosen if mix.dtype is None else chosen.to(torch_dtype(mix.dtype))
    elif mix.rule == "linear":
        result = _linear(tensors, coefficients)
    else:
        out = None if mix.dtype is None else torch_dtype(mix.dtype)
        result = weighted_average(tensors, coefficients, mix.divisor, out)
    return result if mix.out_dtype is None else result.to(torch_dtype(mix.out_dtype))


def file_stamp(file: Path) -> int:
    """Return when a file was last written, in ns.

    Raises:
        InputError: if it is gone.
    """
    try:
        return file.stat().st_mtime_ns
    except OSError as error:
        raise InputError(f"{file}: the weights are gone: {error.strerror}") from error


def torch_dtype(name: str) -> torch.dtype:
    """Return the dtype that torch has under `name`.

    Raises:
        InputError: if it has none.
    """
    found: Any = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise InputError(f"{name!r} is no dtype of torch")
    return found


def _linear(tensors: Sequence[torch.Tensor], weights: Sequence[float]) -> torch.Tensor:
    """Return the weighted average as mergekit 0.1.5's `linear` rounds it (`normalize: true`)."""
    first = tensors[0]
    dtype = torch.float64 if first.dtype == torch.float64 else torch.float32
    shape = (1,) * (first.ndim + 1)
    factors = torch.tensor([list(weights)], dtype=dtype)
    result = torch.zeros_like(first[None], dtype=dtype)
    for tensor, factor in zip(tensors, factors.unbind(1), strict=True):
        result.addcmul_(tensor[None], factor.reshape(shape))
    return result.div_(factors.sum(dim=1).reshape(shape)).to(first.dtype)[0]
