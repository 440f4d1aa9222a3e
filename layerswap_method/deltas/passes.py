"""One pass over the weights of experts and their base, block by block. Knows spans and threads.

Not what is computed. Each file is read once, front to back, in blocks that stay in a core's cache;
a pass takes as much memory as its blocks, whatever the size of the tensors. Tasks are segments of
a tensor; their results come in the order of the tensors, and every sum over them is in a fixed
order, so a result does not depend on the number of threads.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeVar

import torch

from layerswap_method.checkpoints.spans import read_span, torch_dtype
from layerswap_method.checkpoints.stored import StoredTensor, open_stored
from layerswap_method.deltas.pair import DeltaPair
from layerswap_method.deltas.rows import RowLayout

BLOCK = 1 << 17
"""Values of a block, about: small enough that what is computed from it stays in the caches."""

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


@dataclass
class Block:
    """Consecutive lines of a tensor of one pair.

    Its tensors are filled anew for the next block, which is this object with another `first_line`
    (the last one of a segment may be shorter and another object).
    """

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
    return [Segment(name, start, stop) for start, stop in runs_of(pair.layout(name))]


def runs_of(layout: RowLayout) -> list[tuple[int, int]]:
    """Return (first line, past the last) of a tensor's segments."""
    if not layout.columns:
        return []
    run = max(1, _SEGMENT // layout.columns)
    return [
        (first + i, first + min(i + run, layout.lines))
        for first in range(0, layout.matrices * layout.lines, layout.lines or 1)
        for i in range(0, layout.lines, run)
    ]


def lines_of_block(columns: int, start: int, stop: int) -> int:
    """Return the lines of each block but the last of the segment from `start` to `stop`."""
    return min(max(1, BLOCK // columns), stop - start)


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
    places = [pairs[0].base_tensors[name], *(pair.expert_tensors[name] for pair in pairs)]
    changes = [pair.change_factors(name) for pair in pairs]
    step = lines_of_block(columns, segment.start, segment.stop)
    buffers = _Buffers(places, step, columns)
    with ExitStack() as stack:
        files = {place: stack.enter_context(open_stored(place)) for place in buffers.raw}
        for first in range(segment.start, segment.stop, step):
            if segment.stop - first < step:
                buffers = _Buffers(places, segment.stop - first, columns)
            for place, values in buffers.raw.items():
                read_span(files[place], place, first * columns, values)
            if buffers.is_widened:
                buffers.wide.copy_(buffers.blocks[0].base)
            for block, change in zip(buffers.blocks, changes, strict=True):
                block.first_line = first
                _subtract(block)
                if change is not None:
                    lines = change[0][first : first + len(block.delta)]
                    block.delta.addmm_(lines, change[1])
            yield buffers.blocks


def blocks_of(pair: DeltaPair, segment: Segment) -> Iterator[Block]:
    """Yield the blocks of a segment of one pair; each one's memory is that of the one before.

    Raises:
        InputError: as `read_blocks`.
    """
    for (block,) in read_blocks((pair,), segment):
        yield block


class _Buffers:
    """The memory of the blocks of a segment: what is read, its base in float32, the deltas."""

    def __init__(self, places: Sequence[StoredTensor], lines: int, columns: int) -> None:
        """Make room for so many lines of the base (the first place) and of every expert."""
        size, shape = lines * columns, (lines, columns)
        self.raw = {
            place: torch.empty(size, dtype=torch_dtype(place.torch_name)) for place in places
        }
        base = self.raw[places[0]].view(shape)
        self.is_widened = base.dtype != torch.float32
        self.wide = torch.empty(shape) if self.is_widened else base
        self.blocks = tuple(
            Block(0, self.raw[place].view(shape), base, self.wide, torch.empty(shape))
            for place in places[1:]
        )


def run_pass(
    pairs: Sequence[DeltaPair],
    names: Iterable[str],
    kernel: Callable[[Segment], T],
) -> Generator[tuple[Segment, T]]:
    """Yield every segment with what `kernel` makes of it, in the order of `names`.

    As many segments are worked on at a time as torch uses threads; each of them has one. Close it
    (`contextlib.closing`) where it may not be used up: its threads end then.

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


def _subtract(block: Block) -> None:
    """Fill a block's delta: expert - base, rounded to float32 once."""
    ours, theirs = block.expert, block.base
    if torch.float64 in (ours.dtype, theirs.dtype):
        block.delta.copy_(ours.double() - theirs.double())
    elif ours.dtype == torch.float32:
        torch.sub(ours, block.wide_base, out=block.delta)
    else:
        block.delta.copy_(ours).sub_(block.wide_base)
