"""Models of the hub as far as one run reads them, with every revision resolved once.

Of a model that is not in the hub's cache, config, tokenizer and the headers of its weights are
fetched. What is read to plan a merge is fetched when it is read. Then the merge says what it reads,
and that is fetched: whole files by huggingface_hub, or byte ranges. A folder beside the hub's cache
has the same layout and looks like the whole model.
"""

from __future__ import annotations

import errno
import functools
import glob
import json
import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, NoReturn, get_args

from layerswap_method.errors import InputError, LayerSwapError, first_line, nearest_of, size_text
from layerswap_method.file_names import (
    MODEL_FILES,
    SECOND_COPIES,
    WEIGHT_FILES,
    WEIGHTS_FILE,
    WEIGHTS_INDEX,
)
from layerswap_method.hub.cache import BLOBS, default_cache, own_cache
from layerswap_method.hub.partial import (
    complete,
    fetching_by,
    forget,
    is_partial,
    link,
    ranges_there,
)
from layerswap_method.hub.ranges import Range, join_ranges, lacking, size
from layerswap_method.hub.refusals import NotGiven, asking, describe_no_place
from layerswap_method.hub.transfer import (
    GAP,
    NoRanges,
    RemoteFile,
    WrongAnswer,
    check_room,
    fetch_ranges,
    locked,
    missing_bytes,
)
from layerswap_method.hub.weight_files import ask_for_weights, read_weights, write_weights
from layerswap_method.progress import Bar, no_bar

LOG = logging.getLogger("layerswap")

Download = Literal["whole", "ranges"]
"""`whole`: the whole files that a merge reads. `ranges`: the byte ranges that it reads."""

VARIABLE = "LAYERSWAP_DOWNLOAD"
"""Environment variable with the `Download` of commands that were given none."""

_NO_PLACE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EOPNOTSUPP)
"""Errors of a file system that has no place for our folder, or knows no links."""

_ROW_GAP = 1 << 16
"""As `GAP`, for rows that are sampled while a merge is planned: they are few, and far apart."""

_LITTLE = 8 << 20
"""A file may come whole though as many bytes of it, its header and a sample, are there already."""

_HEADER, _LONGEST = 100_000, 100_000_000
"""Bytes that are fetched at first of a file of weights, and the longest header (safetensors')."""


class Need(NamedTuple):
    """Bytes that are still to fetch of a model's weights, and those of its files."""

    model: str
    fetched: int
    ranges: int
    """As `fetched`, if byte ranges were fetched."""

    whole: int


@dataclass(frozen=True)
class _PartialModel:
    """A model at a commit: the hub's folder, ours, and the files of weights that are partial."""

    repository: str
    commit: str
    hub: Path
    folder: Path
    weights: Mapping[str, RemoteFile]
    nbytes: int
    """Size of all weights of the model, those that are whole included."""

    def blob(self, file: RemoteFile) -> Path:
        """Return where a partial file of weights is."""
        return self.folder.parents[1] / BLOBS / file.sha256

    def partial_files(self) -> list[RemoteFile]:
        """Return the files of weights that are not whole in our folder."""
        return [file for file in self.weights.values() if is_partial(self.blob(file))]


def download_choice(choice: str | None = None) -> Download:
    """Return how models are downloaded: by `choice`, or as the environment says, else whole."""
    value = choice or os.environ.get(VARIABLE) or "whole"
    choices: dict[str, Download] = {name: name for name in get_args(Download)}
    if value not in choices:
        place = f"download {value!r}" if choice else f"{VARIABLE}={value}"
        raise InputError(f"{place}: is not valid{nearest_of(value, choices)}")
    return choices[value]


def is_whole(folder: Path, weights: str = WEIGHTS_FILE) -> bool:
    """Return whether a snapshot has its file `weights`, or of a model all that its index names."""
    names = {weights}
    if weights == WEIGHTS_FILE and (folder / WEIGHTS_INDEX).is_file():
        try:
            index = json.loads((folder / WEIGHTS_INDEX).read_text("utf-8"))
            names = set(index["weight_map"].values())
        except (ValueError, LookupError, TypeError, AttributeError):
            return True  # the reader of the checkpoint says why it is damaged
    return all((folder / str(name)).is_file() for name in names)


