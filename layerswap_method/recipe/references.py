"""A reference to a model as text, ``path@revision+adapter``, and where its files are."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layerswap_method.errors import InputError, nearest
from layerswap_method.file_names import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    MODEL_FILES,
    WEIGHT_FILES,
    WEIGHTS_FILE,
)
from layerswap_method.hub.downloads import Downloads, complete_all, snapshot
from layerswap_method.hub.refusals import NotGiven, describe_absence, describe_refusal
from layerswap_method.recipe.kinds import place_kind

PLUS = "+ means MODEL+ADAPTER; rename a folder whose own name has a +"
"""Advice on a reference with a plus sign that may be the folder's own."""


PLACEHOLDER = "a placeholder: put a model of your own there, or name yours in its place"
"""Meaning of a path that `is_placeholder`."""


@dataclass(frozen=True)
class Model:
    """One model on this machine: its name for messages, and the folders of its files."""

    name: str
    folder: Path
    adapter: Path | None = None

    @property
    def folders(self) -> tuple[Path, ...]:
        """Return the folders that are read."""
        return (self.folder,) if self.adapter is None else (self.folder, self.adapter)


def syntax_problem(reference: str) -> str | None:
    """Return why a reference cannot be taken apart; None where it can."""
    parts = reference.split("+")
    if not all(part.strip() for part in parts):
        return "a model's path is empty; write a folder or a hub id"
    if len(parts) > 2:
        return (
            f"{reference}: + means MODEL+ADAPTER, so there is one adapter at most and no path "
            "holds a +; merge the adapters first, or rename the folder"
        )
    for part in parts:
        if part.count("@") > 1:
            return f"{part}: @ means PATH@REVISION, so a path may hold one @ at most"
    return None


def is_there(path: str | Path) -> bool:
    """Return whether `path` exists; one too long, or in a folder without access, does not."""
    return os.path.exists(path)  # noqa: PTH110 - Path.exists raises for these


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Return whether `path` is a folder; one too long for the file system is none."""
    return os.path.isdir(path)  # noqa: PTH112


def working_folder() -> Path | None:
    """Return the working directory; None where it is gone."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def resolve_from(path: str | Path, folder: Path | None) -> Path:
    """Return a path as a file in `folder` means it; ``~`` is the home folder.

    A relative path is taken from there if something is there, else from the working directory.
    """
    plain = Path(os.path.expanduser(path))  # noqa: PTH111 - Path.expanduser raises for ~nobody
    in_folder = plain if folder is None else folder / plain
    return in_folder if is_there(in_folder) else plain


def nearest_folder(path: str | Path, folder: Path | None = None) -> str:
    """Return the hint of `nearest` for a folder that does not exist, of those next to it."""
    parent = resolve_from(Path(path).parent, folder)
    entries = parent.iterdir() if is_folder(parent) else ()
    return nearest(Path(path).name, [entry.name for entry in entries if entry.is_dir()])


def no_such_folder(path: str | Path, folder: Path | None = None) -> str:
    """Return the message for a folder that does not exist; `folder` is as in `resolve_from`.

    A relative path is looked for from the folders above the current one: commands are often started
    in a subfolder.
    """
    if os.path.isfile(path):  # noqa: PTH113 - as in `is_there`
        return f"{path}: is a file, not a folder{place_kind(Path(path))}"
    current = working_folder()
    if current is None:
        return f"{path}: no such folder (the current directory is gone)"
    place = next((parent for parent in current.parents if is_folder(parent / path)), None)
    remedy = "" if place is None else f"; {place} has it: run the command there"
    search = f"the current directory is {current}"
    if folder is not None and folder.resolve() != current and not Path(path).is_absolute():
        search = f"looked in {folder.resolve()} and in the current directory, {current}"
    return f"{path}: no such folder{nearest_folder(path, folder)} ({search}{remedy})"


def is_placeholder(path: str | Path) -> bool:
    """Return whether a path stands for a model of the reader's own, as shipped recipes write it.

    Those are ``./experts/BASE/NAME``. Once there is a folder ``./experts/BASE``, a name that is not
    in it is a slip of the pen.
    """
    parts = Path(path).parts
    return parts[:1] == ("experts",) and len(parts) > 2 and not is_there(Path(path).parent)


