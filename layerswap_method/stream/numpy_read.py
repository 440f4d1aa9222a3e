"""A mix read a few rows at a time in numpy, where that gives the very bits that torch gives.

Importing torch costs seconds and most of 300 MB. `read.MixReader` does the same for every mix.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np

from layerswap_method.algorithm.coefficients import float32_suffices
from layerswap_method.checkpoints.stored import fill, open_stored, stored_tensor
from layerswap_method.stream import numpy_average as arrays
from layerswap_method.stream.blocks import row_blocks
from layerswap_method.stream.mix import TensorMix

_CHUNK = 1 << 14
"""Values computed at a time. Arrays of this size stay in the processor's cache, and the allocator
takes no fresh pages for them: those of whole blocks cost more than the arithmetic."""


class NumpyReader:
    """The content of one `TensorMix` that is a cast, or an average exact in float32."""

    def __init__(self, mix: TensorMix) -> None:
        """Read headers only.

        Raises:
            NeedsTorchError: for any other mix.
            InputError: if a file is gone, or was written anew since the mix was made.
            LayerSwapError: if a tensor is not in its file.
        """
        if mix.rule != "layer_swap" or mix.rows is not None:
            raise NeedsTorchError
        # What a term of coefficient 0 adds to the dtype torch says.
        if any(origin.change is not None or weight == 0 for origin, weight in mix.terms):
            raise NeedsTorchError
        origins = [origin for origin, _ in mix.terms]
        self._mix = mix
        self._stored = [stored_tensor(each.file, each.stamp, each.name) for each in origins]
        self._casts = [
            [s.torch_name, *(dtype for dtype in (o.dtype, mix.load_dtype) if dtype is not None)]
            for s, o in zip(self._stored, origins, strict=True)
        ]
        """For each term, its dtype in the file and those that it is cast to."""
        loaded = {casts[-1] for casts in self._casts}
        common = loaded.pop() if len(loaded) == 1 else "float32"  # as torch promotes them
        results = [mix.dtype or common, mix.out_dtype or mix.dtype or common]
        self._rounded, self.dtype = results
        if not {common, *results, *(dtype for casts in self._casts for dtype in casts)} <= {
            *arrays.STORED
        }:
            raise NeedsTorchError
        self._weights, self._divisor = [weight for _, weight in mix.terms], mix.divisor
        if self._weights == [self._divisor]:
            self._weights, self._divisor = [1.0], 1.0
        elif not float32_suffices(
            [common] * len(origins), self._weights, mix.divisor, self._rounded
        ):
            raise NeedsTorchError
        self.shape = self._stored[0].shape
        """Its shape."""

    def pieces(self) -> Iterator[memoryview]:
        """Yield its bytes, block by block; each is good until the next one.

        Raises:
            InputError: if a file is gone, cut short, or was written anew.
        """
        width = math.prod(self.shape[1:])
        raws: list[arrays.Stored] = []
        with ExitStack() as held:
            files = [held.enter_context(open_stored(each)) for each in self._stored]
            for rows in row_blocks(self.shape) if width else ():
                count = (rows.stop - rows.start) * width
                if not raws:  # no later block is larger
                    kinds = [*(casts[0] for casts in self._casts), self.dtype]
                    raws = [np.empty(count, arrays.STORED[kind]) for kind in kinds]
                *given, out = (raw[:count] for raw in raws)
                for file, stored, raw in zip(files, self._stored, given, strict=True):
                    fill(file, stored, rows.start * width * raw.itemsize, raw.data.cast("B"))
                yield out.data.cast("B") if self._compute(given, out) else self._by_torch(rows)

    def _compute(self, given: list[arrays.Stored], out: arrays.Stored) -> bool:
        """Fill `out`; return False where a value is not finite: which NaN it is, torch says."""
        for start in range(0, len(out), _CHUNK):
            part = slice(start, start + _CHUNK)
            terms = []
            for raw, casts in zip(given, self._casts, strict=True):
                values = arrays.widened(raw[part], casts[0])
                for dtype in casts[1:]:
                    values = arrays.cast(values, dtype)
                terms.append(values)
            values = arrays.average(terms, self._weights, self._divisor)
            if not np.isfinite(values).all():
                return False
            out[part] = arrays.narrowed(arrays.cast(values, self._rounded), self.dtype)
        return True

    def _by_torch(self, rows: slice) -> memoryview:
        from layerswap_method.stream.read import MixReader, as_bytes

        ((_, block),) = MixReader(self._mix).blocks(rows)
        return as_bytes(block)


class NeedsTorchError(Exception):
    """Numpy has not the dtypes or not the bits of a mix."""
