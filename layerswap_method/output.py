"""The output folder of a merge: all of it or nothing. Knows files and names; not what is merged."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layerswap_method import __version__
from layerswap_method.errors import InputError, LayerSwapError

PLAN_FILE = "layer_swap_plan.json"
"""The layer plan of a `layer_swap`, written beside the weights."""

REVERT_PLAN_FILE = "delta_revert_plan.json"
"""What a `delta_revert` kept, written beside the weights."""

HARMONIZE_FILE = "harmonize.json"
"""What `layerswap harmonize` did to a model, written beside its weights."""

_WEIGHTS = (
    *("model*.safetensors", "model*.safetensors.index.json", "pytorch_model*.bin*"),
    "adapter_model*",
)
_MERGED = (PLAN_FILE, REVERT_PLAN_FILE, HARMONIZE_FILE, "mergekit_config.yml")
"""Files that only a merge, or `layerswap harmonize`, leaves."""

_RENEWED = (*_WEIGHTS, *_MERGED, "adapter_config.json", "chat_template*", "generation_config.json")
"""Of an earlier merge, what must not stay beside new files: they would be taken for the new one's.
Tokenizer files stay: a merge of experts that have none does not write any."""

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
    """Check that a merge may be written to `out`.

    Args:
        out: the folder.
        inputs: what the merge reads (models, adapters, the adapter cache); need not exist.

    Raises:
        InputError: if `out` is a file or a dangling link, lies where an input is, or holds
            another model's weights.
    """
    try:
        is_dangling = out.is_symlink() and not out.exists()
    except OSError as error:  # a name too long for the file system
        raise InputError(f"the output folder {out}: {error.strerror}; give another") from error
    if is_dangling:
        raise InputError(f"{out}: the output path is a broken link; give a folder")
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: the output path is a file; give a folder")
    if any(out.resolve() == folder.resolve() for folder in inputs):
        raise InputError(f"{out}: the output folder is one of the merge's inputs; give another")
    weights = _files(out, _WEIGHTS)
    if weights and not any((out / name).is_file() for name in _MERGED):
        raise InputError(
            f"{out}: the folder has weights that no merge has written ({weights[0].name}); give "
            "another folder, or delete them"
        )


def check_outside(out: Path, folders: Collection[Path]) -> None:
    """Check that `out` lies in none of the merge's input folders.

    Raises:
        InputError: naming the folder.
    """
    for folder in folders:
        if folder.resolve() in out.resolve().parents:
            raise InputError(
                f"{out}: the output folder is inside {folder}, which the merge reads; give another"
            )


@contextmanager
def temporary_output(out: Path, key: str | None = None, *, resume: bool = False) -> Iterator[Path]:
    """Yield a folder beside `out` that becomes `out` when the body ends, and vanishes on failure.

    It vanishes on Ctrl-C and SIGTERM too; what a killed merge left is named at the next one.
    Files of an existing `out` that a merge does not write stay, as with mergekit itself; those
    of an earlier merge go: transformers would load its `model.safetensors` in place of new shards.

    Args:
        out: the output folder.
        key: of what is merged: the same merge goes through the same folder. None: a new one.
        resume: keep what a merge of this `key` left there, and leave it again on failure.

    Raises:
        InputError: if `out` is a file or cannot be made, or the same merge is under way.
        LayerSwapError: if the finished files cannot be moved to `out`.
    """
    check_output(out, ())
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if key is None:
            holder = Path(tempfile.mkdtemp(prefix=".layerswap-", suffix=".partial", dir=out.parent))
        else:
            holder = out.parent / f".layerswap-{key}.partial"
            holder.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"{out}: the output folder cannot be made: {error.strerror}") from error
    for left in sorted(out.parent.glob(".layerswap-*.partial")):
        if left != holder and (left / out.name).exists():
            LOG.warning("%s belongs to a merge that runs or was killed; then delete it", left)
    folder = holder / out.name  # mergekit prints the last part of the path on the model card
    is_whole = False
    with _alone(holder), _ended_by_sigterm():
        try:
            if folder.exists() and not resume:
                shutil.rmtree(folder)
            folder.mkdir(exist_ok=True)
            yield folder
            give_folder_mode(folder)
            _move(folder, out)
            is_whole = True
        finally:
            if is_whole or not resume:
                shutil.rmtree(holder, ignore_errors=True)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
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


def _move(folder: Path, out: Path) -> None:
    try:
        if not out.is_dir():
            folder.replace(out)
            return
        if any((out / name).is_file() for name in _MERGED):
            for file in _files(out, _RENEWED):
                file.unlink()
        for file in sorted(folder.iterdir()):
            file.replace(out / file.name)
    except OSError as error:
        raise LayerSwapError(f"{out}: the merge cannot be moved there: {error}") from error


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM unwind the merge as Ctrl-C does, unless somebody else handles it."""
    ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    )
    if not ours:
        yield
        return

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _files(folder: Path, patterns: Collection[str]) -> list[Path]:
    found = {file for pattern in patterns for file in folder.glob(pattern)}
    return sorted(file for file in found if file.is_file())


def record_head(method: str) -> dict[str, Any]:
    """Return how the plan file of a merge method begins."""
    return {"schema_version": 1, "merge_method": method, "layerswap_version": __version__}


@dataclass(frozen=True)
class Prepared:
    """A merge that can be carried out: everything is checked and measured."""

    planner: Callable[..., Any]
    """Makes mergekit's planner of the merge."""

    lines: tuple[str, ...]
    """For the log, before the merge."""

    outcome: Callable[[], Outcome]
    """Called when mergekit has written its files."""


@dataclass(frozen=True)
class Outcome:
    """What is known after a merge."""

    record: Mapping[str, Any]
    """Content of the plan file."""

    lines: tuple[str, ...] = ()
    """For the log."""

    card: str = ""
    """Markdown to add to the model card; empty adds nothing."""
