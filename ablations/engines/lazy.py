"""A tensor that is read from its files while it is copied. Knows torch's dispatcher; no engine.

vLLM's loaders take a checkpoint's tensor, narrow it to the part that a parameter holds, and copy
it there. A tensor in memory for that is one copy too many: this one has a shape and a dtype, can
be narrowed, and on ``parameter.copy_(it)`` writes block after block of its mix into the parameter.
Whatever else is done with it turns it into an ordinary tensor first, so it is never wrong, only
larger.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map_only

if TYPE_CHECKING:
    from layerswap_method.tensors import MixReader

_Window = tuple[slice, ...]


class LazyTensor(torch.Tensor):
    """A window of a mix, on CPU as far as anybody asks; reads nothing by itself."""

    _reader: MixReader
    _window: _Window

    @staticmethod
    def __new__(cls, reader: MixReader, window: _Window | None = None) -> LazyTensor:
        """Stand for `window` (a range in steps of 1 a dimension; None: all) of the mix."""
        ranges = tuple(slice(0, length) for length in reader.shape) if window is None else window
        shape = [each.stop - each.start for each in ranges]
        self: LazyTensor = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=reader.dtype)
        self._reader, self._window = reader, ranges
        return self

    def __init__(self, reader: MixReader, window: _Window | None = None) -> None:
        """Do nothing more than `__new__` did."""

    def read(self) -> torch.Tensor:
        """Return the content as an ordinary tensor."""
        return self._reader.read()[self._window]

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        """Return shape and dtype; contents would have to be read."""
        return f"LazyTensor({list(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Narrow and copy without reading everything; read for any other operation."""
        del types
        aten = torch.ops.aten
        if func is aten.detach.default or func is aten.alias.default:
            return cls(args[0]._reader, args[0]._window)
        if func is aten.slice.Tensor and not kwargs:
            narrowed = _narrowed(*args)
            if narrowed is not None:
                return cls(args[0]._reader, narrowed)
        if func is aten.copy_.default:
            target, source = args[:2]
            if isinstance(source, cls) and not isinstance(target, cls):
                if target.is_meta:
                    return target
                if target.shape == source.shape:
                    source._reader.copy_to(target, source._window)
                    return target
        plain = tree_map_only(cls, cls.read, (args, dict(kwargs or {})))
        return func(*plain[0], **plain[1])


def _narrowed(
    source: LazyTensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> _Window | None:
    """Return the window that is left of `source`'s, or None where it is no range in steps of 1."""
    if step != 1:
        return None
    window, dim = list(source._window), dim % source.ndim
    first, last, _ = slice(start, end).indices(source.shape[dim])
    begin = window[dim].start
    window[dim] = slice(begin + first, begin + max(first, last))
    return tuple(window)
