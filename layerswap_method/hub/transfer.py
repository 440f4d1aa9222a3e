"""Byte ranges of files of the hub, fetched into partial files over HTTP.

huggingface_hub gives session, token, proxies and redirects. Every range and every new try goes
through the hub's own address: what that leads to may be signed for one range, and runs out.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

from layerswap_method.errors import InputError, LayerSwapError, size_text
from layerswap_method.hub.partial import create, has_length, list_of, ranges_there
from layerswap_method.hub.patience import GOES_ON, Pace, check_wait
from layerswap_method.hub.ranges import Range, join_ranges, lacking, size, split
from layerswap_method.hub.refusals import describe_refusal
from layerswap_method.jobs import run_jobs, write_at
from layerswap_method.progress import Advance, Bar, no_bar

LOG = logging.getLogger("layerswap")

GAP = 1 << 20
"""Ranges at most so far apart are fetched as one: a request costs more than a megabyte."""

_REQUEST, _LISTED = 64 << 20, 16 << 20
"""Most bytes of a request, and most bytes that are written before they are listed."""

_THREADS = 8
"""Requests at once, as many as huggingface_hub has."""

_TRIES = 5
"""New tries in a row that bring nothing, before a range is given up."""

_WAIT_S = 0.5
"""Time before the first new try; twice as long before each other, up to 8 seconds."""

_BUSY = (408, 429, 500, 502, 503, 504)
"""Status of a server that may give the range later."""


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository at a commit, with the size and SHA-256 that the hub states."""

    repository: str
    commit: str
    name: str
    size: int
    sha256: str

    def __str__(self) -> str:
        return f"{self.repository}: {self.name}"


class NoRanges(LayerSwapError):
    """The server gives whole files only, or does not say what file a range is of."""


class WrongAnswer(InputError):
    """The hub's answer contradicts itself, an earlier one, or the format. None of it was noted."""

    def __init__(self, repository: str, problem: str) -> None:
        self.problem = f"{repository}: {problem}"
        super().__init__(
            f"{self.problem}; if it stays so, layerswap cache --remove {repository} lets "
            "you begin again"
        )


def fetch_ranges(
    files: Mapping[Path, RemoteFile],
    ranges: Mapping[Path, Sequence[Range]],
    bar: Bar = no_bar,
    gap: int = GAP,
) -> int:
    """Fetch ranges of partial files that are not there yet; return the bytes that were fetched.

    `files` says where each partial file comes from. Another process that fetches ranges of the same
    file is waited for, and what it fetched is there then. A file that lacks nothing is not touched,
    so that one in a cache that may only be read will do. Raises `NoRanges`, `OSError` for a file
    that cannot be made, and `LayerSwapError` for what else fails.
    """
    with ExitStack() as stack:
        for blob in sorted(ranges):  # in one order, so that no two processes wait for each other
            length = files[blob].size
            if not has_length(blob, length) or lacking(ranges[blob], ranges_there(blob)):
                blob.parent.mkdir(parents=True, exist_ok=True)
                stack.enter_context(locked(blob, files[blob]))
                create(blob, length)
        pieces = [
            (blob, piece)
            for blob, spans in ranges.items()
            for piece in split(_to_fetch(spans, ranges_there(blob), gap), _REQUEST)
        ]
        total = sum(end - start for _, (start, end) in pieces)
        if not pieces:
            return 0
        check_room(pieces[0][0].parent, total)
        with bar("downloading", total) as advance:
            _fetch_all([(files[blob], blob, piece) for blob, piece in pieces], advance)
    return total


def missing_bytes(blob: Path, ranges: Sequence[Range]) -> int:
    """Return how many bytes `fetch_ranges` would fetch of a file."""
    return size(_to_fetch(ranges, ranges_there(blob), GAP))


def _to_fetch(ranges: Sequence[Range], present: Sequence[Range], gap: int) -> list[Range]:
    """Return the missing ranges, joined over small gaps, but nothing that is there."""
    return lacking(join_ranges(lacking(ranges, present), gap), present)


