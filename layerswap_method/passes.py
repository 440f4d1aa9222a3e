"""One pass over the weights of experts and their base, block by block. Knows spans and threads.

Not what is computed. Each file is read once, front to back, in blocks that stay in a core's cache;
a pass takes as much memory as its blocks, whatever the size of the tensors. Tasks are segments of
a tensor; their results come in the order of the tensors, and every sum over them is in a fixed
order, so a result does not depend on the number of threads.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import torch

from layerswap_method.stored import StoredTensor, open_stored, read_span

if TYPE_CHECKING:
    from layerswap_method.deltas import DeltaPair

BLOCK = 1 << 16
"""Values of a block, about: its float32 copies fit a core's cache."""

_READ = 1 << 18
"""Values that are read at once, about."""

_SEGMENT = 1 << 22
"""Values of a segment, about."""

_AHEAD = 4
"""Segments that the operating system is asked for before their turn, on top of one a thread."""

T = TypeVar("T")


@dataclass(frozen=True)
class Segment:
    """Lines of one tensor that are read in one go; never of two matrices at once."""

    name: str
    """The tensor."""

    start: int
    """First line, counted through all matrices of the tensor (`rows.RowLayout`)."""

    stop: int
    """Past the last line."""


@dataclass(frozen=True)
class Block:
    """Consecutive lines of a tensor of one pair. Its memory is used again for the next block."""

    first_line: int
    """Number of the first line, counted through all matrices of the tensor."""

    expert: torch.Tensor
    """[lines, columns] in the dtype of the file, without an adapter's change."""

    base: torch.Tensor
    """[lines, columns] in the dtype of the file."""

    wide_base: torch.Tensor
    """[lines, columns] float32; may be `base` itself: not to be changed."""

    delta: torch.Tensor
    """[lines, columns] float32; the caller may change it."""


def segments_of(pair: DeltaPair, name: str) -> list[Segment]:
    """Return a tensor's lines in runs that are worth a task of their own."""
    layout = pair.layout(name)
    if not layout.columns:
        return []
    run = max(1, _SEGMENT // layout.columns)
    return [
        Segment(name, first + i, first + min(i + run, layout.lines))
        for first in range(0, layout.matrices * layout.lines, layout.lines or 1)
        for i in range(0, layout.lines, run)
    ]


def read_blocks(pairs: Sequence[DeltaPair], segment: Segment) -> Iterator[tuple[Block, ...]]:
    """Yield the blocks of a segment, one for each pair at a time; the base is read once.

    Args:
        pairs: experts of one base.
        segment: of `segments_of` any of them.

    Raises:
        InputError: if a file is gone, cut short, or was written anew since it was opened.
    """
    name = segment.name
    columns = pairs[0].layout(name).columns
    base = pairs[0].base_tensors[name]
    experts = [pair.expert_tensors[name] for pair in pairs]
    changes = [pair.change_factors(name) for pair in pairs]
    read = max(1, min(_READ // columns, segment.stop - segment.start))
    step = max(1, min(BLOCK // columns, read))
    raw = {place: torch.empty(read * columns, dtype=place.dtype) for place in (base, *experts)}
    wide = torch.empty(step * columns)
    deltas = [torch.empty(step * columns) for _ in pairs]
    with ExitStack() as stack:
        files = {place: stack.enter_context(open_stored(place)) for place in raw}
        for start in range(segment.start, segment.stop, read):
            lines = min(read, segment.stop - start)
            for place, opened in files.items():
                read_span(opened, place, start * columns, raw[place][: lines * columns])
            for first in range(0, lines, step):
                last = min(first + step, lines)
                part = slice(first * columns, last * columns)
                shape = (last - first, columns)
                size = part.stop - part.start
                theirs, wide_base = raw[base][part], wide[:size]
                if base.dtype == torch.float32:
                    wide_base = theirs
                else:
                    wide_base.copy_(theirs)
                blocks = []
                for place, change, delta in zip(experts, changes, deltas, strict=True):
                    ours = raw[place][part]
                    _subtract(ours, theirs, wide_base, delta[:size])
                    if change is not None:
                        rows = slice(start + first, start + last)
                        delta[:size].view(shape).addmm_(change[0][rows], change[1])
                    blocks.append(
                        Block(
                            first_line=start + first,
                            expert=ours.view(shape),
                            base=theirs.view(shape),
                            wide_base=wide_base.view(shape),
                            delta=delta[:size].view(shape),
                        )
                    )
                yield tuple(blocks)


def run_pass(
    pairs: Sequence[DeltaPair],
    names: Iterable[str],
    kernel: Callable[[Segment], T],
) -> Iterator[tuple[Segment, T]]:
    """Yield every segment with what `kernel` makes of it, in the order of `names`.

    As many segments are worked on at a time as torch uses threads; each of them has one.

    Args:
        pairs: what the kernel reads, so that it can be asked for ahead.
        names: tensors; taken as they are needed.
        kernel: runs in a thread.

    Raises:
        InputError: what `kernel` raises.
    """
    threads = torch.get_num_threads()
    waiting: deque[tuple[Segment, Future[T]]] = deque()
    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
    try:
        for name in names:
            for segment in segments_of(pairs[0], name):
                for pair in pairs:
                    _ask_for(pair.expert_tensors[name], pair, segment)
                _ask_for(pairs[0].base_tensors[name], pairs[0], segment)
                waiting.append((segment, pool.submit(kernel, segment)))
                if len(waiting) > threads + _AHEAD:
                    done, result = waiting.popleft()
                    yield done, result.result()
        while waiting:
            done, result = waiting.popleft()
            yield done, result.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        torch.set_num_threads(threads)  # new threads take over what the last one to set it said


def _ask_for(place: StoredTensor, pair: DeltaPair, segment: Segment) -> None:
    """Let the operating system read a segment ahead, where it can be asked to."""
    if not hasattr(os, "posix_fadvise"):
        return
    line = pair.layout(segment.name).columns * place.itemsize
    with open_stored(place) as opened:
        os.posix_fadvise(
            opened.fileno(),
            place.offset + segment.start * line,
            (segment.stop - segment.start) * line,
            os.POSIX_FADV_WILLNEED,
        )


def _subtract(
    ours: torch.Tensor, theirs: torch.Tensor, wide: torch.Tensor, out: torch.Tensor
) -> None:
    """Write ours - theirs to `out`; `wide` is theirs in float32."""
    if torch.float64 in (ours.dtype, theirs.dtype):
        out.copy_(ours.double() - theirs.double())
    elif ours.dtype == torch.float32:
        torch.sub(ours, wide, out=out)
    else:
        out.copy_(ours).sub_(wide)
