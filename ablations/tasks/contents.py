"""What a task is made of, as a hash: its YAML with what it includes, and the data that it reads.

Comments, the order of keys and the place of files do not count, nor do the other files of the
folder. Code of this project has a version (`ablations.scoring.SCORING_VERSION`); functions that
stand next to a task's file are a part of the task.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from ablations.machine.fingerprint import fingerprint_files, fingerprint_folder, fingerprint_of
from ablations.tasks.own_data import with_placed_data
from layerswap_method.errors import InputError

_MOST_FILES = 10_000
"""Of a task's data set; a folder of more, such as /usr, is a slip of the pen."""


class TaskContents:
    """The tasks of some folders, read once."""

    def __init__(
        self,
        folders: Sequence[Path],
        data_dir: Path | None = None,
        elsewhere: Callable[[str], Path | None] = lambda _: None,
    ) -> None:
        """Read the task files below `folders`.

        Args:
            folders: lm-eval's `include_path`; a task in several is that of the first.
            data_dir: folder with the tasks' data in place of the hub.
            elsewhere: gives the file of a task that is not below them, if it is known.
        """
        self._elsewhere = elsewhere
        self._folder = folders[0]
        self._data_dir = data_dir
        self._known: dict[str, tuple[Path, dict[str, Any]]] = {}
        self._hashes: dict[str, str] = {}
        for path in (file for folder in folders for file in sorted(folder.rglob("*.yaml"))):
            content = _read(path)
            name = content.get("task")
            name = name if isinstance(name, str) else content.get("group")
            if isinstance(name, str):
                self._known.setdefault(name, (path, content))

    def fingerprint(self, name: str) -> str:
        """Return a hash of all that can change the task's prompts or scores.

        Of a task that no file names plainly (a class, say) it is that of the whole folder.
        """
        if name not in self._hashes:
            self._hashes[name] = fingerprint_of(**self._parts(name))
        return self._hashes[name]

    def _parts(self, name: str) -> dict[str, Any]:
        if name not in self._known and (path := self._elsewhere(name)) is not None:
            self._known[name] = (path, _read(path))
        if name not in self._known:
            data = None if self._data_dir is None else fingerprint_folder(self._data_dir)
            return {"folder": fingerprint_folder(self._folder), "data": data}
        path, content = self._known[name]
        members = content.get("task")
        parts = members if isinstance(members, list) else []
        named = [part.get("task") if isinstance(part, dict) else part for part in parts]
        return {
            "content": _without_places(with_placed_data(content, path.parent)),
            "code": fingerprint_files(path.parent, set(_code(path, content))),
            "data": self._data(content),
            "members": [self.fingerprint(part) for part in named if isinstance(part, str)],
        }

    def _data(self, content: dict[str, Any]) -> list[str] | str | None:
        """Return the hash of the files in `data_dir` that the task can read: others may change."""
        if self._data_dir is None:
            return None
        codes = (content.get("dataset_kwargs") or {}).get("configs")
        benchmark = (content.get("metadata") or {}).get("benchmark")
        if not isinstance(codes, dict) or not isinstance(benchmark, str):
            return fingerprint_folder(self._data_dir)
        places = [self._data_dir / benchmark, self._data_dir]
        pattern = "{}_*"
        if benchmark == "mgsm_rev2":  # tables of its own, and MGSM's exemplars
            places[1], pattern = self._data_dir / "mgsm", "*{}[._]t*"
        return [
            fingerprint_files(
                place, {f for code in codes for f in place.glob(pattern.format(code))}
            )
            for place in places
        ]


class _Loader(yaml.SafeLoader):
    """Reads ``!function NAME`` as text."""


_Loader.add_multi_constructor(
    "!", lambda loader, tag, node: f"!{tag} {getattr(node, 'value', node)}"
)


def _read(path: Path) -> dict[str, Any]:
    """Return a task file with what it includes, as lm-eval reads it: the file's own keys win."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError):  # lm-eval says what is wrong with it
        return {}
    if not isinstance(content, dict):
        return {}
    included: dict[str, Any] = {}
    names = content.pop("include", [])
    for name in names if isinstance(names, list) else [names]:
        included |= _read(path.parent / name)
    return {**included, **content}


def _code(path: Path, content: Any) -> Iterator[Path]:
    """Yield the Python files beside a task's file, if it names a function in one of them."""
    functions = [text for text in _texts(content) if text.startswith("!function ")]
    beside = {file.stem for file in path.parent.glob("*.py")}
    if any(text.split()[1].split(".")[0] in beside for text in functions):
        yield from path.parent.glob("*.py")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)


def _without_places(value: Any) -> Any:
    """Return the content with every local file or folder of data as a hash of what is in it."""
    if not isinstance(value, dict):
        return value
    options = value.get("dataset_kwargs") or {}
    named = {key: options[key] for key in ("data_files", "data_dir") if key in options}
    held = {key: _held(each) for key, each in named.items()}
    source = _held(value.get("dataset_path"))
    return {**value, "dataset_kwargs": {**options, **held}, "dataset_path": source}


def _held(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _held(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_held(each) for each in value]
    path = Path(value) if isinstance(value, str) and value else None
    if path is not None and path.is_dir():
        few = sum(1 for _ in itertools.islice(path.rglob("*"), _MOST_FILES + 1)) <= _MOST_FILES
        if not few:
            raise InputError(f"{path}: holds over {_MOST_FILES:,} files: no data set of a task")
    if path is not None and path.is_file():
        return fingerprint_files(path.parent, {path})
    return fingerprint_folder(path) if path is not None and path.is_dir() else value
