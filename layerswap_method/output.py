"""The output folder of a merge: all of it or nothing, and nothing of the user's is lost."""

from __future__ import annotations

import fcntl
import itertools
import json
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path

from layerswap_method.errors import InputError, LayerSwapError
from layerswap_method.file_names import ADAPTER_CONFIG, TOKENIZER_FILES

PLAN_FILE, REVERT_PLAN_FILE = "layer_swap_plan.json", "delta_revert_plan.json"
PLAN_FILES = {"layer_swap": PLAN_FILE, "delta_revert": REVERT_PLAN_FILE}
"""Merge method -> the file next to the weights that says what came from where."""

HARMONIZE_FILE = "harmonize.json"
"""The record of what `layerswap harmonize` did to a model, next to its weights."""

FILES = ".layerswap.json"
"""The list of what was written into a folder, in the folder: only that is ever replaced."""

_MERGED = (PLAN_FILE, REVERT_PLAN_FILE, HARMONIZE_FILE, "mergekit_config.yml")
"""Files that only a merge, or `layerswap harmonize`, leaves."""


_WEIGHTS = re.compile(
    r"((pytorch_)?model|adapter_model)(-\d+-of-\d+)?\.(safetensors|bin)(\.index\.json)?"
)
_SETTINGS = (
    ADAPTER_CONFIG,
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
    *_MERGED,
)
_TOKENS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "tekken.json",
)
"""Exact names by which a model is loaded. A file of the user, or of an earlier merge that has no
list, would be taken for the new merge's, which may have none of that name."""

_PARTIAL = ".layerswap-*.partial"
_REPLACED = "replaced"
"""Folder of the earlier merge while the new one takes its place."""

LOG = logging.getLogger("layerswap")


def output_folder(out_path: str) -> Path:
    """Return the absolute output folder for what the user wrote."""
    if not str(out_path).strip():
        raise InputError("the output path is empty; give a folder")
    return Path(os.path.abspath(out_path))  # noqa: PTH100 - resolve() would follow links


def check_output(out: Path, inputs: Iterable[Path], listing: str = FILES) -> None:
    """Check that a merge may be written to `out`, and that it can be."""
    if problem := _place_problem(out, [path.resolve() for path in inputs]):
        raise InputError(f"{out}: {problem}; give another")
    names = sorted(path.name for path in out.glob("*"))
    if names and not _is_merge(out, listing):
        raise InputError(
            f"{out}: the folder has files that no merge has written ({', '.join(names[:3])}); give "
            "another folder, or empty it"
        )


def _place_problem(out: Path, inputs: Collection[Path]) -> str | None:
    try:
        if not out.is_dir() and (out.is_symlink() or out.exists()):
            return "the output path is a file or a broken link"
        place = out.resolve()
    except (OSError, RuntimeError) as error:  # a name too long for the file system; links in a ring
        return f"the output folder cannot be used: {getattr(error, 'strerror', error)}"
    if place in inputs:
        return "the output folder is one of the merge's inputs"
    if above := next((f for f in inputs if f in place.parents and f.is_dir()), None):
        return f"the output folder is inside {above}, which the merge reads"
    if out.exists() and not os.access(out, os.W_OK | os.X_OK):
        return "the output folder may not be written"
    if out.exists() and not _can_be_renamed(place):
        return (
            "the output folder cannot be replaced as a whole: it is a mount point, or the folder "
            "above it may not be written"
        )
    return None


def _is_merge(folder: Path, listing: str) -> bool:
    return any((folder / name).is_file() for name in (*_MERGED, listing))


def listed_files(folder: Path, listing: str = FILES) -> frozenset[str] | None:
    """Return the names, relative to `folder`, that its list has; None where it has no list."""
    try:
        names = json.loads((folder / listing).read_text(encoding="utf-8"))["files"]
        return frozenset([*map(str, names), listing])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def write_list(folder: Path, names: Iterable[str], listing: str = FILES) -> None:
    """Write the list of a folder."""
    text = json.dumps({"files": sorted({*names} - {listing})}, indent=1, ensure_ascii=False)
    (folder / listing).write_text(text + "\n", encoding="utf-8")


