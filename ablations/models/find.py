"""Where a model is: a folder, a hub id in the local cache, or an adapter on its base."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layerswap_method.errors import InputError, first_line, nearest
from layerswap_method.recipe.references import is_folder, is_there, no_such_folder

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


def find_expert(name: str, known: Mapping[str, Any], *, download: bool) -> Expert:
    """Return the expert `name`.

    Args:
        name: as the study writes it.
        known: the `experts` of an experts file.
        download: whether a hub id may be downloaded; else it must be in the local cache.

    Raises:
        InputError: where it is not named or not there; with what to do.
    """
    if name not in known:
        raise InputError(
            f"no expert {name!r} in the experts file{nearest(name, known)}; "
            f"it names {', '.join(sorted(known))}"
        )
    reference = known[name]
    if isinstance(reference, dict) and "train" in reference:
        raise InputError(
            f"expert {name!r} is to be trained (train:), which a study does not do; train it "
            "first (layerswap train CONFIG --out DIR) and write its folder"
        )
    if not isinstance(reference, str) or not reference:
        raise InputError(
            f"expert {name!r} is {reference!r}; write a folder, a hub id, or base+adapter"
        )
    return find_model(reference, name=name, download=download)


def find_model(reference: str, *, name: str | None = None, download: bool = True) -> Expert:
    """Return the model of a reference: a folder, a hub id, or either with a LoRA adapter.

    Args:
        reference: as a user writes it.
        name: of the expert in a study; None for the reference itself.
        download: whether a hub id may be downloaded; else it must be in the local cache.

    Raises:
        InputError: where it is not there; with what to do.
    """
    name = name or reference
    if is_folder(reference):  # a folder whose name holds a plus sign
        return Expert(name, Path(reference).resolve(), source=str(Path(reference).resolve()))
    # A reference that ends in its name has no name of its own: it came without an experts file.
    who = "" if name in (reference, Path(reference).name) else f"expert {name!r}: "
    model, plus, adapter = reference.partition("+")
    folder = _locate(model, who, download=download)
    if not plus:
        return Expert(name, folder, source=_source(model, folder))
    found = _locate(adapter, who, download=download)
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        if not (found / file).is_file():
            raise InputError(f"{who}{adapter} holds no {file}: no peft adapter")
    return Expert(name, folder, found, f"{_source(model, folder)}+{_source(adapter, found)}")


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


def _locate(text: str, who: str, *, download: bool) -> Path:
    """Return the folder that `text` names; `who` begins an error."""
    path = Path(text)
    if is_folder(path):
        return path.resolve()
    if is_there(path):
        raise InputError(f"{who}{text}: is a file; write its folder, {path.parent}")
    is_hub_id = text.count("/") == 1 and not text.startswith((".", "/", "~"))
    if not is_hub_id or is_folder(path.parent):
        pocket = (
            "; layerswap pocket build trains the pocket experts here" if "pocket" in text else ""
        )
        siblings = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
        raise InputError(f"{who}{no_such_folder(text, nearest(path.name, siblings))}{pocket}")
    from huggingface_hub import snapshot_download

    repository, _, revision = text.partition("@")
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
        hint = "" if download else f"; hf download {repository} (a dry run downloads nothing)"
        raise InputError(f"{who}{text} cannot be had: {first_line(error)}{hint}") from error