def find_model_files(
    reference: str,
    folder: Path | None = None,
    *,
    cache_dir: str | None = None,
    download: bool = True,
    hint: Callable[[str], str] = lambda path: "",
    hub: Downloads | None = None,
) -> Model:
    """Return the model of a reference: a folder (before a hub id), or either with an adapter.

    `folder` is as in `resolve_from`, `cache_dir` the hub's cache; with `download` false a hub id
    must be in there. `hint` says how to make a folder that is missing. With `hub`, model and
    adapter may have the headers of their weights only; whoever has it fetches what is read. Raises
    `InputError` for what does not exist, and for an adapter that is not peft's.
    """
    if (problem := syntax_problem(reference)) is not None:
        raise InputError(problem)
    model, *adapters = reference.split("+")
    find = functools.partial(
        _find_folder, folder=folder, cache_dir=cache_dir, download=download, hint=hint
    )
    try:
        base = find(model, hub=hub)
        adapter_folders = [find(adapter, hub=hub, weights=ADAPTER_WEIGHTS) for adapter in adapters]
    except InputError as error:
        is_on_hub = all(map(is_hub_id, (model, *adapters)))
        plus = f"; {reference}: {PLUS}" if adapters and not is_on_hub else ""
        raise InputError(f"{error.message}{plus}") from error
    for adapter, adapter_folder in zip(adapters, adapter_folders, strict=True):
        for file in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
            if not (adapter_folder / file).is_file():
                consequence = "so it is not a PEFT adapter"
                if (adapter_folder / "adapter_model.bin").is_file():
                    consequence = (
                        "only a pickle, which can run code; save it with safe_serialization=True"
                    )
                raise InputError(f"{adapter} has no {file}, {consequence}")
        return Model(reference, base, adapter_folder)
    return Model(reference, base)


def _find_folder(
    text: str,
    folder: Path | None,
    *,
    cache_dir: str | None,
    download: bool,
    hint: Callable[[str], str],
    hub: Downloads | None = None,
    weights: str = WEIGHTS_FILE,
) -> Path:
    """Return the folder of a model or adapter, whose one file of weights is called `weights`."""
    path, parent = resolve_from(text, folder), resolve_from(Path(text).parent, folder)
    if is_folder(path):
        return path.resolve()
    if is_there(path):
        kind = place_kind(path) or f"; write its folder, {path.parent}"
        raise InputError(f"{text}: is a file, and a model is a folder{kind}")
    if not is_hub_id(text) or is_folder(parent):
        remedy = f"; it is {PLACEHOLDER}" if is_placeholder(text) else hint(text)
        remedy = "" if nearest_folder(text, folder) else remedy
        raise InputError(f"{no_such_folder(text, folder)}{remedy}")
    repository, _, revision = text.partition("@")
    try:
        if hub is not None:
            return hub.folder(repository, revision or None, weights)
        patterns = (WEIGHT_FILES, *MODEL_FILES)
        whole = snapshot(repository, revision or None, cache_dir, patterns, download=download)
        if download:
            complete_all(whole)
        return whole
    except (NotGiven, OSError) as error:
        if not download and hub is None:
            refusal = describe_absence(repository, revision or None)
        elif isinstance(error, NotGiven):
            refusal = error.message
        else:  # a file that cannot be made
            refusal = describe_refusal(repository, revision or None, error)
        raise InputError(f"{no_such_folder(text, folder)}, and {refusal}") from error


def is_hub_id(text: str) -> bool:
    """Return whether a text that is not a folder is a hub id: OWNER/NAME or OWNER/NAME@REVISION."""
    return text.partition("@")[0].count("/") == 1 and not text.startswith((".", "/", "~"))


def model_names(references: Iterable[str], taken: Collection[str] = ()) -> dict[str, str]:
    """Return reference -> name of the model: the end of its path that no other model has.

    That is the last part of a folder or hub id, and the adapter's of ``BASE+ADAPTER``; with the
    parts above it where another model, or a name that is `taken`, ends in the same. Where no end is
    of one model alone, the reference is its own name.
    """
    ends = {reference: _ends(reference) for reference in references}
    names = {}
    for reference, own in ends.items():
        others = {end for other, listed in ends.items() if other != reference for end in listed}
        free = (end for end in own if end not in others and end not in taken)
        names[reference] = next(free, reference)
    return names


def _ends(reference: str) -> list[str]:
    """Return the last part of a model's path, the last two, and so on."""
    text = reference if is_folder(reference) else reference.rpartition("+")[2].partition("@")[0]
    path = Path(text)
    if path.name in ("", ".."):
        path = path.resolve()
    parts = [part for part in path.parts if part not in (path.anchor, "..", "~")]
    return ["/".join(parts[start:]) for start in reversed(range(len(parts)))]


def same_model_key(reference: str) -> str:
    """Return a text that is equal for references to one model, however its folder is written."""
    parts = []
    for part in reference.split("+"):
        path, separator, revision = part.partition("@")
        resolved = str(Path(path).resolve()) if path and is_there(path) else path
        parts.append(resolved + separator + revision)
    return "+".join(parts)


def named_models(template: Mapping[str, Any]) -> Iterator[str]:
    """Yield every model that a recipe names, wherever it names it."""
    for key, value in template.items():
        if key in ("model", "base_model") and isinstance(value, str):
            yield value
        for entry in value if isinstance(value, list) else [value]:
            if isinstance(entry, Mapping):
                yield from named_models(entry)


def map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return a part of a document with `change` of every text in it; keys stay."""
    if isinstance(value, Mapping):
        return {key: map_texts(inner, change) for key, inner in value.items()}
    if isinstance(value, list):
        return [map_texts(inner, change) for inner in value]
    return change(value) if isinstance(value, str) else value
