"""Which files of weights a repository of the hub has at a commit, checked before they are noted."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from layerswap_method.errors import InputError
from layerswap_method.file_names import SECOND_COPIES, WEIGHT_FILES
from layerswap_method.hub.refusals import asking
from layerswap_method.hub.transfer import RemoteFile, WrongAnswer

LOG = logging.getLogger("layerswap")

_PICKLES = ("pytorch_model*.bin", "adapter_model.bin")
"""Names of weights that nothing here loads."""

_LARGEST = 1 << 42
"""Size that no file of weights has, in bytes."""


def ask_for_weights(repository: str, commit: str) -> dict[str, RemoteFile]:
    """Return name -> file of weights of a repository, as the hub says; a small one has no SHA-256.

    Raises `WrongAnswer` for an answer that is none, `NotGiven` where there is none, `InputError`
    where all weights are pickles.
    """
    from huggingface_hub import HfApi

    with asking(repository, commit):
        info = HfApi().model_info(repository, revision=commit, files_metadata=True)
    if info.siblings is None:
        raise WrongAnswer(repository, "the hub's answer has no list of files")
    names = [sibling.rfilename for sibling in info.siblings]
    weights = {
        sibling.rfilename: _checked(
            repository,
            commit,
            sibling.rfilename,
            sibling.size,
            "" if sibling.lfs is None else sibling.lfs.sha256,
        )
        for sibling in info.siblings
        if _is_weight(sibling.rfilename)
    }
    pickle = next((name for name in names if any(map(Path(name).match, _PICKLES))), None)
    if not weights and pickle is not None:
        raise InputError(
            f"{repository}: only pickled weights ({pickle}); loading a pickle can run code. Look "
            "for a revision with safetensors, or convert them: from_pretrained(...)"
            ".save_pretrained(DIR)"
        )
    return weights


def read_weights(repository: str, commit: str, record: Path) -> dict[str, RemoteFile] | None:
    """Return what `write_weights` noted, None where nothing usable is."""
    try:
        files = json.loads(record.read_text("utf-8"))["files"]
        return {
            name: _checked(repository, commit, name, file["size"], file["sha256"])
            for name, file in files.items()
        }
    except FileNotFoundError:
        return None
    except (ValueError, LookupError, TypeError, AttributeError, WrongAnswer):
        # A machine that broke down may have left it empty.
        LOG.warning("%s: is damaged; the hub is asked again", record)
        return None


def write_weights(repository: str, files: Mapping[str, RemoteFile], record: Path) -> None:
    """Note the files of weights of a repository, once what the hub said of them was checked."""
    noted = {name: {"size": file.size, "sha256": file.sha256} for name, file in files.items()}
    record.parent.mkdir(parents=True, exist_ok=True)
    part = record.with_name(f"{record.name}.{os.getpid()}")
    part.write_text(json.dumps({"repository": repository, "files": noted}, indent=1), "utf-8")
    part.replace(record)


def _checked(repository: str, commit: str, name: str, size: Any, sha256: Any) -> RemoteFile:
    """Return a file of the hub, whose size and SHA-256 may be anything that JSON has."""
    if type(size) is not int or not 0 < size < _LARGEST:
        raise WrongAnswer(repository, f"the hub says that {name} has {size!r:.40} bytes")
    text = sha256.strip().lower() if isinstance(sha256, str) else None
    if text is None or not re.fullmatch("([0-9a-f]{64})?", text):
        raise WrongAnswer(repository, f"the hub says {sha256!r:.80} of {name}, which is no SHA-256")
    return RemoteFile(repository, commit, name, size, text)


def _is_weight(name: Any) -> bool:
    """Return whether a file of a repository is one of weights of its model."""
    path = Path(str(name))
    is_copy = any(path.match(pattern) for pattern in SECOND_COPIES)
    return len(path.parts) == 1 and path.match(WEIGHT_FILES) and not is_copy
