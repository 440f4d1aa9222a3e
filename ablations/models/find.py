"""The place of a model: a folder, a hub id in the local cache, or an adapter on its base."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from ablations.machine.progress import Step, show_step
from layerswap_method.errors import InputError
from layerswap_method.hub.downloads import Downloads
from layerswap_method.recipe.references import (
    Model,
    find_model_files,
    is_folder,
    is_hub_id,
    resolve_from,
    working_folder,
)
from layerswap_method.tensors import OpenModel


@dataclass(frozen=True)
class Expert(Model):
    """An expert that is on this machine, by the name that the study gives it; paths are absolute.

    `source` is where another machine finds it: the reference, with a hub id's revision.
    """

    source: str = ""

    @property
    def reference(self) -> str:
        """The expert as a mergekit recipe names it."""
        return str(self.folder) if self.adapter is None else f"{self.folder}+{self.adapter}"


def find_model(
    reference: str,
    *,
    name: str | None = None,
    download: bool = True,
    folder: Path | None = None,
    hub: Downloads | None = None,
    recipe: Path | None = None,
) -> Expert:
    """Return the model of a reference: a folder, a hub id, or either with a LoRA adapter.

    Args:
        reference: as a user writes it.
        name: of the expert in a study.
        download: whether a hub id may be downloaded; else it must be in the local cache.
        folder: of the file that has the reference, see `resolve_from`; None for the command line.
        hub: fetches the parts of a model that are read; None downloads it whole.
        recipe: the file that has the reference, whose paths start at the working directory.

    Raises:
        InputError: where it does not exist; with what to do.
    """
    name = name or reference
    path = resolve_from(reference, folder)
    if reference and is_folder(path):  # a folder whose name holds a plus sign
        return Expert(name, path.resolve(), source=str(path.resolve()))
    if is_hub_id(reference.partition("+")[0]):
        show_step(Step(""))  # a download shows its own bar
    try:
        hint = functools.partial(build_hint, recipe=recipe)
        files = find_model_files(reference, folder, download=download, hint=hint, hub=hub)
    except InputError as error:
        # A reference that ends in its name has no name of its own: it is of no experts file.
        place = "" if name in (reference, Path(reference).name) else f"expert {name!r}: "
        raise InputError(f"{place}{error.message}") from error
    source = _source(reference.partition("+")[0], files.folder)
    if files.adapter is not None:
        source += f"+{_source(reference.partition('+')[2], files.adapter)}"
    return Expert(name, files.folder, files.adapter, source)


def open_model(reference: str, hub: Downloads | None = None) -> OpenModel:
    """Return the headers of a model: a folder or a hub id, which is downloaded, or BASE+ADAPTER.

    With `hub` no more than the headers need be here, see `find_model`.

    Raises:
        InputError: where it does not exist or cannot be read.
    """
    return OpenModel.read(find_model(reference, hub=hub))


_BUILT = {
    "pocket": "layerswap pocket build",
    "pocket_experts": "make pocket-experts (in a clone)",
    "other_bases": "make different-bases (in a clone)",
    "smol": "layerswap smol build",
    "smol_experts": "make real-model (in a clone)",
    "qwen": "make qwen (in a clone)",
}
"""Folder below `runs` -> the command that makes it."""


def build_hint(path: str, recipe: Path | None = None) -> str:
    """Return how to make a missing folder of a testbed that ships, or that it is next to a recipe.

    "" for other folders, and where the recipe is in a folder above the current one: there
    `no_such_folder` has found it.
    """
    current = working_folder()
    above = () if current is None else current.parents
    if (
        recipe is not None
        and is_folder(recipe.parent / path)
        and recipe.parent.resolve() not in above
    ):
        return f"; it is beside {recipe.name}: run the command in {recipe.parent.resolve()}"
    first, second, *_ = (*Path(path).parts, "", "")
    command = _BUILT.get(second) if first == "runs" else None
    return "" if command is None else f"; {command} makes it here"


def _source(reference: str, folder: Path) -> str:
    if folder.parent.name != "snapshots":
        return str(folder)
    return f"{reference.partition('@')[0]}@{folder.name}"
