"""Keys: of weights, by which two cells are one model, and of scores, by which two are one.

- ``weights_key``: every output tensor by the content it is made of, and config and tokenizer.
  No layer swapped and everything else from the task expert *is* the task expert.
- ``records``: for each task weights, protocol, the task's YAML and data, versions. It names the
  record's file. A changed protocol changes it, so that a run never goes on from old scores.

Code is in them as two numbers, METHOD_VERSION and SCORING_VERSION, which are raised in the change
that alters a tensor or a score: a word in a table, a comment or a README leave every score valid.
Of library versions those count that `backend_versions` names, and mergekit's for what it merges.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import layerswap_method
from ablations.engines.options import EngineOptions
from ablations.machine.fingerprint import (
    TOKENIZER_DATA,
    FileHashes,
    checkpoint_files,
    fingerprint_checkpoint,
    fingerprint_of,
)
from ablations.models.find import Expert
from ablations.requests.fingerprint import TaskFingerprints, fingerprints_of
from ablations.requests.resolve import ResolvedTasks
from ablations.scoring import SCORING_VERSION
from ablations.scoring.evaluation import Backend, EvaluationRequest
from ablations.study.cells import MadeCell, PlannedCell
from ablations.study.documents import with_references
from ablations.study.made_by import headers_tell, made_by
from layerswap_method.hub.partial import file_state
from layerswap_method.methods.read import read_recipe
from layerswap_method.methods.table import (
    OUR_METHODS,
    merge_models,
    merge_open_models,
    open_models,
)
from layerswap_method.recipe.document import Recipe
from layerswap_method.tensors import Merge, Term

_KEY_LENGTH = 20
"""Hexadecimal digits of a folder's name: 80 bits."""

_DONATED = ("config.json", "generation_config.json", *TOKENIZER_DATA)
"""Files that a merge takes from its donor, see `donor_of`."""


class Fingerprints:
    """Fingerprints of the folders of checkpoints and adapters, from the hashes of their files."""

    def __init__(self, hashes: FileHashes | None = None, *, dry: bool = False):
        """Take the hashes of files that `hashes` knows from other runs.

        With `dry`, no large file of weights is read: a folder that has one whose hash is unknown
        has its `folder_state` as fingerprint, which fits no record.
        """
        self._hashes, self._dry = hashes or FileHashes(), dry
        self._known: dict[Path, tuple[str, str]] = {}

    def of(self, folder: Path) -> str:
        """Return the hash of a checkpoint's or adapter's files. Reads all of them, once."""
        state, (then, content) = folder_state(folder), self._known.get(folder, ("", ""))
        if state != then:
            if self._dry and self._hashes.unread_bytes(_weights(folder)):
                content = f"unread {state}"
            else:
                content = fingerprint_checkpoint(folder, self._hashes)
            self._known[folder] = (state, content)
        return content

    def read(self, folders: Iterable[Path]) -> None:
        """Read the files of all folders at once, as several threads do it best."""
        if not self._dry:
            files = (file for folder in folders for file in sorted(checkpoint_files(folder)))
            self._hashes.of(file for file in files if file.is_file())

    def states(self) -> dict[str, str]:
        """Return folder -> the state in which it was read."""
        return {str(folder): state for folder, (state, _) in self._known.items()}


def _weights(folder: Path) -> list[Path]:
    """Return the files of weights of a checkpoint or adapter."""
    return [file for file in checkpoint_files(folder) if file.suffix == ".safetensors"]


def folder_state(folder: Path) -> str:
    """Return a cheap hash of names, sizes and dates of what `fingerprint_checkpoint` reads."""
    # The inode and the time of change, too: a restored time of writing hides another file.
    files = sorted(checkpoint_files(folder))
    return fingerprint_of(**{file.name: file_state(file) for file in files})


class Contents(NamedTuple):
    """The content of the experts of a study."""

    references: dict[str, str]
    """Reference, as recipes write it -> hash of checkpoint and adapter."""

    files: dict[Path, str]
    """Weight file (links followed) -> hash of the folder it is in."""

    donated: dict[Path, str]
    """Folder -> hash of config and tokenizer."""


def read_contents(experts: Iterable[Expert], fingerprints: Fingerprints) -> Contents:
    """Return what the experts are made of; reads their files unless their hashes are known."""
    contents = Contents({}, {}, {})
    for expert in experts:
        hashes = {folder: fingerprints.of(folder) for folder in expert.folders}
        contents.references[expert.reference] = fingerprint_of(parts=list(hashes.values()))
        for folder, content in hashes.items():
            for file in sorted(folder.glob("*.safetensors")):
                contents.files.setdefault(file.resolve(), content)
        donated = {file for pattern in _DONATED for file in expert.folder.glob(pattern)}
        texts = {file.name: file.read_bytes().hex() for file in sorted(donated) if file.is_file()}
        contents.donated[expert.folder] = fingerprint_of(**texts)
    return contents


def protocol_key(request: EvaluationRequest, backend: Backend, options: EngineOptions) -> str:
    """Return a hash of prompts, generation and engine: what all scores of a study share.

    Later options with their default value are not part of it, so that scores from before them keep
    their keys.
    """
    overrides = request.overrides()
    names = {"limit", "seed", "level"} | ({"items"} if request.items else set())
    parts: dict[str, Any] = {
        "request": request.model_dump(mode="json", include=names),
        "backend": backend,
        "options": options.of_backend(backend).identity(),
    }
    if overrides:
        parts["protocol"] = overrides
    return fingerprint_of(**parts)[:_KEY_LENGTH]


