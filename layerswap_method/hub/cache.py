"""Our folder beside the hub's cache, in the same layout: partial files, and links to whole ones."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from layerswap_method.errors import InputError, LayerSwapError, nearest_of, size_text

BLOBS = "blobs"
"""Folder of a repository's files in the hub's cache, and in ours; each is named by its content."""

_OURS = "-layerswap"
"""End of the name of our folder, after the name of the hub's cache."""


class CachedModel(NamedTuple):
    """A model of the hub of which our folder has byte ranges."""

    name: str
    folder: Path
    nbytes: int
    """Room on the disk, in bytes."""

    length: int
    """Room of its files if they were whole, in bytes."""

    used: float
    """When something of it was fetched last, as a time stamp."""


def cached_models(names: Sequence[str] = ()) -> list[CachedModel]:
    """Return the models in our folder, by name; all without `names`.

    What is no folder of a model, and no file of one, is somebody else's. Raises `InputError` for a
    name that is not there, `OSError` where the folder may not be read.
    """
    cache, models = own_cache(default_cache()), dict[str, CachedModel]()
    folders = cache.iterdir() if cache.is_dir() else ()
    for folder in sorted(folders):
        if not folder.name.startswith("models--") or folder.is_symlink() or not folder.is_dir():
            continue
        blobs = [file for file in (folder / BLOBS).glob("*") if not file.suffix]
        # A link stands for a whole file in the hub's cache.
        states = [file.stat() for file in blobs if file.is_file() and not file.is_symlink()]
        name = folder.name.removeprefix("models--").replace("--", "/")
        models[name] = CachedModel(
            name=name,
            folder=folder,
            nbytes=sum(state.st_blocks * 512 for state in states),
            length=sum(state.st_size for state in states),
            used=max((state.st_mtime for state in states), default=folder.stat().st_mtime),
        )
    for name in names:
        if name not in models:
            rest = nearest_of(name, models) if models else ", which has no model"
            raise InputError(f"{name}: nothing of it is in {cache}{rest}")
    return [models[name] for name in dict.fromkeys(names or models)]


def describe_cache(models: Sequence[CachedModel]) -> Iterator[str]:
    """Yield what our folder has of each of `cached_models`, and how large all of them are."""
    for model in models:
        if not model.length:  # all of its files are whole in the hub's cache
            continue
        day = datetime.fromtimestamp(model.used, UTC).date()
        yield (f"{model.name}: {size_text(model.nbytes, model.length)}, last downloaded {day}")
    total = sum(model.nbytes for model in models)
    yield f"{own_cache(default_cache())}: {size_text(total)}"


def remove_models(names: Sequence[str] = ()) -> list[CachedModel]:
    """Remove models from our folder, and return them; see `cached_models`.

    Raises `LayerSwapError` for one that is being downloaded, or that this user may not remove;
    those after it stay.
    """
    removed = []
    for model in cached_models(names):
        try:
            with _unused(model):  # a download that begins now begins with an empty folder
                aside = model.folder.with_name(f"{model.folder.name}.removed-{os.getpid()}")
                model.folder.rename(aside)
            shutil.rmtree(aside)
        except OSError as error:
            raise LayerSwapError(
                f"{model.name}: {error.filename} cannot be removed ({error.strerror}); whoever may "
                "write that folder can remove it"
            ) from error
        removed.append(model)
    return removed


@contextmanager
def _unused(model: CachedModel) -> Iterator[None]:
    """Keep other processes from downloading a model; raise where one does."""
    with ExitStack() as stack:
        for lock in (model.folder / BLOBS).glob("*.lock"):
            opened = stack.enter_context(lock.open("w"))
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise LayerSwapError(
                    f"{model.name}: another process is downloading it; let it end, then remove it"
                ) from error
            except OSError:  # a file system without locks
                break
        yield


def own_cache(hub_cache: Path) -> Path:
    """Return our folder beside the hub's cache."""
    return hub_cache.with_name(hub_cache.name + _OURS)


def default_cache() -> Path:
    """Return the hub's cache as huggingface_hub takes it from the environment."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE).expanduser().resolve()


def file_roots(snapshot: Path) -> list[Path]:
    """Return the folders, besides itself, that files of a snapshot in a hub's cache may be in.

    Of a snapshot in our folder these are, besides ours, those of the same model in the hub's cache.
    """
    if snapshot.parent.name != "snapshots":
        return []
    repository = snapshot.parents[1]
    roots = [repository / BLOBS]
    if repository.parent.name.endswith(_OURS):
        cache = repository.parent
        hub = cache.with_name(cache.name.removesuffix(_OURS)) / repository.name
        roots += [(hub / BLOBS).resolve(), (hub / "snapshots" / snapshot.name).resolve()]
    return roots