def snapshot(
    repository: str,
    revision: str | None,
    cache_dir: str | None,
    patterns: Sequence[str],
    *,
    download: bool = True,
) -> Path:
    """Return the folder of the hub's cache with the files of a repository that match patterns.

    With `download` false only what is there. Raises `NotGiven` where the hub does not give them.
    """
    from huggingface_hub import snapshot_download

    with asking(repository, revision):
        return Path(
            snapshot_download(
                repository,
                revision=revision,
                cache_dir=cache_dir,
                allow_patterns=list(patterns),
                ignore_patterns=list(SECOND_COPIES),
                local_files_only=not download,
            )
        )


def complete_all(folder: Path) -> None:
    """Free the room of partial files in our folder that are whole in a `folder` of the hub's cache.

    Where our folder may not be written, they stay.
    """
    blobs = own_cache(folder.parents[2]) / folder.parents[1].name / BLOBS
    for file in folder.glob(WEIGHT_FILES):
        ours = blobs / (file.readlink().name if file.is_symlink() else file.name)
        if is_partial(ours):
            with suppress(OSError), locked(ours, file):
                complete(ours, file.resolve())


def describe_needs(needs: Iterable[Need]) -> Iterator[str]:
    """Yield in words how much will be downloaded of each model, and the disk that this takes."""
    needs = list(needs)
    for need in needs:
        yield (
            f"{need.model}: {size_text(need.fetched, need.whole)} of its weights will be downloaded"
        )
    if needs:
        fetched = sum(need.fetched for need in needs)
        ranges = sum(need.ranges for need in needs)
        less = f" (with --download ranges {size_text(ranges)})" if ranges < fetched else ""
        place = default_cache().parent
        yield f"the downloads need {size_text(fetched)} of disk below {place}{less}"


