"""The output folder of a merge: all of it or nothing, and nothing of the user's is lost."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from layerswap_method.errors import InputError, LayerSwapError

PLAN_FILE = "layer_swap_plan.json"
"""The layer plan of a `layer_swap`, written beside the weights."""

REVERT_PLAN_FILE = "delta_revert_plan.json"
"""What a `delta_revert` kept, written beside the weights."""

HARMONIZE_FILE = "harmonize.json"
"""What `layerswap harmonize` did to a model, written beside its weights."""

_MERGED = (PLAN_FILE, REVERT_PLAN_FILE, HARMONIZE_FILE, "mergekit_config.yml")
"""Files that only a merge, or `layerswap harmonize`, leaves."""

_RENEWED = (
    *("model*.safetensors", "model*.safetensors.index.json", "pytorch_model*.bin*"),
    *("adapter_model*", "adapter_config.json", "chat_template*", "generation_config.json"),
    *_MERGED,
)
"""Of an earlier merge, what must not stay beside new files: they would be taken for the new one's.
Tokenizer files stay: a merge of experts that have none does not write any."""

_PARTIAL = ".layerswap-*.partial"
_REPLACED, _ARRIVING = "replaced", "arriving"
"""Where the earlier merge is while the new one takes its place, and, while single files are
exchanged, the folder that holds the new one."""

LOG = logging.getLogger("layerswap")


def output_folder(out_path: str) -> Path:
    """Return the absolute output folder for what the user wrote.

    Raises:
        InputError: for an empty path.
    """
    if not str(out_path).strip():
        raise InputError("the output path is empty; give a folder")
    return Path(os.path.abspath(out_path))  # noqa: PTH100 - resolve() would follow links


def check_output(out: Path, inputs: Collection[Path]) -> None:
    """Check that a merge may be written to `out`, and that it can be.

    Args:
        out: the folder.
        inputs: what the merge reads (models, adapters, the adapter cache); need not exist.

    Raises:
        InputError: if `out` is a file or a dangling link, is an input or lies in one, holds files
            that no merge has written, or may not be written.
    """
    try:
        is_dangling = out.is_symlink() and not out.exists()
        is_file = out.exists() and not out.is_dir()
    except OSError as error:  # a name too long for the file system
        raise InputError(f"the output folder {out}: {error.strerror}; give another") from error
    if is_dangling:
        raise InputError(f"{out}: the output path is a broken link; give a folder")
    if is_file:
        raise InputError(f"{out}: the output path is a file; give a folder")
    place = out.resolve()
    for folder in (each.resolve() for each in inputs):
        if place == folder:
            raise InputError(f"{out}: the output folder is one of the merge's inputs; give another")
        if folder in place.parents and folder.is_dir():
            raise InputError(
                f"{out}: the output folder is inside {folder}, which the merge reads; give another"
            )
    if not out.exists():
        return
    if not os.access(out, os.W_OK | os.X_OK):
        raise InputError(f"{out}: the output folder may not be written; give another")
    held = sorted(path.name for path in out.iterdir() if not path.match(_PARTIAL))
    is_merge = any((out / name).is_file() for name in _MERGED)
    is_merge = is_merge or any(out.glob(f"{_PARTIAL}/{_REPLACED}"))  # killed while it was replaced
    if held and not is_merge:
        raise InputError(
            f"{out}: the folder has files that no merge has written ({', '.join(held[:3])}); give "
            "another folder, or empty it"
        )


@contextmanager
def temporary_output(out: Path, key: str | None = None, *, resume: bool = False) -> Iterator[Path]:
    """Yield a folder that becomes `out` when the body ends, and vanishes if the body fails.

    It vanishes on Ctrl-C and SIGTERM too; what a killed merge left is named at the next one. Files
    of an existing `out` that a merge does not write stay; those of an earlier merge are replaced.
    Once the body has ended, nothing is deleted before the new folder is whole in its place.

    Args:
        out: the output folder.
        key: hash of what is merged: the same merge goes through the same folder. None: a new one.
        resume: keep what a merge of this `key` left there, and leave it again on failure.

    Raises:
        InputError: if `out` is a file or cannot be made, or the same merge is under way.
        LayerSwapError: if a file cannot be written, or the finished files cannot be moved to
            `out`; the message then names the folder that has them.
    """
    check_output(out, ())
    place = out.resolve()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        inside = place.exists() and not _can_be_renamed(place)
        parent = place if inside else place.parent
        if key is None:
            holder = Path(tempfile.mkdtemp(prefix=".layerswap-", suffix=".partial", dir=parent))
        else:
            holder = parent / f".layerswap-{key}.partial"
            holder.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"{out}: the output folder cannot be made: {error.strerror}") from error
    for left in sorted(parent.glob(_PARTIAL)):
        if left != holder and (left / _REPLACED).exists():
            LOG.warning("%s: has files of an earlier merge; move what you need away", left)
        elif left != holder and (left / out.name).exists():
            LOG.warning("%s belongs to a merge that runs or was killed; then delete it", left)
    folder = holder / out.name  # mergekit prints the last part of the path on the model card
    is_whole, is_moved = False, False
    with _exclusive_lock(holder), _ended_by_sigterm():
        try:
            _recover(holder, place)
            if folder.exists() and not resume:
                shutil.rmtree(folder)
            folder.mkdir(exist_ok=True)
            try:
                yield folder
                give_folder_mode(folder)
            except InterruptedError:
                raise
            except OSError as error:
                raise LayerSwapError(f"{out}: cannot be written: {error.strerror}") from error
            is_whole = True
            try:
                _replace(folder, place, holder)
            except OSError as error:
                what = f"the merge is finished and cannot be moved there: {error.strerror}"
                if not folder.exists():
                    folder, what = holder / _REPLACED, "is merged; what else was in the folder"
                raise LayerSwapError(f"{out}: {what}; it is in {folder}") from error
            is_moved = True
        finally:
            if is_moved or not (resume or is_whole):
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
    """Let everybody read and write the files in `folder` who may do so with the folder.

    safetensors (0.8) and `tempfile` write files that only their owner may read, whatever the umask
    says: useless to others on shared storage.

    Args:
        folder: made under the umask, with files of ours only; changes their modes, not its own.
    """
    mode = folder.stat().st_mode & 0o666
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(path.stat().st_mode | mode)


def _can_be_renamed(folder: Path) -> bool:
    """Return whether a folder can be exchanged whole: it is no mount point and its parent ours."""
    parent = folder.parent
    return folder.stat().st_dev == parent.stat().st_dev and os.access(parent, os.W_OK | os.X_OK)


def _replace(folder: Path, out: Path, holder: Path) -> None:
    """Put `folder` in the place of `out`; a failure leaves both whole, `out` where it was.

    Where `out` can be renamed it is exchanged whole, so that even a crash leaves the old or the
    new one. Else its files are exchanged one by one: config.json is the first to go and the last
    to come, so that no mixture of both can be loaded. See `_recover` for a crash in between.
    """
    if not out.exists():
        folder.replace(out)
        return
    replaced, arriving = holder / _REPLACED, holder / _ARRIVING
    shutil.copymode(out, folder)
    if holder.parent != out:
        out.replace(replaced)
        try:
            folder.replace(out)
        finally:
            _restore(replaced, out)
        return
    new = {path.name for path in folder.iterdir()}
    old = {path.name for path in out.iterdir()} & (new | _renewed(out))
    replaced.mkdir()
    arriving.mkdir()
    first = sorted(old, key=lambda name: name != "config.json")
    last = sorted(new, key=lambda name: name == "config.json")
    with (
        _undone_on_failure(out, replaced, first),
        _undone_on_failure(holder, arriving, [folder.name]),
        _undone_on_failure(arriving / folder.name, out, last),
    ):
        pass


def _recover(holder: Path, out: Path) -> None:
    """End what a merge began that was killed while it replaced an earlier one, or take it back."""
    replaced, arriving = holder / _REPLACED, holder / _ARRIVING
    if holder.parent != out:
        _restore(replaced, out)
    elif arriving.is_dir() and (parts := list(arriving.iterdir())):
        for path in sorted(parts[0].iterdir(), key=lambda path: path.name == "config.json"):
            path.replace(out / path.name)
    elif replaced.is_dir():
        for path in sorted(replaced.iterdir(), key=lambda path: path.name == "config.json"):
            path.replace(out / path.name)
    for folder in (replaced, arriving):
        shutil.rmtree(folder, ignore_errors=True)


def _restore(replaced: Path, out: Path) -> None:
    """Put an earlier merge back where no new one is; beside one, what a merge does not write."""
    if not replaced.is_dir():
        return
    if not out.exists():
        replaced.replace(out)
        return
    lost = _renewed(replaced) | {path.name for path in out.iterdir()}
    for path in sorted(replaced.iterdir()):
        if path.name not in lost:
            path.replace(out / path.name)


def _renewed(folder: Path) -> set[str]:
    """Return the names of what an earlier merge wrote in `folder`; none where it is no merge."""
    if not any((folder / name).is_file() for name in _MERGED):
        return set()
    return {path.name for pattern in _RENEWED for path in folder.glob(pattern)}


@contextmanager
def _undone_on_failure(source: Path, target: Path, names: Collection[str]) -> Iterator[None]:
    """Move entries of a folder to another one; a failure here or in the body moves them back."""
    done: list[str] = []
    try:
        for name in names:
            (source / name).replace(target / name)
            done.append(name)
        yield
    except BaseException:
        for name in reversed(done):
            (target / name).replace(source / name)
        raise


@contextmanager
def _exclusive_lock(folder: Path) -> Iterator[None]:
    """Hold a lock on a folder, which ends with this process.

    Raises:
        InputError: where another process holds it.
    """
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
    is_free = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    )
    if not is_free:
        yield
        return

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
