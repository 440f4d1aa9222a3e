"""Where a model is: a folder, a hub id in the local cache, or an adapter on its base."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablations.machine.progress import Step, tell
from layerswap_method.checkpoint.checkpoint import Checkpoint, read_checkpoint
from layerswap_method.errors import InputError, first_line, nearest
from layerswap_method.recipe.references import (
    is_folder,
    is_hub_id,
    is_there,
    no_such_folder,
    resolve_from,
)

_PATTERNS = [
    *("*.safetensors", "*.json", "*.jinja"),
    *("tokenizer*", "*.model", "merges.txt", "vocab*"),
]
"""Files of a hub repository that an expert is made of; pickles stay away."""


@dataclass(frozen=True)
class Expert:
    """An expert that is on this machine."""

    name: str
    """As the study names it."""

    folder: Path
    """The checkpoint; absolute."""

    adapter: Path | None = None
    """A LoRA adapter on top of it; absolute."""

    source: str = ""
    """Where another machine finds it: the reference, a hub id with the revision that was found."""

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
        folder: of the file that says where the expert is; see `beside`.

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
        folder: of the file that has the reference, see `beside`; None for the command line.

    Raises:
        InputError: where it is not there; with what to do.
    """
    name = name or reference
    whole = resolve_from(reference, folder)
    if is_folder(whole):  # a folder whose name holds a plus sign
        return Expert(name, whole.resolve(), source=str(whole.resolve()))
    # A reference that ends in its name has no name of its own: it came without an experts file.
    who = "" if name in (reference, Path(reference).name) else f"expert {name!r}: "
    model, plus, adapter = reference.partition("+")
    base = _locate(model, who, folder, download=download)
    if not plus:
        return Expert(name, base, source=_source(model, base))
    found = _locate(adapter, who, folder, download=download)
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        if not (found / file).is_file():
            raise InputError(f"{who}{adapter} has no {file}, so it is not a PEFT adapter")
    return Expert(name, base, found, f"{_source(model, base)}+{_source(adapter, found)}")


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
}
"""Folder below `runs` -> what makes it."""


def build_hint(path: str) -> str:
    """Return how to make a missing folder of a testbed that ships; "" for other folders.

    Where a folder above has it, the command belongs there.
    """
    place = Path(path)
    if place.is_relative_to(Path.cwd()):
        place = place.relative_to(Path.cwd())
    first, second, *_ = (*place.parts, "", "")
    command = _BUILT.get(second) if first == "runs" else None
    if command is None or any(is_folder(each / path) for each in Path.cwd().parents):
        return ""
    return f"; {command} makes it here"


def here(expert: Expert) -> Expert:
    """Return the expert as it is on this machine, fetching what the hub has and this has not.

    Raises:
        InputError: where it is neither here nor on the hub.
    """
    folders = [expert.folder, *([expert.adapter] if expert.adapter is not None else [])]
    if all(folder.is_dir() for folder in folders):
        return expert
    return find_model(expert.source, name=expert.name)


def _source(text: str, folder: Path) -> str:
    if folder.parent.name != "snapshots":
        return str(folder)
    return f"{text.partition('@')[0]}@{folder.name}"


def _locate(text: str, who: str, folder: Path | None, *, download: bool) -> Path:
    """Return the folder that `text` names in a file in `folder`; `who` begins an error."""
    path = resolve_from(text, folder)
    if is_folder(path):
        return path.resolve()
    if is_there(path):
        raise InputError(f"{who}{text}: is a file; write its folder, {path.parent}")
    above = resolve_from(Path(text).parent, folder)
    if not is_hub_id(text) or is_folder(above):
        there = above.iterdir() if is_folder(above) else ()
        siblings = [each.name for each in there if each.is_dir()]
        near = nearest(path.name, siblings)
        missing = no_such_folder(text, near, folder)
        raise InputError(f"{who}{missing}{'' if near else build_hint(text)}")
    from huggingface_hub import snapshot_download

    repository, _, revision = text.partition("@")
    tell(Step(""))  # a download shows its own bar
    try:
        return Path(
            snapshot_download(
                repository,
                revision=revision or None,
                allow_patterns=_PATTERNS,
                local_files_only=not download,
            )
        )
    except Exception as error:
        why = f"the hub says: {first_line(error)}"
        if not download:
            kinds = " ".join(f"--include '{each}'" for each in _PATTERNS)
            why = (
                "the hub's cache does not have it. A dry run downloads nothing: hf download "
                f"{repository}{f' --revision {revision}' if revision else ''} {kinds}"
            )
        missing = no_such_folder(text, folder=folder)
        raise InputError(f"{who}{missing}, and {why}") from error
