"""lm-eval's own tasks by name: an index of ten thousand files, read once for an installed lm-eval.

To read it takes eight seconds. So names, kinds and places stand in a file of the user's cache
folder, which counts while no file of lm-eval's tasks is another than when it was written.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import TypeAdapter

from ablations.machine.fingerprint import fingerprint_of
from ablations.machine.progress import Step, show_step
from ablations.machine.untrusted import read_regular
from ablations.machine.whole_files import write_text

_Kind = Literal["TASK", "PY_TASK", "GROUP", "TAG"]


class IndexedTask(NamedTuple):
    """A task, group or tag of lm-eval."""

    kind: _Kind
    """lm-eval's name of the kind."""

    file: str | None
    """Its file, from lm-eval's folder of tasks; None for a tag."""

    members: tuple[str, ...] = ()
    """The tasks of a tag."""


class _Index(NamedTuple):
    state: str
    """Hash of names, sizes and times of the files that it was made of."""

    tasks: dict[str, IndexedTask]


_FILE = TypeAdapter(_Index)


def lm_eval_folder() -> Path:
    """Return the folder of lm-eval's own task files. Imports nothing."""
    spec = importlib.util.find_spec("lm_eval")
    assert spec is not None, "the backend's check says that lm-eval is missing"
    assert spec.origin is not None
    return Path(spec.origin).parent / "tasks"


@cache
def lm_eval_index() -> Mapping[str, IndexedTask]:
    """Return name -> entry of every task, group and tag of lm-eval's own."""
    folder = lm_eval_folder()
    state, file = _state(folder), _cache_file(folder)
    with contextlib.suppress(OSError, ValueError, RecursionError):  # it is written anew
        index = _FILE.validate_json(read_regular(file))
        if index.state == state:
            return index.tasks
    show_step(Step("reading lm-eval's index of tasks, once"))
    index = _Index(state, _read(folder))
    with contextlib.suppress(OSError):  # a machine without a cache folder reads it every time
        write_text(file, _FILE.dump_json(index).decode())
    return index.tasks


def _read(folder: Path) -> dict[str, IndexedTask]:
    from lm_eval.tasks import TaskManager

    def place(entry: Any) -> str | None:
        return None if entry.yaml_path is None else str(entry.yaml_path.relative_to(folder))

    return {
        name: IndexedTask(
            entry.kind.name,
            place(entry),
            tuple(sorted(entry.tags)) if entry.kind.name == "TAG" else (),
        )
        for name, entry in TaskManager().task_index.items()
    }


def _state(folder: Path) -> str:
    """Return a hash of names, sizes and times of lm-eval's task files, and those they include."""
    files = {}
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            path = os.path.join(place, name)  # noqa: PTH118 - a Path of each takes as long again
            status = os.stat(path)  # noqa: PTH116
            files[path] = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
    return fingerprint_of(files=files)


def _cache_file(folder: Path) -> Path:
    version = importlib.metadata.version("lm_eval")
    place = fingerprint_of(folder=str(folder))[:8]
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "layerswap" / f"lm_eval-{version}-tasks-{place}.json"
