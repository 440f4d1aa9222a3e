"""Where a model is: a folder, a hub id in the local cache, or an adapter on its base."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablations.machine.progress import Step, tell
from layerswap_method.checkpoint.checkpoint import Checkpoint, read_checkpoint
from layerswap_method.errors import InputError, nearest
from layerswap_method.recipe.references import (
    Model,
    find_model_files,
    is_folder,
    is_hub_id,
    resolve_from,
)


@dataclass(frozen=True)
class Expert(Model):
    """An expert that is on this machine, by the name that the study gives it; paths are absolute.

    `source` is where another machine finds it: the reference, a hub id with the revision that was
    found.
    """

    source: str = ""

    @property
    def reference(self) -> str:
        """The expert as a mergekit recipe names it."""
        return str(self.folder) if self.adapter is None else f"{self.folder}+{self.adapter}"


def find_expert(
    name: str, known: Mapping[str, Any], *, download: bool, folder: Path | None = None
) -> Expert:
    """Return the expert `name`.

    Args:
        name: as the study writes it.
        known: the `experts` of an experts file.
        download: whether a hub id may be downloaded; else it must be in the local cache.
        folder: of the file that names the expert; see `resolve_from`.

    Raises:
        InputError: where it is not named or not there; with what to do.
    """
    if name not in known:
        raise InputError(
            f"no expert {name!r} in the experts file{nearest(name, known)}; "
            f"it names {', '.join(sorted(known))}"
        )
    reference = known[name]
    if not isinstance(reference, str) or not reference:
        raise InputError(
            f"expert {name!r} is {reference!r}; write a folder, a hub id, or base+adapter"
        )
    return find_model(reference, name=name, download=download, folder=folder)


def find_model(
    reference: str, *, name: str | None = None, download: bool = True, folder: Path | None = None
) -> Expert:
    """Return the model of a reference: a folder, a hub id, or either with a LoRA adapter.

    Args:
        reference: as a user writes it.
        name: of the expert in a study; None for the reference itself.
        download: whether a hub id may be downloaded; else it must be in the local cache.
        folder: of the file that has the reference, see `resolve_from`; None for the command line.

    Raises:
        InputError: where it is not there; with what to do.
    """
    name = name or reference
    whole = resolve_from(reference, folder)
    if is_folder(whole):  # a folder whose name holds a plus sign
        return Expert(name, whole.resolve(), source=str(whole.resolve()))
    # A reference that ends in its name has no name of its own: it came without an experts file.
    who = "" if name in (reference, Path(reference).name) else f"expert {name!r}: "
    if is_hub_id(reference.partition("+")[0]):
        tell(Step(""))  # a download shows its own bar
    try:
        found = find_model_files(reference, folder, download=download, hint=build_hint)
    except InputError as error:
        raise InputError(f"{who}{error.message}") from error
    source = _source(reference.partition("+")[0], found.folder)
    if found.adapter is not None:
        source += f"+{_source(reference.partition('+')[2], found.adapter)}"
    return Expert(name, found.folder, found.adapter, source)


def find_checkpoint(reference: str) -> Checkpoint:
    """Return the headers of a whole checkpoint: a folder, or a hub id, which is downloaded.

    Raises:
        InputError: where it is not there or cannot be read, or for an adapter.
    """
    found = find_model(reference)
    if found.adapter is not None:
        raise InputError(
            f"{reference}: is an adapter on its base; give a whole checkpoint (merge it first)"
        )
    return read_checkpoint(reference, found.folder)


_BUILT = {
    "pocket": "layerswap pocket build",
    "pocket_experts": "make pocket-experts (in a clone)",
    "other_bases": "make different-bases (in a clone)",
    "smol": "layerswap smol build",
    "smol_experts": "make real-model (in a clone)",
}
"""Folder below `runs` -> what makes it."""


def build_hint(path: str) -> str:
    """Return how to make a missing folder of a testbed that ships; "" for other folders."""
    first, second, *_ = (*Path(path).parts, "", "")
    command = _BUILT.get(second) if first == "runs" else None
    return "" if command is None else f"; {command} makes it here"


def _source(text: str, folder: Path) -> str:
    if folder.parent.name != "snapshots":
        return str(folder)
    return f"{text.partition('@')[0]}@{folder.name}"
