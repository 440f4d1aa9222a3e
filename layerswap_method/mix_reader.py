"""The content of a `TensorMix`, read and computed a block of rows at a time.

No tensor is held whole, except the product of an adapter. Values are those of
`average.weighted_average`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import IO, TYPE_CHECKING

from layerswap_method.checkpoint.stored import (
    StoredTensor,
    memory_of,
    open_stored,
    read_into,
    row_blocks,
    torch_dtype,
)
from layerswap_method.deltas.features import feature_layout, spread_features
from layerswap_method.tensors import FeatureMask, TensorMix

if TYPE_CHECKING:
    import torch


class Buffers:
    """Memory in which one thread computes a block of values, made once and used again."""

    block = 1 << 17
    """Values that are read and computed at a time: with their sum they stay in a core's cache."""

    def __init__(self, device: str | torch.device = "cpu") -> None:
        self._device = device
        self._memory: dict[tuple[str, str], torch.Tensor] = {}

    def take(
        self, use: str, dtype: torch.dtype, count: int, device: str | torch.device | None = None
    ) -> torch.Tensor:
        """Return a flat tensor of `count` values, which is overwritten when `use` is taken anew."""
        import torch

        place, nbytes = device or self._device, count * dtype.itemsize
        memory = self._memory.get((use, str(place)))
        if memory is None or len(memory) < nbytes:
            room = max(count, self.block) * dtype.itemsize
            memory = torch.empty(room, dtype=torch.uint8, device=place)
            self._memory[use, str(place)] = memory
        return memory[:nbytes].view(dtype)

    def read(self, opened: IO[bytes], stored: StoredTensor, first: int, out: torch.Tensor) -> None:
        """Fill `out` with stored values from `first` on; `opened` is the tensor's `open_stored`."""
        on_cpu = out.device.type == "cpu"
        host = out if on_cpu else self.take("host", out.dtype, out.numel(), "cpu")
        read_into(opened, stored, first * stored.itemsize, memory_of(host))
        if not on_cpu:
            out.copy_(host)