def check_room(folder: Path, needed: int) -> None:
    """Check that a disk has room for a download."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise LayerSwapError(
            f"{folder}: the download needs {size_text(needed)} and the disk has "
            f"{size_text(free)} free; make room (layerswap cache), or set HF_HUB_CACHE to a folder "
            "on another disk"
        )


@contextmanager
def locked(blob: Path, file: object) -> Iterator[None]:
    """Hold the lock of a partial file, once no other process fetches ranges of it."""
    with blob.with_name(f"{blob.name}.lock").open("w") as lock:
        with suppress(OSError):  # a file system without locks: equal bytes are written twice
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                LOG.warning("%s: waiting for another process that downloads it", file)
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch_all(pieces: Sequence[tuple[RemoteFile, Path, Range]], advance: Advance) -> None:
    """Fetch all pieces; where one fails, or on an interrupt, the others end at their next bytes."""
    for _, blob, _ in pieces:
        _end_line(list_of(blob))
    with ThreadPoolExecutor(_THREADS) as pool:
        run_jobs([partial(_fetch, *piece, advance) for piece in pieces], pool)


def _end_line(path: Path) -> None:
    """End the line that a process left half-written, so that the next one is a line of its own."""
    content = path.read_bytes()
    if content and not content.endswith(b"\n"):
        with path.open("ab", buffering=0) as opened:
            opened.write(b"\n")


def _fetch(file: RemoteFile, blob: Path, piece: Range, advance: Advance, stopped: Event) -> None:
    """Write a range into its place; bytes that were written are listed, however this ends."""
    import httpx2

    listed, end = piece  # bytes before `listed` are in the list
    tries = 0
    pace = Pace(str(file))
    with blob.open("r+b", buffering=0) as out, list_of(blob).open("ab", buffering=0) as ranges:
        place = listed

        def list_written() -> None:
            nonlocal listed
            if place > listed:
                _sync(out.fileno())  # no line before its bytes are on the disk
                ranges.write(b"%d %d\n" % (listed, place))
                listed = place

        try:
            while place < end:
                before = place
                try:
                    for content in _stream(file, place, end):
                        write_at(out.fileno(), content, place)
                        place += len(content)
                        if place - listed >= _LISTED:
                            list_written()
                        advance(len(content))
                        pace.check(len(content))
                        if stopped.is_set():
                            raise InterruptedError
                except (httpx2.TransportError, _TryAgain) as error:
                    tries = 1 if place > before else tries + 1
                    if tries > _TRIES:
                        raise LayerSwapError(
                            f"{file}: the download broke off {tries} times ({error}); {GOES_ON}"
                        ) from error
                    pace.check(0)
                    wait = error.wait_s if isinstance(error, _TryAgain) else 0.0
                    if stopped.wait(max(wait, min(8.0, _WAIT_S * 2 ** (tries - 1)))):
                        raise InterruptedError from error
                    pace.waited(wait)
            list_written()
        except OSError as error:
            if isinstance(error, InterruptedError):
                raise
            if error.errno is None:
                refusal = describe_refusal(file.repository, file.commit, error)
                raise LayerSwapError(f"{file}: {refusal}") from error
            raise LayerSwapError(
                f"{blob.parent}: {file.name} cannot be written there: {error.strerror}; make room, "
                "or set HF_HUB_CACHE"
            ) from error
        finally:
            with suppress(OSError):
                list_written()


_sync = getattr(os, "fdatasync", os.fsync)
"""Waits until what was written to a file is on the disk; macOS has no `fdatasync`."""


class _TryAgain(Exception):
    """An address ran out, a server was busy or ended a range before its end."""

    def __init__(self, reason: str, wait_s: float = 0.0) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


def _stream(file: RemoteFile, start: int, end: int) -> Iterator[bytes]:
    """Yield the content of a range, after checks that it is that of this file."""
    from huggingface_hub import constants, get_session, hf_hub_url, hf_raise_for_status
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    url = hf_hub_url(file.repository, file.name, revision=file.commit)
    headers = build_hf_headers() | {"Range": f"bytes={start}-{end - 1}"}
    headers["Accept-Encoding"] = "identity"  # a range of the file, not of a packed one
    timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
    with get_session().stream("GET", url, headers=headers, timeout=timeout) as response:
        if response.status_code in _BUSY:
            raise _TryAgain(f"HTTP {response.status_code}", check_wait(response))
        if response.status_code == 403 and response.history:
            raise _TryAgain("HTTP 403 from the address that the hub gave")
        hf_raise_for_status(response)
        _check_answer(file, start, end, [*response.history, response])
        place = start
        for content in response.iter_raw():
            place += len(content)
            if place > end:
                raise NoRanges(f"{file}: the server sent more than the range that was asked for")
            yield content
        if place < end:
            raise _TryAgain("the server ended the range too early")


def _check_answer(file: RemoteFile, start: int, end: int, responses: Sequence[Any]) -> None:
    """Check that an answer is this range of this file, by what its redirects said."""
    last = responses[-1]
    linked = (response.headers.get("X-Linked-Etag") for response in responses)
    tag = next(filter(None, linked), None) or last.headers.get("ETag", "")
    stated = tag.strip().removeprefix("W/").strip('"').lower()
    span, total = f"bytes {start}-{end - 1}", str(file.size)
    stated_span, _, stated_total = last.headers.get("Content-Range", "").partition("/")
    is_range = last.status_code == 206 and stated_span == span
    if re.fullmatch("[0-9a-f]{64}", stated) and stated != file.sha256:
        raise WrongAnswer(
            file.repository,
            f"{file.name} at commit {file.commit} is another file than when its size was asked for "
            f"(SHA-256 {stated[:12]}, not {file.sha256[:12]})",
        )
    if is_range and stated_total.isdecimal() and stated_total != total:
        raise WrongAnswer(
            file.repository,
            f"{file.name} has {stated_total[:20]} bytes, not {total} as the hub said before",
        )
    if not is_range or stated_total != total or len(stated) != 64:
        raise NoRanges(
            f"{file}: the server gives no byte ranges that can be checked (HTTP "
            f"{last.status_code}, {last.headers.get('Content-Range', 'no Content-Range')})"
        )
    length, packed = (last.headers.get(name) for name in ("Content-Length", "Content-Encoding"))
    if length != str(end - start) or packed not in (None, "", "identity"):
        # Packed on the way, though nobody asked for it: its bytes are not those of the file.
        raise _TryAgain(f"an answer of {length} bytes, {packed or 'plain'}, to {end - start}")