def put_aside(folder: Path, names: Collection[str]) -> None:
    """Make place for files that are moved to `folder` one by one, and list them there.

    A file of one of their names that is not listed is the user's, and gets another name.
    """
    listed = listed_files(folder) or frozenset()
    for path in (folder / name for name in sorted({*names} - listed)):
        if os.path.lexists(path):
            _move_aside(path, path.parent)
    write_list(folder, [*names, *listed])


@contextmanager
def temporary_output(
    out: Path, key: str | None = None, *, resume: bool = False, listing: str = FILES
) -> Iterator[Path]:
    """Yield a folder that becomes `out` when the body ends, and vanishes if the body fails.

    It vanishes on Ctrl-C and SIGTERM too. Of an existing `out` only what its list names is
    replaced; other files stay, under another name where the new folder has a file of theirs. Once
    the body has ended, nothing is deleted before the new folder is whole in its place. The list is
    written here; the body writes one of another name than `FILES` itself, with its own keys.
    """
    check_output(out, (), listing)
    place = out.resolve()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        if key is None:
            holder = Path(
                tempfile.mkdtemp(prefix=".layerswap-", suffix=".partial", dir=place.parent)
            )
        else:
            holder = place.parent / f".layerswap-{key}.partial"
            holder.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"{out}: the output folder cannot be made: {error.strerror}") from error
    for partial in sorted(place.parent.glob(_PARTIAL)):
        if partial != holder and (partial / _REPLACED).exists():
            LOG.warning("%s: has files of an earlier merge; move what you need away", partial)
        elif partial != holder and (partial / out.name).exists():
            LOG.warning("%s belongs to a merge; if none is running, delete it", partial)
    folder = holder / out.name  # mergekit prints the last part of the path on the model card
    is_spare = not resume
    with _exclusive_lock(holder), _ended_by_sigterm():
        try:
            _restore(holder / _REPLACED, place, listing)
            shutil.rmtree(holder / _REPLACED, ignore_errors=True)
            if folder.exists() and not resume:
                shutil.rmtree(folder)
            folder.mkdir(exist_ok=True)
            try:
                yield folder
                if listing == FILES:
                    _list_files(folder, place)
                give_folder_mode(folder)
            except InterruptedError:
                raise
            except OSError as error:
                raise LayerSwapError(f"{out}: cannot be written: {error.strerror}") from error
            is_spare = False  # until all of it is in its place
            try:
                _replace(folder, place, holder, listing)
            except OSError as error:
                if folder.exists():
                    raise LayerSwapError(
                        f"{out}: the merge is finished, but cannot be moved there "
                        f"({error.strerror}); it is in {folder}"
                    ) from error
                raise LayerSwapError(
                    f"{out}: the merge is written, but the files before it cannot be moved back "
                    f"({error.strerror}); it is in {holder / _REPLACED}"
                ) from error
            is_spare = True
        finally:
            if is_spare:
                shutil.rmtree(holder, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, where its file system can tell."""
    with suppress(OSError):  # FUSE, SMB and others sync files and no folders
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def give_folder_mode(folder: Path) -> None:
    """Give the files in `folder` the read and write permissions of the folder itself.

    safetensors (0.8) and `tempfile` write files that only their owner may read.
    """
    mode = folder.stat().st_mode & 0o666
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(path.stat().st_mode | mode)


def _can_be_renamed(folder: Path) -> bool:
    parent = folder.parent
    return folder.stat().st_dev == parent.stat().st_dev and os.access(parent, os.W_OK | os.X_OK)


def _replace(folder: Path, out: Path, holder: Path, listing: str) -> None:
    """Put `folder` in the place of `out`; a failure leaves both whole, and so does a crash."""
    if not out.exists():
        folder.replace(out)
        return
    replaced = holder / _REPLACED
    shutil.copymode(out, folder)
    out.replace(replaced)
    try:
        folder.replace(out)
    finally:
        _restore(replaced, out, listing)


def _restore(replaced: Path, out: Path, listing: str) -> None:
    """Put an earlier merge back where no new one is; else only the files that it did not write."""
    if not replaced.is_dir():
        return
    if not out.exists():
        replaced.replace(out)
        return
    written = _written(replaced, listing) - _staying(replaced, out, listing)
    settings = _SETTINGS + _TOKENS if _has_tokens(out) else _SETTINGS
    _put_back(replaced, out, written, settings)


def _put_back(
    replaced: Path, out: Path, written: Collection[str], settings: Collection[str] = ()
) -> None:
    """Move files that are not `written` to their places, or aside.

    A file goes aside where its place is taken, or where a model would be loaded by its name.
    """
    for path in sorted(replaced.iterdir()):
        target, start = out / path.name, f"{path.name}/"
        below = {name.removeprefix(start) for name in written if name.startswith(start)}
        if path.is_dir() and not path.is_symlink() and (below or target.is_dir()):
            target.mkdir(exist_ok=True)
            _put_back(path, target, below)
            with suppress(OSError):  # it has files
                target.rmdir()
        elif path.name not in written:
            is_loaded = path.name in settings or (settings and _WEIGHTS.fullmatch(path.name))
            if os.path.lexists(target) or is_loaded:
                _move_aside(path, out)
            else:
                path.replace(target)


def _move_aside(path: Path, folder: Path) -> None:
    """Move a file of the user to `folder`, under a name that is neither there nor where it is."""
    ends = itertools.chain(["before"], (f"before-{number}" for number in itertools.count(2)))
    names = (f"{path.name}.{end}" for end in ends)
    places = (path.parent, folder)
    free = (name for name in names if not any(os.path.lexists(at / name) for at in places))
    target = folder / next(free)
    LOG.warning("%s: is not of the run before; it is now %s", folder / path.name, target.name)
    path.replace(target)


def _has_tokens(folder: Path) -> bool:
    return any(next(folder.glob(pattern), None) for pattern in TOKENIZER_FILES)


def _written(folder: Path, listing: str) -> frozenset[str]:
    """Return which files of a folder an earlier merge has written."""
    if (names := listed_files(folder, listing)) is not None:
        return names
    settings = ("config.json", *_SETTINGS, *_TOKENS)
    if not _is_merge(folder, listing):
        return frozenset()
    card = ("README.md",) if (folder / "mergekit_config.yml").is_file() else ()
    names = frozenset(path.name for path in folder.iterdir())
    return frozenset(n for n in names if n in (*settings, *card) or _WEIGHTS.fullmatch(n))


def _staying(replaced: Path, out: Path, listing: str) -> frozenset[str]:
    """Return the files of an earlier merge's tokenizer, () where the merge in `out` has its own."""
    if _has_tokens(out):
        return frozenset()
    patterns = [pattern for pattern in TOKENIZER_FILES if pattern != "chat_template*"]
    names = _written(replaced, listing)
    return frozenset(n for n in names if any(fnmatch(n.split("/")[0], p) for p in patterns))


def _list_files(folder: Path, place: Path) -> None:
    """Write the list of a new merge, with what stays of the one in its place."""
    paths = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    staying = _staying(place, folder, FILES) if place.is_dir() else ()
    write_list(folder, [*(path.relative_to(folder).as_posix() for path in paths), *staying])


@contextmanager
def _exclusive_lock(folder: Path) -> Iterator[None]:
    opened = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(f"{folder}: the same merge is running; let it end") from None
        yield
    finally:
        os.close(opened)


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM unwind the merge as Ctrl-C does, unless somebody else handles it."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
