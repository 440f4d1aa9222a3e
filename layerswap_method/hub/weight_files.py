"""Which files of weights a repository of the hub has at a commit, asked once and kept."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from layerswap_method.errors import InputError
from layerswap_method.file_names import IGNORED, WEIGHTS
from layerswap_method.hub.transfer import RemoteFile

_PICKLES = ("pytorch_model*.bin", "adapter_model.bin")
"""Names of weights that nothing here loads."""


def weight_files(repository: str, commit: str, record: Path) -> dict[str, RemoteFile]:
    """Return name -> file of weights of a repository, from the hub or from an earlier record."""
    try:
        weights = json.loads(record.read_text("utf-8"))["files"]
    except (FileNotFoundError, ValueError):  # a machine that broke down may have left it empty
        weights = _ask_for_weights(repository, commit)
        record.parent.mkdir(parents=True, exist_ok=True)
        part = record.with_name(f"{record.name}.{os.getpid()}")
        part.write_text(json.dumps({"repository": repository, "files": weights}, indent=1), "utf-8")
        part.replace(record)
    files = {name: RemoteFile(repository, commit, name, **file) for name, file in weights.items()}
    for file in files.values():
        if not re.fullmatch("([0-9a-f]{64})?", file.sha256):
            raise InputError(f"{file}: the hub states {file.sha256!r}, which is no SHA-256")
    return files


def _ask_for_weights(repository: str, commit: str) -> dict[str, dict[str, Any]]:
    """Return name -> size and SHA-256 of the files of weights of a repository, "" for small ones.

    Raises `InputError` where all of them are pickles.
    """
    from huggingface_hub import HfApi

    info = HfApi().model_info(repository, revision=commit, files_metadata=True)
    siblings = info.siblings or ()
    weights = {
        sibling.rfilename: {
            "size": sibling.size,
            "sha256": "" if sibling.lfs is None else sibling.lfs.sha256,
        }
        for sibling in siblings
        if _is_weight(sibling.rfilename)
    }
    names = (sibling.rfilename for sibling in siblings)
    pickle = next((name for name in names if any(map(Path(name).match, _PICKLES))), None)
    if not weights and pickle is not None:
        raise InputError(
            f"{repository}: only pickled weights ({pickle}); loading a pickle can run code. Look "
            "for a revision with safetensors, or convert them: from_pretrained(...)"
            ".save_pretrained(DIR)"
        )
    return weights


def _is_weight(name: str) -> bool:
    """Return whether a file of a repository is one of weights of its model."""
    path = Path(name)
    is_copy = any(path.match(pattern) for pattern in IGNORED)
    return len(path.parts) == 1 and path.match(WEIGHTS) and not is_copy
