"""A reference to a model as text: path traps, the same model twice, models a recipe names."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def syntax_problem(reference: str) -> str | None:
    """Return why mergekit cannot take a reference apart; None where it can."""
    parts = reference.split("+")
    if len(parts) > 2:
        return (
            f"{reference}: mergekit reads + as MODEL+ADAPTER, so there is one adapter at most and "
            "no path holds a +; merge the adapters first, or rename the folder"
        )
    for part in parts:
        if part.count("@") > 1:
            return f"{part}: mergekit reads @ as PATH@REVISION, so a path may hold one @ at most"
    return None


def is_there(path: str | Path) -> bool:
    """Return whether something is at `path`; nothing is at one too long for the file system."""
    return os.path.exists(path)  # noqa: PTH110 - Path.exists raises for one that is too long


def is_folder(path: str | Path) -> bool:
    """Return whether `path` is a folder; one too long for the file system is none."""
    return os.path.isdir(path)  # noqa: PTH112


def beside(path: str | Path, folder: Path | None) -> Path:
    """Return a path as a file in `folder` means it.

    A relative path is taken from the folder of the file if something is there, and from the working
    directory otherwise. ``~`` is the home folder.

    Args:
        path: as the file has it.
        folder: of the file; None for what was written on the command line.
    """
    written = Path(os.path.expanduser(path))  # noqa: PTH111 - Path.expanduser raises for ~nobody
    near = written if folder is None else folder / written
    return near if is_there(near) else written


def no_such_folder(path: str | Path, hint: str = "", folder: Path | None = None) -> str:
    """Return the message for a folder that is not there.

    A relative path is looked for from the folders above the current one: commands are often started
    in a subfolder.

    Args:
        path: as the user wrote it.
        hint: what stands behind the first words, such as the nearest name.
        folder: of the file that names it, see `beside`; None for the command line.
    """
    here = Path.cwd()
    place = next((each for each in here.parents if is_folder(each / path)), None)
    found = "" if place is None else f"; {place} has it: run the command there"
    looked = f"the current directory is {here}"
    if folder is not None and folder.resolve() != here and not Path(path).is_absolute():
        looked = f"looked in {folder.resolve()} and in the current directory, {here}"
    return f"{path}: no such folder{hint} ({looked}{found})"


def path_problem(path: str) -> str | None:
    """Return what is wrong with a model path as a recipe writes it; None where nothing is.

    An existing relative path that could be a hub id (`task`, `m/task`; not `./task`) is one to
    mergekit when it writes the model card, after the weights: offline that leaves half an output.
    """
    if not path.strip():
        return "a model's path is empty; write a folder or a hub id"
    looks_local = path.startswith(("/", "~", ".")) or path.count("/") > 1
    if path.startswith("~"):
        return f"{path}: mergekit does not expand ~; write the whole path"
    if looks_local and not is_there(path):
        return no_such_folder(path)
    if is_there(path) and _is_hub_id(path):
        return (
            f"{path}: this folder's name could be a hub id, and mergekit asks the hub about it "
            f"after writing the weights (offline it fails there); write ./{path}"
        )
    return None


def _is_hub_id(path: str) -> bool:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(path)
    except HFValidationError:
        return False
    return True


def same_model_key(reference: Any) -> str:
    """Return a text that is equal for references to one model, however its folder is written.

    Args:
        reference: mergekit's `ModelReference`, or its text ``path@revision+adapter``.
    """
    return "+".join(_resolved(part) for part in str(reference).split("+"))


def _resolved(part: str) -> str:
    path, at, revision = part.partition("@")
    return (str(Path(path).resolve()) if path and is_there(path) else path) + at + revision


def named_models(template: Mapping[str, Any]) -> Iterator[str]:
    """Yield every model that a recipe names, wherever it names it."""
    for key, value in template.items():
        if key in ("model", "base_model") and isinstance(value, str):
            yield value
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, Mapping):
                yield from named_models(each)