class Downloads:
    """The models of one run: where they are, and what is fetched of them."""

    def __init__(
        self,
        download: Download = "whole",
        cache_dir: str | None = None,
        *,
        headers_only: bool = False,
        why_whole: str | None = None,
    ):
        """Ask nothing yet. `cache_dir` is the hub's cache, None the one of the environment.

        With `headers_only`, nothing is downloaded whole, not even where there is no other way.
        `why_whole` is the reason, as a clause, to download every model whole.
        """
        self.download = download
        self._why_whole = why_whole
        self._headers_only = headers_only
        self._has_ranges = True
        self._cache_dir = cache_dir
        self._folders: dict[tuple[str, str | None, str], Path] = {}
        self._models: dict[Path, _PartialModel] = {}
        """Our folder of a model -> what it stands for."""

    @property
    def has_partial(self) -> bool:
        """Whether there is a model of which something is missing."""
        return bool(self._models)

    def folder(self, repository: str, revision: str | None, weights: str = WEIGHTS_FILE) -> Path:
        """Return the folder of a model or adapter, whole or with the headers of its weights.

        `weights` is the name that they have where they are one file. Raises `NotGiven` where the
        hub does not give it, `OSError` where a file cannot be made, `LayerSwapError` for the rest.
        """
        key = (repository, revision, weights)
        if key not in self._folders:
            self._folders[key] = self._open(repository, revision, weights)
        return self._folders[key]

    def fetch(self, ranges: Mapping[Path, Sequence[Range]], bar: Bar = no_bar) -> None:
        """Fetch what is missing of byte ranges of files; readers find it where they would read.

        Other files than those of partial models of this run are left alone. Raises `LayerSwapError`
        where something cannot be fetched.
        """
        self._fetch(ranges, bar, self.download, GAP, most=0)

    @contextmanager
    def fetching(self, bar: Bar = no_bar) -> Iterator[None]:
        """Fetch what the body reads of partial models of this run when it reads it."""
        download: Download = "ranges" if self._headers_only else self.download
        fetch = functools.partial(
            self._fetch, bar=bar, download=download, gap=_ROW_GAP, most=_LITTLE
        )
        with fetching_by(fetch):
            yield

    def _fetch(
        self,
        ranges: Mapping[Path, Sequence[Range]],
        bar: Bar,
        download: Download,
        gap: int,
        *,
        most: int,
    ) -> None:
        """Fetch what is missing of ranges; see `_missing` for `most`."""
        partial, whole = dict[Path, RemoteFile](), dict[Path, RemoteFile]()
        for model in self._models.values():
            in_part, in_whole = self._missing(model, ranges, download, gap, most)
            partial |= in_part
            whole |= in_whole
        try:
            with _place():
                fetch_ranges(partial, {blob: ranges[blob] for blob in partial}, bar, gap)
        except NoRanges as error:
            self._allow_whole(error, next(iter(partial.values())).repository)
            LOG.warning("%s; the files that are read are downloaded whole", error.message)
            whole |= {
                blob: file
                for blob, file in partial.items()
                if lacking(ranges[blob], ranges_there(blob))
            }
        for model in self._models.values():
            files = [file for file in model.weights.values() if model.blob(file) in whole]
            self._complete(model, files)

    def _allow_whole(self, error: NoRanges, repository: str) -> None:
        """Raise where a model may not come whole in place of its ranges."""
        if self._headers_only:
            raise LayerSwapError(
                f"{error.message}; hf download {repository} gets all of it"
            ) from error

    def fetch_whole(self, folders: Iterable[Path]) -> None:
        """Download models whole, of whose `folder` other programs read all; see `fetch`."""
        for folder in folders:
            if (model := self._models.get(folder)) is not None:
                self._complete(model, model.partial_files())

    def needs(
        self, ranges: Mapping[Path, Sequence[Range]], whole: Collection[Path] = ()
    ) -> Iterator[Need]:
        """Yield of every partial model how much `fetch` and `fetch_whole` would still fetch."""
        for model in self._models.values():
            if model.folder in whole:
                fetched = least = sum(file.size for file in model.partial_files())
            else:
                fetched = self._lacked_bytes(model, ranges, self.download)
                least = self._lacked_bytes(model, ranges, "ranges")
            yield Need(f"{model.repository}@{model.commit}", fetched, least, model.nbytes)

    def _lacked_bytes(
        self, model: _PartialModel, ranges: Mapping[Path, Sequence[Range]], download: Download
    ) -> int:
        """Return how many bytes `fetch` would still fetch of a model."""
        partial, whole = self._missing(model, ranges, download, GAP, 0)
        sizes = [missing_bytes(blob, ranges[blob]) for blob in partial]
        return sum(sizes) + sum(file.size for file in whole.values())

    def _missing(
        self,
        model: _PartialModel,
        ranges: Mapping[Path, Sequence[Range]],
        download: Download,
        gap: int,
        most: int,
    ) -> tuple[dict[Path, RemoteFile], dict[Path, RemoteFile]]:
        """Return the files of a model that lack ranges: those to fetch in part, and whole.

        Where files are downloaded whole, one that lacks `most` bytes or fewer comes in part.
        """
        partial, whole = dict[Path, RemoteFile](), dict[Path, RemoteFile]()
        for file in model.weights.values():
            blob = model.blob(file)
            spans = ranges.get(blob, ())
            missing = lacking(spans, ranges_there(blob))
            if not missing:
                continue
            if download == "whole":
                is_whole = size(missing) > most
            else:
                is_whole = _is_all_new(blob, file, spans, gap)
            (whole if is_whole else partial)[blob] = file
        return partial, whole

    def checked_lines(self, ranges: Mapping[Path, Sequence[Range]]) -> Iterator[str]:
        """Yield the checks that were made of the partial models whose byte ranges were read."""
        for model in self._models.values():
            blobs = map(model.blob, model.weights.values())
            if any(blob in ranges and is_partial(blob) for blob in blobs):
                yield (
                    f"{model.repository}@{model.commit}: byte ranges were downloaded; "
                    "checked: commit, size, header and length of each range, but no SHA-256 of a "
                    "whole file"
                )

    def _open(self, repository: str, revision: str | None, weights: str) -> Path:
        """Return a folder with the small files of a model, and its weights or their headers."""
        hub = snapshot(repository, revision, self._cache_dir, MODEL_FILES)
        if is_whole(hub, weights):
            complete_all(hub)
            return hub
        if self._why_whole is not None:
            LOG.warning("%s is downloaded whole: %s", repository, self._why_whole)
        try:
            if self._has_ranges and self._why_whole is None:
                try:
                    return self._open_partial(repository, hub)
                except WrongAnswer as error:
                    LOG.warning("%s; the hub is asked once more", error.problem)
                    return self._open_partial(repository, hub)
        except NoRanges as error:
            self._allow_whole(error, repository)
            LOG.warning("%s; models are downloaded whole", error.message)
            self._has_ranges = False
        except OSError as error:
            if self._headers_only or error.errno not in _NO_PLACE:
                raise
            LOG.warning(
                "%s; %s is downloaded whole, not only what is read of it",
                describe_no_place(error),
                repository,
            )
        whole = snapshot(repository, hub.name, self._cache_dir, [*MODEL_FILES, WEIGHT_FILES])
        complete_all(whole)
        return whole

    def _open_partial(self, repository: str, hub: Path) -> Path:
        """Return our folder of a snapshot of the hub's cache that lacks weights.

        Raises `WrongAnswer` for what the hub says, of which nothing is noted then.
        """
        from huggingface_hub import hf_hub_download

        repository_folder, cache = hub.parents[1], hub.parents[2]
        our_folder = own_cache(cache) / repository_folder.name
        folder = our_folder / "snapshots" / hub.name
        record = our_folder / "records" / f"{hub.name}.json"
        noted = read_weights(repository, hub.name, record)
        weights = ask_for_weights(repository, hub.name) if noted is None else noted
        if not weights:  # the reader of the checkpoint says so
            return hub
        get = functools.partial(
            hf_hub_download, repository, revision=hub.name, cache_dir=str(cache)
        )
        for file in weights.values():
            if not file.sha256:  # no large file for the hub
                with asking(repository, hub.name):
                    get(file.name)
            elif (repository_folder / BLOBS / file.sha256).is_file():  # of another commit
                with suppress(NotGiven), asking(repository, hub.name):
                    get(file.name)
        partial = {name: file for name, file in weights.items() if not (hub / name).is_file()}
        if not partial:
            return hub
        nbytes = sum(file.size for file in weights.values())
        model = _PartialModel(repository, hub.name, hub, folder, partial, nbytes)
        try:
            _fetch_headers({model.blob(file): file for file in partial.values()})
        except WrongAnswer:
            record.unlink(missing_ok=True)
            raise
        if noted is None:
            write_weights(repository, weights, record)
        for path in sorted(hub.rglob("*")):
            if path.is_file():
                link(folder / path.relative_to(hub), path)
        for file in partial.values():
            link(folder / file.name, model.blob(file))
        self._models[folder] = model
        return folder

    def _complete(self, model: _PartialModel, files: Sequence[RemoteFile]) -> None:
        """Download files of weights whole into the hub's cache, in place of the partial ones."""
        if not files:
            return
        check_room(model.hub, sum(file.size for file in files))
        names = [glob.escape(file.name) for file in files]
        try:
            folder = snapshot(model.repository, model.commit, str(model.hub.parents[2]), names)
        except NotGiven as error:
            raise LayerSwapError(
                f"{model.repository}: its weights were not downloaded: {error.message}"
            ) from error
        with _place():
            for file in files:
                with locked(model.blob(file), file):
                    complete(model.blob(file), (folder / file.name).resolve())