class IdentifiedCells(NamedTuple):
    """The cells of a study with their keys, and what was read of their tasks for these."""

    cells: tuple[PlannedCell, ...]
    task_languages: dict[str, str]
    """Task -> code of its language, where its metadata state one."""

    merges: dict[str, Merge]
    """`weights_key` -> the merge that was planned for it; not of what is measured or made by
    mergekit."""


def identified(
    cells: Iterable[MadeCell],
    resolved: Mapping[str | None, ResolvedTasks],
    experts: Iterable[Expert],
    contents: Contents,
    protocol: str,
    versions: Mapping[str, str],
) -> IdentifiedCells:
    """Return the cells with their tasks and keys.

    `resolved` are the tasks by language, those of cells without one below None; `experts` are all
    that the recipes name, `protocol` is the `protocol_key` of all requests, `versions` are those of
    the packages that can change a score, and of mergekit.

    Each model is opened once for all cells. `needed_files` has opened some before, and cannot hand
    them over: where a whole file has come since, its tensors are under another path, by which
    `contents` knows them.
    """
    models = {expert.reference: expert for expert in experts}
    read_tasks = dict[tuple[Path, ...], TaskFingerprints]()
    identified, languages = list[PlannedCell](), dict[str, str]()
    merges = dict[str, Merge]()
    written = [(cell, cell.recipe.without_idle_parameters()) for cell in cells]
    by_tensor = [recipe for cell, recipe in written if headers_tell(recipe, cell.made_by)]
    opened = open_models(by_tensor, models)
    for cell, recipe in written:
        of_cell = resolved[cell.language]
        folders = of_cell.request.folders
        if folders not in read_tasks:  # all cells have the same data and metadata
            read_tasks[folders] = fingerprints_of(of_cell.request, of_cell.known)
        tasks = read_tasks[folders]
        is_known = headers_tell(recipe, cell.made_by)
        merge = merge_open_models(recipe, opened) if is_known else None
        identity = _weights_identity(recipe, merge, contents, versions)
        weights = fingerprint_of(weights=identity)[:_KEY_LENGTH]
        if merge is not None:
            merges.setdefault(weights, merge)
        identified.append(
            PlannedCell(
                **cell.expanded(),
                made_by=cell.made_by,
                donor=cell.donor,
                weights_key=weights,
                record_keys={
                    task: record_key(weights, protocol, task, tasks, versions)
                    for task in of_cell.chosen
                },
                skipped=dict(of_cell.skipped),
                resolved=of_cell,
            )
        )
        for task in of_cell.chosen:
            if (language := tasks.language(task)) is not None:
                languages[task] = language
    return IdentifiedCells(tuple(identified), languages, merges)


def checkpoint_key(expert: Expert, fingerprints: Fingerprints) -> str:
    """Return the `weights_key` of a checkpoint that is evaluated as it is, wherever its folder is.

    Reads all of its files, unless their hashes are known.
    """
    document = {"merge_method": "passthrough", "models": [{"model": expert.reference}]}
    return merge_key(read_recipe(document), [expert], fingerprints)


def merge_key(written: Recipe, experts: Sequence[Expert], fingerprints: Fingerprints) -> str:
    """Return the `weights_key` of a recipe's merge; `experts` are all that it names.

    Reads all of their files, unless their hashes are known.
    """
    contents = read_contents(experts, fingerprints)
    versions = {"mergekit": importlib.metadata.version("mergekit")}
    models = {expert.reference: expert for expert in experts}
    recipe = written.without_idle_parameters()
    is_known = headers_tell(recipe, made_by(written, models))
    merge = merge_models(recipe, models) if is_known else None
    identity = _weights_identity(recipe, merge, contents, versions)
    return fingerprint_of(weights=identity)[:_KEY_LENGTH]


def record_key(
    weights: str, protocol: str, task: str, tasks: TaskFingerprints, versions: Mapping[str, str]
) -> str:
    """Return the key of the record of a task; `weights` and `protocol` are keys as well."""
    return fingerprint_of(
        weights=weights,
        protocol=protocol,
        task=[task, tasks.fingerprint(task)],
        versions={n: text for n, text in versions.items() if n not in ("layerswap", "mergekit")},
        scoring=SCORING_VERSION,
    )[:_KEY_LENGTH]


def _weights_identity(
    written: Recipe, merged: Merge | None, contents: Contents, versions: Mapping[str, str]
) -> dict[str, Any]:
    """Return a value that is equal for two recipes only if their models are equal bit by bit.

    A model whose merge is known, `merged`, is described tensor by tensor. Merges by other methods,
    and those that go by the experts' changes, are by their recipe, the content of their models and
    mergekit's version: measurements follow from the content, and planning reads no weights.
    """
    code = layerswap_method.METHOD_VERSION
    if merged is None:
        return {
            "document": with_references(written.document, contents.references),
            "mergekit": versions["mergekit"],
            "code": code if written.merge_method in OUR_METHODS else None,
        }
    tensors = {
        name: [
            [_content_of(term, contents.files) for term in mix.terms],
            mix.model_dump(mode="json", exclude={"terms"}),
        ]
        for name, mix in merged.tensors.items()
    }
    mixes = merged.tensors.values()
    computed = any(len(mix.terms) > 1 or mix.terms[0].change is not None for mix in mixes)
    return {
        "donated": contents.donated[merged.donor_folder],
        "tensors": tensors,
        "code": code if computed else None,  # a tensor that is copied is what it is
    }


def _content_of(term: Term, hashes: Mapping[Path, str]) -> list[Any]:
    stored, change = term.stored, term.change
    added = change and [hashes[change.up.file], change.up.name, change.down.name]
    return [hashes[stored.file], stored.name, term.cast, term.coefficient, added]
