"""A mix read a few rows at a time. Knows stored tensors and mixes; not who wants them.

Nothing is mapped and no tensor is held whole (but for an adapter's change), so that a model can be
changed in place at the price of one block, not of a second copy of its largest tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from layerswap_method.algorithm.average import weighted_average
from layerswap_method.checkpoints.lora import LowRankChange
from layerswap_method.checkpoints.spans import read_rows, torch_dtype
from layerswap_method.checkpoints.stored import stored_tensor
from layerswap_method.deltas.rows import row_layout, spread_rows
from layerswap_method.stream.blocks import row_blocks
from layerswap_method.stream.mix import RowChoice, TensorMix, TensorOrigin


class MixReader:
    """The content of one `TensorMix`, in pieces of rows (numbers of the first dimension)."""

    def __init__(self, mix: TensorMix, device: str = "cpu") -> None:
        """Read headers only.

        Args:
            mix: the content.
            device: where sums are computed; what is read is on the CPU again.

        Raises:
            InputError: if a file is gone, or was written anew since the mix was made.
            LayerSwapError: if a tensor is not in its file.
        """
        self._mix, self._device = mix, device
        self._terms = [_Term(origin) for origin, _ in mix.terms]
        self.shape = self._terms[0].shape
        """Its shape."""
        self._first = None if mix.rows is None else _spread(mix.rows, self.shape)
        nothing = [torch.empty(0, dtype=each.dtype) for each in self._terms]
        none = None if mix.rows is None else torch.empty(0, dtype=torch.bool)
        self.dtype = combine(mix, nothing, none).dtype
        """Its dtype, as `read` returns it."""

    @property
    def nbytes(self) -> int:
        """Return the bytes of the result."""
        return math.prod(self.shape) * self.dtype.itemsize

    def read(self) -> torch.Tensor:
        """Return the tensor on CPU, bit-identical to the one mergekit writes; it is the caller's.

        Raises:
            InputError: if a file is gone, cut short, or was written anew.
        """
        return self._rows(0, self._count).view(self.shape)

    def blocks(self, rows: slice = slice(None)) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield first row and content of each piece of `rows`, which together are that of `read`.

        Args:
            rows: a range in steps of 1.

        Raises:
            InputError: as `read`.
        """
        for block in row_blocks(self.shape, rows):
            yield block.start, self._rows(block.start, block.stop)

    def copy_to(self, target: torch.Tensor, window: Sequence[slice] = ()) -> None:
        """Write the tensor, or a window of it, over `target`, cast to that one's dtype.

        Args:
            target: on any device; of the window's shape.
            window: a range in steps of 1 for each of the first dimensions; all of the others.

        Raises:
            InputError: as `read`; a part may then be written.
        """
        rows, *others = window or (slice(None),)
        place = target if self.shape else target.view(1)
        begin = rows.indices(self._count)[0]
        for first, block in self.blocks(rows):
            start = first - begin
            place[start : start + len(block)].copy_(block[(slice(None), *others)])

    @property
    def _count(self) -> int:
        return self.shape[0] if self.shape else 1

    def _rows(self, start: int, stop: int) -> torch.Tensor:
        first = self._first
        if first is not None and len(first) > 1:
            first = first[start:stop]
        # An adapter's change is added on the CPU: a GPU would round its product otherwise.
        terms = [term.rows(start, stop).to(self._device) for term in self._terms]
        first = None if first is None else first.to(self._device)
        return combine(self._mix, terms, first).cpu()


class _Term:
    """One stored tensor as it enters a mix: cast, and with an adapter's change."""

    def __init__(self, origin: TensorOrigin) -> None:
        self._stored = stored_tensor(origin.file, origin.stamp, origin.name)
        self._change = origin.change
        self._delta: torch.Tensor | None = None
        self.shape = self._stored.shape
        self.dtype = torch_dtype(origin.dtype or self._stored.torch_name)

    def rows(self, start: int, stop: int) -> torch.Tensor:
        tensor = read_rows(self._stored, slice(start, stop)).to(self.dtype)
        if self._change is None:
            return tensor
        if self._delta is None:  # whole: of a part of the rows, a product may round otherwise
            self._delta = _delta(self._change, torch.promote_types(self.dtype, torch.float32))
        return tensor.add_(self._delta[start:stop])


def _spread(rows: RowChoice, shape: Sequence[int]) -> torch.Tensor:
    """Return whether the values are the first term's, in a shape that broadcasts to `shape`."""
    packed = np.frombuffer(bytes.fromhex(rows.first), dtype=np.uint8)
    count = row_layout(shape, rows.axis).features
    first = torch.from_numpy(np.unpackbits(packed, count=count).astype(bool))
    return spread_rows(first, shape or (1,), rows.axis)


def _delta(change: LowRankChange, compute: torch.dtype) -> torch.Tensor:
    """Return an adapter's change, rounded as peft's ``merge_and_unload`` does.

    The adapter is brought to `compute`; the sum with the weight is then rounded once.
    """
    down, up = (
        read_rows(stored_tensor(change.file, change.stamp, name)).to(compute)
        for name in (change.down, change.up)
    )
    delta = up @ down
    return (delta.T if change.transposed else delta) * change.scaling


def read_mix(mix: TensorMix) -> torch.Tensor:
    """Return the tensor on CPU, bit-identical to the one mergekit writes; it is the caller's.

    Raises:
        InputError: if a file is gone, cut short, or was written anew since the mix was made.
        LayerSwapError: if a tensor is not in its file.
    """
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


def as_bytes(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a tensor on the CPU."""
    return memoryview(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)


def _linear(tensors: Sequence[torch.Tensor], weights: Sequence[float]) -> torch.Tensor:
    """Return the weighted average as mergekit 0.1.5's `linear` rounds it (`normalize: true`)."""
    first = tensors[0]
    dtype = torch.float64 if first.dtype == torch.float64 else torch.float32
    shape = (1,) * (first.ndim + 1)
    factors = torch.tensor([list(weights)], dtype=dtype, device=first.device)
    result = torch.zeros_like(first[None], dtype=dtype)
    for tensor, factor in zip(tensors, factors.unbind(1), strict=True):
        result.addcmul_(tensor[None], factor.reshape(shape))
    return result.div_(factors.sum(dim=1).reshape(shape)).to(first.dtype)[0]
