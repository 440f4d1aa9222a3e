"""A hash of all that a task reads: its YAML with what that includes, data, files of its functions.

Comments, the order of keys and the place of files do not count. Where a task calls a function, the
other files of its folder count, which the function may read, and the packages that functions are
in. What it reads elsewhere, below other folders too, does not, nor does an installed package; this
project's code has `scoring.SCORING_VERSION`.
"""

from __future__ import annotations

import glob
import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ablations.machine.fingerprint import fingerprint_files, fingerprint_folder, fingerprint_of
from ablations.requests.known_tasks import KnownTasks, known_tasks
from ablations.scoring.evaluation import EvaluationSettings
from ablations.tasks.catalog import language_of_metadata
from ablations.tasks.task_yaml import walk_below, with_local_data, with_placed_data
from layerswap_method.errors import InputError
from layerswap_method.recipe.references import is_there, map_texts

_MOST_FILES = 10_000
"""Most files of a task's data set; a folder of more, such as /usr, is a slip of the pen."""

_PACKAGES = {"ablations", "lm_eval"}
"""Packages whose functions read no file of a task's folder, and whose versions are in the key."""


class TaskFingerprints:
    """The hashes of known tasks, each made once."""

    def __init__(
        self, known: KnownTasks, data_dir: Path | None, metadata: Mapping[str, Any]
    ) -> None:
        """Take what the tasks of a request are given.

        Their data is in `data_dir`, or on the hub; `metadata` are arguments for all of them.
        """
        self._known, self._data_dir = known, data_dir
        self._metadata = map_texts(metadata, _hash_argument)
        self._hashes: dict[str, str] = {}

    def fingerprint(self, name: str) -> str:
        """Return a hash of all that can change the task's prompts or scores.

        Raises `InputError` for data of too many files.
        """
        if name not in self._hashes:
            files, content, _ = self._known.file(name)
            members = [self.fingerprint(task) for task in self._known.members(name)]
            modules = set(re.findall(r"!function (\w+)", str(content))) - _PACKAGES
            home = files[0].parent
            code: dict[Path, set[Path]] = {}
            for folder in dict.fromkeys(file.parent for file in files):
                if (folder == home and modules) or _has_module(folder, modules):
                    code[folder] = self._files_of(folder, modules)
            parts: dict[str, Any] = {
                "content": _without_places(with_placed_data(_that_counts(content), home)),
                "code": fingerprint_files(home, code.pop(home, set())),
                "data": self._data(content),
                "members": [  # of included files
                    fingerprint_files(folder, paths) for folder, paths in code.items()
                ],
            }
            if self._metadata:
                parts["metadata"] = self._metadata
            if "group" in content:
                parts["tasks"] = members
            self._hashes[name] = fingerprint_of(**parts)
        return self._hashes[name]

    def _files_of(self, folder: Path, modules: set[str]) -> set[Path]:
        """Return the files in `folder` that functions of a task's `modules` may read."""
        files = {file for file in folder.iterdir() if file.is_file() and file.name[0] != "."}
        files |= {file for name in modules for file in (folder / name).rglob("*.py")}
        return {
            file
            for file in files
            if file.suffix != ".yaml" or file.resolve() not in self._known.paths
        }

    def language(self, name: str) -> str | None:
        """Return the code of the language that a task's metadata state; None where they do not.

        That of a group that states none is the one that all of its tasks have.
        """
        language = language_of_metadata(self._known.file(name).content.get("metadata"))
        languages = {self.language(task) for task in self._known.members(name)}
        return languages.pop() if language is None and len(languages) == 1 else language

    def metrics(self, name: str) -> set[str]:
        """Return the metrics of a task; none where its file does not say them all.

        lm-eval calls a metric that is a function by the function's name.
        """
        metrics = set[str]()
        for entry in self._known.file(name).content.get("metric_list") or ():
            metric = entry.get("metric") if isinstance(entry, Mapping) else None
            if not isinstance(metric, str):
                return set()
            metrics.add(metric.rpartition(".")[2] if metric.startswith("!function") else metric)
        return metrics

    def has(self, name: str) -> bool:
        """Return whether the task has a file that can be read. Raises as `fingerprint` does."""
        self.fingerprint(name)
        return bool(self._known.file(name).content)

    def _data(self, content: dict[str, Any]) -> list[str] | str | None:
        """Return the hash of the files in `data_dir` that the task can read: others may change."""
        if self._data_dir is None:
            return None
        options, metadata = content.get("dataset_kwargs"), content.get("metadata")
        codes = options.get("configs") if isinstance(options, Mapping) else None
        benchmark = metadata.get("benchmark") if isinstance(metadata, Mapping) else None
        if not isinstance(codes, dict) or not isinstance(benchmark, str):
            return _hash_local(str(self._data_dir))
        folders: tuple[str, ...] = (benchmark, "")
        pattern = "{}_*"
        if benchmark in ("mgsm_rev2", "msvamp"):  # MGSM's exemplars, maybe in the folder itself
            folders = (benchmark, "mgsm", "")
        if benchmark == "mgsm_rev2":
            pattern = "*{}[._]t*"
        hashes = []
        for folder in (self._data_dir / name for name in folders):
            files = {file for code in codes for file in folder.glob(pattern.format(code))}
            hashes.append(fingerprint_files(folder, files))
        return hashes


