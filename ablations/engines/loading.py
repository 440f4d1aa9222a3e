"""Tensors of a merge read by several threads ahead of an engine, into its memory or new one.

On a GPU each thread has a stream and pinned memory of its own: while the GPU copies and averages
one block, the thread reads the next from the disk, and the engine loads what is whole.
"""

from __future__ import annotations

import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import LifoQueue
from typing import IO, TYPE_CHECKING, NamedTuple

import torch

from layerswap_method.checkpoint.stored import StoredTensor, memory_of, read_into
from layerswap_method.errors import LayerSwapError
from layerswap_method.mix_reader import Buffers, MixReader
from layerswap_method.tensors import TensorMix
from layerswap_method.threads import one_core_threads, usable_cores

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_AHEAD_BYTES = {"cpu": 1 << 27, "cuda": 1 << 30}
"""Bytes of tensors that are read before they are asked for, at most, on a kind of device. A single
larger tensor is read alone."""

_REUSED_BYTES = 1 << 20
"""Smaller tensors come from memory that the process has."""

_PART = 1 << 20
"""Values of a tensor that are one thread's work at a time on the CPU; on a GPU it is a block."""

_MOST_THREADS = 8
"""Most threads that one disk and one bus can feed."""

Target = Callable[[str, MixReader], torch.Tensor]
"""Name and content of a tensor -> contiguous memory of its shape that it is written to."""


