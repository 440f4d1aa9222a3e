"""The output folder of a merge: all of it or nothing, and nothing of the user's is touched."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from layerswap_method.errors import InputError, LayerSwapError

PLAN_FILE, REVERT_PLAN_FILE = "layer_swap_plan.json", "delta_revert_plan.json"
"""Files next to the weights of a merge that say what came from where."""

FILES = ".layerswap.json"
"""The list of what was written into a folder, in the folder: only that is ever replaced."""

_REPLACED = "replaced"
"""Folder of the earlier merge while the new one takes its place."""

_SHOWN = 3


def output_folder(out_path: str) -> Path:
    """Return the absolute output folder for what the user wrote."""
    if not str(out_path).strip():
        raise InputError("the output path is empty; give a folder")
    try:
        return Path(os.path.abspath(out_path))  # noqa: PTH100 - resolve() would follow links
    except FileNotFoundError as error:
        raise InputError(
            f"{out_path}: the working directory is gone; give an absolute path"
        ) from error


def check_output(out: Path, inputs: Iterable[Path] = (), listing: str = FILES) -> None:
    """Check that a merge of the folders `inputs` may be written to `out`, and that it can be.

    It must be new, empty, or hold nothing but what its file `listing` lists.
    """
    if problem := _place_problem(out, [path.resolve() for path in inputs]):
        raise InputError(f"{out}: {problem}; give another")
    names = list(_unlisted(out, listed_files(out, listing))) if out.is_dir() else []
    if names:
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        raise InputError(
            f"{out}: the folder has files that no earlier run has listed in {listing} "
            f"({', '.join(names[:_SHOWN])}{more}), and is left as it is; move them away, or give "
            "another folder"
        )
    with suppress(FileNotFoundError):  # the working directory is gone
        current = Path.cwd()
        if out.resolve() in (current, *current.parents):
            raise InputError(
                f"{out}: the output folder is replaced as a whole, and this command runs in it; "
                "run it from another folder, or give another"
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


def _unlisted(folder: Path, listed: Collection[str], above: str = "") -> Iterator[str]:
    """Yield what is in a folder and on no list: files, links, and folders without a listed file."""
    parents = {str(parent) for name in listed for parent in PurePosixPath(name).parents}
    for path in sorted(folder.iterdir()):
        name = f"{above}{path.name}"
        if name in parents and path.is_dir() and not path.is_symlink():
            yield from _unlisted(path, listed, f"{name}/")
        elif name not in listed:
            yield name


def listed_files(folder: Path, listing: str = FILES) -> frozenset[str]:
    """Return the names, relative to `folder`, that its list has, and the list's own."""
    try:
        names = json.loads((folder / listing).read_text(encoding="utf-8"))["files"]
        return frozenset([*map(str, names), listing])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return frozenset()


def write_list(folder: Path, names: Iterable[str], listing: str = FILES) -> None:
    """Write the list of a folder."""
    text = json.dumps({"files": sorted({*names} - {listing})}, indent=1, ensure_ascii=False)
    with (folder / listing).open("w", encoding="utf-8") as opened:
        opened.write(text + "\n")
        opened.flush()
        os.fsync(opened.fileno())


@contextmanager
def claim_output(out: Path, inputs: Iterable[Path] = (), listing: str = FILES) -> Iterator[Path]:
    """Claim `out`, and yield a folder that takes its place when the body ends.

    `inputs` and `listing` are those of `check_output`, which is called first.
    Nobody else can claim it meanwhile. The folder vanishes if the body fails, and on Ctrl-C and
    SIGTERM. Once the body has ended, nothing is deleted before the new folder is whole in its
    place. The list is written here; the body writes one of another name than `FILES` itself, with
    its own keys.
    """
    check_output(out, inputs, listing)
    place = out.resolve()
    # One name for each output: what a killed merge left is put in order by the next one.
    key = hashlib.sha256(os.fsencode(place.name)).hexdigest()[:16]
    holder = place.parent / f".layerswap-{key}.partial"
    folder = holder / out.name  # mergekit prints the last part of the path on the model card
    new_parents = [parent for parent in place.parents if not parent.exists()]
    is_spare = True
    with _exclusive_lock(holder, out), _ended_by_sigterm():
        try:
            _restore(holder / _REPLACED, place)
            shutil.rmtree(holder / _REPLACED, ignore_errors=True)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            try:
                yield folder
                if listing == FILES:
                    _list_files(folder)
                give_folder_mode(folder)
            except InterruptedError:
                raise
            except OSError as error:
                raise LayerSwapError(_fault(error, folder, out)) from error
            is_spare = False  # until all of it is in its place
            try:
                check_output(out, (), listing)  # it may hold more by now
                _replace(folder, place, holder / _REPLACED)
            except (OSError, InputError) as error:
                reason = error.message if isinstance(error, InputError) else error.strerror
                raise LayerSwapError(
                    f"{out}: the merge is finished, but cannot be moved there ({reason}); it is in "
                    f"{folder}"
                ) from error
            is_spare = True
        finally:
            if is_spare:
                shutil.rmtree(holder, ignore_errors=True)
            with suppress(OSError):  # they are not empty
                for parent in new_parents:
                    parent.rmdir()


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


def _fault(error: OSError, folder: Path, out: Path) -> str:
    """Return what failed while `folder` was filled: the output, or a file of another place."""
    names = [Path(name) for name in (error.filename, error.filename2) if isinstance(name, str)]
    if not names or any(folder in (name, *name.parents) for name in names):
        return f"{out}: cannot be written: {error.strerror}"
    return f"{names[0]}: {error.strerror}; nothing is written to {out}"


def _can_be_renamed(folder: Path) -> bool:
    parent = folder.parent
    return folder.stat().st_dev == parent.stat().st_dev and os.access(parent, os.W_OK | os.X_OK)


def _replace(folder: Path, out: Path, replaced: Path) -> None:
    """Put `folder` in the place of `out`; a failure leaves both whole, and so does a crash."""
    if out.exists():
        shutil.copymode(out, folder)
        out.replace(replaced)
    try:
        folder.replace(out)
    finally:
        _restore(replaced, out)


def _restore(replaced: Path, out: Path) -> None:
    """Put an earlier merge back where no new one is."""
    if replaced.is_dir() and not out.exists():
        replaced.replace(out)


def _list_files(folder: Path) -> None:
    paths = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    write_list(folder, (path.relative_to(folder).as_posix() for path in paths))


@contextmanager
def _exclusive_lock(holder: Path, out: Path) -> Iterator[None]:
    """Hold the lock of the folder `holder`, which whoever had it before may have just removed."""
    while True:
        try:
            holder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"{out}: the output folder cannot be made: {error.strerror}"
            ) from error
        try:
            opened = os.open(holder, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            with suppress(OSError):  # a file system without locks
                try:
                    fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise InputError(
                        f"{out}: another merge to this folder is running; let it end"
                    ) from None
            if not _is_same(opened, holder):
                continue
            yield
            return
        finally:
            os.close(opened)


def _is_same(opened: int, folder: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(opened), folder.stat())
    except FileNotFoundError:
        return False


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