@contextmanager
def _place() -> Iterator[None]:
    """Raise `LayerSwapError` where our folder, of which something was read, cannot be written."""
    try:
        yield
    except OSError as error:
        raise LayerSwapError(describe_no_place(error)) from error


def _fetch_headers(files: Mapping[Path, RemoteFile]) -> None:
    """Fetch the headers of safetensors files: their first bytes, and what a long one has left.

    Raises `WrongAnswer` for what is no header.
    """
    from safetensors import SafetensorError, safe_open

    fetch_ranges(files, {blob: [(0, min(_HEADER, file.size))] for blob, file in files.items()})
    headers = {}
    for blob, file in files.items():
        length = _header_length(blob)
        if length > min(file.size, _LONGEST):
            _refuse_header(blob, file, f"its header would have {length} bytes")
        headers[blob] = [(0, length)]
    fetch_ranges(files, headers, gap=0)
    for blob, file in files.items():
        try:
            with safe_open(blob, framework="np"):
                pass
        except SafetensorError as error:
            _refuse_header(blob, file, first_line(error))


def _refuse_header(blob: Path, file: RemoteFile, reason: str) -> NoReturn:
    """Forget what was fetched of a file, and raise `WrongAnswer`."""
    with locked(blob, file):
        forget(blob)
    raise WrongAnswer(file.repository, f"{file.name} is no safetensors file: {reason}")


def _is_all_new(blob: Path, file: RemoteFile, spans: Sequence[Range], gap: int) -> bool:
    """Return whether ranges are all of a file of which little is there: the library's to download.

    Gaps of at most `gap` bytes count as theirs. The library checks the content of a whole file.
    """
    header = (0, _header_length(blob))
    is_all = join_ranges([header, *spans], gap) == [(0, file.size)]
    return is_all and size(ranges_there(blob)) <= max(_LITTLE, header[1])


def _header_length(blob: Path) -> int:
    """Return how many bytes before the tensors of a safetensors file there are."""
    with blob.open("rb") as opened:
        return 8 + int.from_bytes(opened.read(8), "little")
