"""lm-eval's own tasks by name, without its index where a name stands in one file.

The index reads and resolves more than ten thousand files, which takes far longer than to find one
of them. So the files are searched for names as plain text, once, and only those that a request
names are read by lm-eval itself. Tags and names of several files still take the whole index.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from ablations.machine.progress import Step, tell

_NAMED = re.compile(r"^(?:task|group):[ \t]*[\"']?([^\s\"'#\[{]+)", re.MULTILINE)
_TAGS = re.compile(
    r"^(?:tag|group):[ \t]*(?:\[(.*?)\]|([^\s#\[][^\n#]*)|((?:\n[ \t]*- .*)+))", re.M
)


def names() -> set[str]:
    """Return the names of all of lm-eval's tasks, groups and tags, as the files' text says them."""
    files, tags = _declared()
    return {*files, *tags}


def entries(wanted: Iterable[str]) -> dict[str, Any]:
    """Return lm-eval's index entries of `wanted` and of the members of groups among them.

    Args:
        wanted: of `names`.
    """
    found: dict[str, Any] = {}
    if all(_add(name, found) for name in wanted):
        return found
    return _whole_index()


def file_of(name: str) -> Path | None:
    """Return the file of a task or group; None for other names."""
    paths = _declared()[0].get(name, ())
    return paths[0] if len(paths) == 1 else None


def _add(name: str, found: dict[str, Any]) -> bool:
    """Add a name and its members to `found`; return False where the whole index is needed."""
    if name in found:
        return True
    path = file_of(name)
    entry = None if path is None else _read(path).get(name)
    if entry is None or entry.kind.name not in ("TASK", "GROUP"):
        return False
    found[name] = entry
    members = (entry.cfg or {}).get("task") if entry.kind.name == "GROUP" else ()
    named = [each.get("task") if isinstance(each, dict) else each for each in members or ()]
    return all(isinstance(each, str) and _add(each, found) for each in named)


def _read(path: Path) -> dict[str, Any]:
    """Return the entries that lm-eval's index would have from one file."""
    from lm_eval.tasks._index import TaskIndex
    from lm_eval.tasks._yaml_loader import load_yaml

    found: dict[str, Any] = {}
    try:
        content = load_yaml(path, resolve_func=False, recursive=True)
        TaskIndex.process_cfg(content, path, found)
    except Exception:  # as lm-eval's index does: what it cannot read is not in it
        return {}
    return found


def _folder() -> Path:
    spec = importlib.util.find_spec("lm_eval")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "tasks"


@cache
def _declared() -> tuple[dict[str, tuple[Path, ...]], set[str]]:
    """Return name of a task or group -> the files that state it, and every tag."""
    tell(Step("reading lm-eval's task files"))
    files: dict[str, tuple[Path, ...]] = {}
    tags: set[str] = set()
    for path in sorted(each for each in _folder().rglob("*") if "yaml" in each.name):
        text = path.read_text(encoding="utf-8", errors="replace")
        for name in _NAMED.findall(text) if path.suffix in (".yaml", ".yml") else ():
            files[name] = (*files.get(name, ()), path)
        for inline, single, listed in _TAGS.findall(text):
            parts = re.split(r"[,\n]", inline or single or listed)
            tags |= {part.strip(" \t-\"'") for part in parts} - {""}
    return files, tags


@cache
def _whole_index() -> dict[str, Any]:
    from lm_eval.tasks import TaskManager

    tell(Step("reading lm-eval's index of tasks"))
    return dict(TaskManager().task_index)