def fingerprints_of(
    settings: EvaluationSettings, known: KnownTasks | None = None
) -> TaskFingerprints:
    """Return the hashes of the tasks that settings can name; `known` None reads their files."""
    known = known or known_tasks(settings.folders)
    return TaskFingerprints(known, settings.data_dir, settings.metadata)


def _has_module(folder: Path, modules: set[str]) -> bool:
    """Return whether one of the modules is in a folder, as a file or a package."""
    return any((folder / f"{name}.py").is_file() or (folder / name).is_dir() for name in modules)


def _that_counts(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content without ``publish``, which changes no prompt and no score."""
    metadata = content.get("metadata")
    if not isinstance(metadata, dict) or "publish" not in metadata:
        return content
    counted = {name: value for name, value in metadata.items() if name != "publish"}
    return {**content, "metadata": counted}


def _without_places(config: dict[str, Any]) -> dict[str, Any]:
    """Return the content with every local file or folder of data as a hash of what is in it."""
    options = with_local_data(config.get("dataset_kwargs") or {}, _hash_local)
    source = map_texts(config.get("dataset_path"), _hash_local)
    return {**config, "dataset_kwargs": options, "dataset_path": source}


def _hash_local(text: str) -> str:
    path = Path(text)
    if text and path.is_dir():
        _check_size(path)
        return fingerprint_folder(path)
    if {*"*?["} & {*text}:
        if "**" in text:  # which may match in few of very many folders
            start = re.split(r"[*?\[]", text)[0].rpartition("/")
            _check_size(Path(start[0] + start[1]))
        matches = itertools.islice(glob.iglob(text, recursive=True), _MOST_FILES + 1)  # noqa: PTH207
        files = sorted(map(Path, matches))
        if len(files) > _MOST_FILES:
            raise InputError(f"{text}: matches over {_MOST_FILES:,} files: no data set of a task")
        if files:
            return fingerprint_of(files=[fingerprint_files(file.parent, {file}) for file in files])
    return fingerprint_files(path.parent, {path}) if text and path.is_file() else text


def _hash_argument(text: str) -> str:
    """Return a hash of the file or folder that an argument of tasks names; else the text.

    A model is named for its tokenizer, so its weights do not count. A word without a slash is no
    place: a folder ``test`` is not what a task calls its split.
    """
    if "/" not in text or not is_there(text):
        return text
    path = Path(text)
    if path.is_file():
        return fingerprint_files(path.parent, {path})
    _check_size(path)
    files = {
        file
        for file in walk_below(path)
        if file.suffix not in (".safetensors", ".bin")
        and not any(part[0] == "." for part in file.relative_to(path).parts)
    }
    return fingerprint_files(path, files)


def _check_size(folder: Path) -> None:
    if sum(1 for _ in itertools.islice(walk_below(folder), _MOST_FILES + 1)) > _MOST_FILES:
        raise InputError(f"{folder}: holds over {_MOST_FILES:,} files: no data set of a task")