class MixReader:
    """The content of one `TensorMix`, computed block by block.

    `shape`, `dtype` (torch's) and `nbytes` are those of the result. Values do not depend on where
    blocks begin; every operation rounds as in `average.weighted_average`. Several threads may call
    `fill` at once, each with its own buffers, unless `has_changes`.
    """

    def __init__(self, mix: TensorMix, device: str = "cpu") -> None:
        self._mix, self._device = mix, device
        self._deltas: dict[int, torch.Tensor] = {}
        self._buffers = Buffers(device)
        self._first = None if mix.mask is None else _spread_mask(mix.mask, mix.shape)
        self.shape = mix.shape
        self.dtype = torch_dtype(mix.result_dtype)
        self.nbytes = math.prod(self.shape) * self.dtype.itemsize
        if any(term.stored.shape != self.shape for term in mix.terms):
            raise ValueError(f"shapes differ: {[term.stored.shape for term in mix.terms]}")

    @property
    def has_changes(self) -> bool:
        """Return whether an adapter is added: its whole product is computed at the first block."""
        return any(term.change is not None for term in self._mix.terms)

    @property
    def work_bytes(self) -> int:
        """Return the bytes of the tensor and of the products of its adapters."""
        changes = sum(term.change is not None for term in self._mix.terms)
        return self.nbytes + changes * math.prod(self.shape) * 4

    @property
    def is_wide(self) -> bool:
        """Return whether anything is float64."""
        names = {name for term in self._mix.terms for name in (term.dtype, term.stored.torch_name)}
        return "float64" in names | {self._mix.load_dtype, self._mix.dtype}

    def read(self) -> torch.Tensor:
        """Return the tensor on CPU; it is the caller's. Raises as `stored.read_rows`."""
        return self._rows(0, self._mix.terms[0].stored.rows).view(self.shape)

    def blocks(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield first row and content of each block of rows; see `read`."""
        for block in row_blocks(self.shape):
            yield block.start, self._rows(block.start, block.stop)

    def fill(self, out: torch.Tensor, first: int = 0, buffers: Buffers | None = None) -> None:
        """Write values, in the order of memory from `first` on, over a flat, contiguous tensor.

        They are cast to its dtype. `buffers` are those of this thread, on the device of `out`, or
        else the reader's own. Raises as `stored.read_rows`.
        """
        import torch

        buffers = buffers or self._buffers
        with torch.inference_mode(), ExitStack() as files:
            opened = [files.enter_context(open_stored(term.stored)) for term in self._mix.terms]
            if self.has_changes and not self._deltas:
                self._multiply(buffers)
            for start in range(0, out.numel(), buffers.block):
                part, offset = out[start : start + buffers.block], first + start
                if self._mix.copy_of is not None and part.dtype == self.dtype:
                    buffers.read(opened[0], self._mix.copy_of, offset, part)
                else:
                    self._compute(opened, part, offset, buffers)

    def _rows(self, start: int, stop: int) -> torch.Tensor:
        import torch

        shape = (stop - start, *self.shape[1:])
        rows = torch.empty(shape, dtype=self.dtype, device=self._device)
        self.fill(rows.view(-1), start * math.prod(self.shape[1:]))
        return rows.cpu()

    def _multiply(self, buffers: Buffers) -> None:
        """Compute the products of adapters, whole and on the CPU.

        A GPU, or a part of the rows, would round them otherwise.
        """
        import torch

        for position, term in enumerate(self._mix.terms):
            if term.change is not None:
                compute = torch.promote_types(torch_dtype(term.dtype), torch.float32)
                size = math.prod(self.shape)
                memory = buffers.take(f"change {position}", compute, size, "cpu")
                self._deltas[position] = term.change.read(compute, memory).reshape(-1)

    def _compute(
        self, opened: Sequence[IO[bytes]], out: torch.Tensor, offset: int, buffers: Buffers
    ) -> None:
        """Compute one block of the tensor, which begins at its value `offset`, into `out`."""
        import torch

        mix, count = self._mix, out.numel()
        result = out
        if out.dtype != self.dtype:
            result = buffers.take("result", self.dtype, count)
        sum_dtype = torch_dtype(mix.sum_dtype)
        is_wide = torch.float64 in (sum_dtype, self.dtype)
        compute = torch.float64 if is_wide else torch.float32
        if self._first is not None:
            chosen = torch.promote_types(sum_dtype, self.dtype)
            total = buffers.take("total", chosen, count)
            total.copy_(self._values(1, opened[1], offset, count, buffers))
            others = buffers.take("term", chosen, count)
            others.copy_(self._values(0, opened[0], offset, count, buffers))
            first = self._first_of(offset, count, out.device)
            result.copy_(torch.where(first, others, total, out=total))
        elif len(mix.terms) == 1:
            result.copy_(self._values(0, opened[0], offset, count, buffers))
        else:
            total = buffers.take("total", compute, count)
            for position, term in enumerate(mix.terms):
                wide = total if position == 0 else buffers.take("term", compute, count)
                wide.copy_(self._values(position, opened[position], offset, count, buffers))
                if term.coefficient != 1:
                    wide.mul_(term.coefficient)  # apart from the sum: `alpha=` would fuse them
                if position:
                    total.add_(wide)
            divisor = math.fsum(term.coefficient for term in mix.terms)
            # The divisor is a tensor: a GPU multiplies by the inverse of a plain number.
            result.copy_(total.div_(total.new_full((), divisor)))
        if mix.factor != 1:
            result.mul_(mix.factor)
        if result is not out:
            out.copy_(result)

    def _values(
        self, position: int, opened: IO[bytes], offset: int, count: int, buffers: Buffers
    ) -> torch.Tensor:
        """Return `count` values of one term as they enter the sum, in a buffer."""
        import torch

        term = self._mix.terms[position]
        values = buffers.take("stored", torch_dtype(term.stored.torch_name), count)
        buffers.read(opened, term.stored, offset, values)
        dtype = torch_dtype(term.dtype)
        if position in self._deltas:
            # A narrow base would round away the change that a wide merge is to have.
            dtype = torch.promote_types(dtype, self.dtype)
        if dtype != values.dtype:
            values = buffers.take("cast", dtype, count).copy_(values)
        if position in self._deltas:
            values.add_(self._deltas[position][offset : offset + count].to(values.device))
        loaded = values.dtype if (name := self._mix.load_dtype) is None else torch_dtype(name)
        if loaded != values.dtype:
            values = buffers.take("loaded", loaded, count).copy_(values)
        return values

    def _first_of(self, offset: int, count: int, device: torch.device) -> torch.Tensor:
        """Return which of `count` values are the first term's."""
        assert self._first is not None
        width = math.prod(self.shape[1:])
        rows = slice(offset // width, -(-(offset + count) // width))
        first = self._first if len(self._first) == 1 else self._first[rows]
        spread = first.to(device).expand(rows.stop - rows.start, *self.shape[1:]).reshape(-1)
        return spread[offset - rows.start * width :][:count]


def _spread_mask(mask: FeatureMask, shape: Sequence[int]) -> torch.Tensor:
    """Return which values are the first term's, in a shape that broadcasts to `shape`."""
    import numpy as np
    import torch

    packed = np.frombuffer(bytes.fromhex(mask.first), dtype=np.uint8)
    count = feature_layout(shape, mask.axis).features
    first = torch.from_numpy(np.unpackbits(packed, count=count).astype(bool))
    return spread_features(first, shape or (1,), mask.axis)