def read_tensors(
    mixes: Mapping[str, TensorMix], device: str | torch.device = "cpu", threads: int | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every tensor on a device, in order, in memory of its own, as more are read ahead.

    Experts of a mixture stay on the CPU: an engine keeps those of a whole layer until the last of
    them is there. What is yielded is ordered after its computation in the stream that is current.
    `threads` None is `default_threads`. Raises as `stored.read_rows`, at the tensor's place.
    """
    device, memory = torch.device(device), _Memory()

    def make(name: str, reader: MixReader) -> torch.Tensor:
        if device.type == "cpu" or ".experts." in name:
            return memory.take(reader)
        return torch.empty(reader.shape, dtype=reader.dtype, device=device)

    return _load(mixes, make, device, threads)


def fill_tensors(
    mixes: Mapping[str, TensorMix],
    tensors: Mapping[str, torch.Tensor],
    device: str | torch.device = "cpu",
    threads: int | None = None,
) -> None:
    """Write mixes over contiguous tensors of the same names on a device, cast to their dtype.

    Raises:
        LayerSwapError: for another shape, or where a file is not as it was.
    """

    def place(name: str, reader: MixReader) -> torch.Tensor:
        tensor = tensors[name]
        if reader.shape != tensor.shape:
            raise LayerSwapError(
                f"{name}: {list(reader.shape)} does not fit the engine's {list(tensor.shape)}"
            )
        return tensor.detach()

    for _ in _load(mixes, place, torch.device(device), threads):
        pass


def default_threads(device: torch.device) -> int:
    """Return how many threads read: as many as torch computes with, for a GPU one a core up to 8.

    Engines on GPUs set torch's to one.
    """
    if device.type == "cpu":
        return torch.get_num_threads()
    return min(_MOST_THREADS, usable_cores())


class _Memory:
    """Memory of tensors on the CPU, given out again when no view of it is left.

    Pages that a process touches for the first time cost more than what is read into them.
    """

    def __init__(self) -> None:
        self._free: list[npt.NDArray[np.uint8]] = []

    def take(self, reader: MixReader) -> torch.Tensor:
        """Return memory for a tensor, which is the caller's until nothing refers to it."""
        if reader.nbytes < _REUSED_BYTES:
            return torch.empty(reader.shape, dtype=reader.dtype, device="cpu")
        free = [(len(memory), place) for place, memory in enumerate(self._free)]
        fitting = [entry for entry in free if entry[0] >= reader.nbytes]
        if fitting:
            memory = self._free.pop(min(fitting)[1])
        else:
            memory = torch.empty(reader.nbytes, dtype=torch.uint8, device="cpu").numpy()
        view = memory[: reader.nbytes]
        # A tensor holds the array, and so do its views, wherever an engine keeps them.
        weakref.finalize(view, self._give_back, memory).atexit = False
        return torch.from_numpy(view).view(reader.dtype).view(reader.shape)

    def _give_back(self, memory: npt.NDArray[np.uint8]) -> None:
        self._free.append(memory)


class _Pinned:
    """Memory from which a GPU copies by itself, and the event after which it has."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)
        self.copied: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def take(self, dtype: torch.dtype, count: int, block: int) -> torch.Tensor:
        """Return a flat tensor, once the GPU has copied what was in it."""
        self.copied.synchronize()  # at once for a new event
        nbytes = count * dtype.itemsize
        if len(self._memory) < nbytes:
            room = max(count, block) * dtype.itemsize
            self._memory = torch.empty(room, dtype=torch.uint8, device="cpu", pin_memory=True)
        return self._memory[:nbytes].view(dtype)


class _Lane(Buffers):
    """One thread's way to a GPU: a stream, and two pinned buffers that take turns."""

    block = 1 << 21

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.on_cpu = Buffers()
        self._pinned = deque(_Pinned() for _ in range(2))

    def read(self, opened: IO[bytes], stored: StoredTensor, first: int, out: torch.Tensor) -> None:
        """Fill `out`, on the GPU, with stored values; return before the GPU has copied them."""
        start = first * stored.itemsize
        self.send(out, lambda host: read_into(opened, stored, start, memory_of(host)))

    def send(self, out: torch.Tensor, write: Callable[[torch.Tensor], None]) -> None:
        """Copy to `out`, on the GPU, what `write` puts into a tensor on the CPU."""
        pinned = self._pinned[0]
        self._pinned.rotate()
        host = pinned.take(out.dtype, out.numel(), self.block)
        write(host)
        out.copy_(host, non_blocking=True)
        pinned.copied.record(self.stream)


_FREE: defaultdict[torch.device, list[_Lane]] = defaultdict(list)
"""Lanes that no load uses. torch keeps a stream's memory for that stream: they are used again."""


class _Started(NamedTuple):
    """A tensor that threads are writing; each part may end with an event of the GPU."""

    name: str
    tensor: torch.Tensor
    parts: Sequence[Future[torch.cuda.Event | None]]
    nbytes: int


def _load(
    mixes: Mapping[str, TensorMix], place: Target, device: torch.device, threads: int | None
) -> Iterator[tuple[str, torch.Tensor]]:
    threads = threads or default_threads(device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    lanes = [_take_lane(device) for _ in range(threads)]
    free: LifoQueue[Buffers] = LifoQueue()
    for lane in lanes:
        free.put(lane)
    pool = one_core_threads(threads, "load")
    started: deque[_Started] = deque()
    ahead = 0
    try:
        for name, mix in mixes.items():
            reader = MixReader(mix)
            while started and ahead + reader.work_bytes > _AHEAD_BYTES[device.type]:
                yield _finish(started[0], device)
                ahead -= started.popleft().nbytes
            started.append(_start(name, reader, place, pool, free))
            ahead += reader.work_bytes
        while started:
            yield _finish(started[0], device)
            started.popleft()
    finally:
        pool.shutdown(cancel_futures=True)
        for lane in lanes:
            if isinstance(lane, _Lane):
                # Memory that is freed here stays until the lane can no longer write to it.
                torch.cuda.current_stream(device).wait_stream(lane.stream)
                _FREE[device].append(lane)


def _take_lane(device: torch.device) -> Buffers:
    if device.type == "cpu":
        return Buffers()
    return _FREE[device].pop() if _FREE[device] else _Lane(device)


def _start(
    name: str, reader: MixReader, place: Target, pool: ThreadPoolExecutor, free: LifoQueue[Buffers]
) -> _Started:
    """Have the parts of a tensor written by threads."""
    tensor = place(name, reader)
    flat, size, after = tensor.view(-1), _PART, None
    if tensor.is_cuda:
        size = _Lane.block
        after = torch.cuda.current_stream(tensor.device).record_event()
    if reader.has_changes:
        size = len(flat)  # its product is one thread's work, beside others on other tensors
    parts = [
        pool.submit(_fill, reader, flat[first : first + size], first, free, after)
        for first in range(0, len(flat), max(1, size))
    ]
    return _Started(name, tensor, parts, reader.work_bytes)


def _fill(
    reader: MixReader,
    out: torch.Tensor,
    first: int,
    free: LifoQueue[Buffers],
    after: torch.cuda.Event | None,
) -> torch.cuda.Event | None:
    """Write a part of a tensor; on a GPU, return the event after which it is there."""
    lane = free.get()
    try:
        with torch.inference_mode():
            if not isinstance(lane, _Lane):
                reader.fill(out, first, lane)
                return None
            if after is None:  # a tensor that stays on the CPU
                reader.fill(out, first, lane.on_cpu)
                return None
            with torch.cuda.stream(lane.stream):
                # The memory of `out` may still be in use by what was there before.
                lane.stream.wait_event(after)
                if reader.has_changes or reader.is_wide:
                    _send(reader, out, first, lane)
                else:
                    reader.fill(out, first, lane)
                whole: torch.cuda.Event = lane.stream.record_event()
                return whole
    finally:
        free.put(lane)


def _send(reader: MixReader, out: torch.Tensor, first: int, lane: _Lane) -> None:
    """Compute on the CPU, block by block, and copy to the GPU."""
    for start in range(0, len(out), lane.block):
        part, at = out[start : start + lane.block], first + start
        lane.send(part, partial(reader.fill, first=at, buffers=lane.on_cpu))


def _finish(started: _Started, device: torch.device) -> tuple[str, torch.Tensor]:
    """Return a tensor when its parts are there; the current stream waits for those on a GPU."""
    for part in started.parts:
        if (event := part.result()) is not None:
            torch.cuda.current_stream(device).wait_event(event)
    return started.name, started.tensor
