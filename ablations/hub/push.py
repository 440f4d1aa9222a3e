"""Uploads a merged model with its card, through huggingface_hub. Knows files and cards."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from ablations.hub.card import CARD, END, RESULTS, has_results, local_paths, read_card
from layerswap_method.errors import InputError, LayerSwapError, first_line
from layerswap_method.frozen import Frozen

LOG = logging.getLogger("layerswap")

_KINDS = ("*.safetensors", "*.json", "*.md", "*.yml", "*.yaml", "*.png", "*.jinja", "*.txt")
_PATTERNS = (*_KINDS, "*.model", "LICENSE*", "NOTICE*", "*.tiktoken")
"""What a model is made of; everything else, pickles above all, stays here."""


class PushOptions(Frozen):
    """How a model is uploaded."""

    private: bool = False
    """Whether a new repository is private; without it, what its owner has set for new ones."""

    dry_run: bool = False
    """Whether nothing is sent."""

    without_results: bool = False
    """Whether a card without an evaluation will do."""


def push(model: Path, repository: str, options: PushOptions) -> Iterator[str]:
    """Upload a merged folder, and yield lines about it.

    The token is the one that `hf auth login` or HF_TOKEN left; it is never shown.

    Args:
        model: the folder, with a card by `layerswap card`.
        repository: ``OWNER/NAME``; made if it is not there.
        options: how.

    Raises:
        InputError: for a folder without a finished card, or a name that is not a hub id.
        LayerSwapError: where the hub refuses or cannot be reached.
    """
    _check_name(repository)
    _check_card(model, without_results=options.without_results)
    files = _files(model)
    left = sorted(_every(model) - set(files))
    size = sum((model / name).stat().st_size for name in files)
    if left:
        LOG.warning("not uploaded, since they are no part of a model: %s", ", ".join(left))
    if local := local_paths(model):
        LOG.warning("the recipe names folders that others lack: %s", ", ".join(local))
    yield from (f"{name} ({(model / name).stat().st_size} bytes)" for name in files)
    if options.dry_run:
        yield f"dry run: {len(files)} files, {size / 1e9:.2f} GB for {repository}; nothing was sent"
        return
    yield f"{_upload(model, repository, files, private=options.private)} ({len(files)} files)"


def _check_name(repository: str) -> None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise InputError(f"{repository!r} is not a hub id: {first_line(error)}") from error
    if repository.count("/") != 1:
        raise InputError(f"{repository!r} names no owner; write OWNER/NAME")


def _check_card(model: Path, *, without_results: bool) -> None:
    card = read_card(model) if (model / CARD).is_file() else None
    if card is None or END not in str(card.text):
        raise InputError(f"{model}: its card is not complete; run layerswap card {model} first")
    if not without_results and not has_results(card):
        raise InputError(
            f"{model}: its card has no evaluation; run layerswap evaluate {model}, then layerswap "
            f"card {model} --results RUN, or say --without-results"
        )


def _every(model: Path) -> set[str]:
    return {path.relative_to(model).as_posix() for path in model.rglob("*") if path.is_file()}


def _files(model: Path) -> list[str]:
    """Return the files that are uploaded, sorted; nothing hidden but `.eval_results`."""
    return sorted(
        name
        for name in _every(model)
        if any(fnmatch(name.rpartition("/")[2], pattern) for pattern in _PATTERNS)
        and not re.search(r"(^|/)\.", name.removeprefix(f"{RESULTS}/"))
    )


def _upload(model: Path, repository: str, files: list[str], *, private: bool) -> str:
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

    token = get_token()
    if token is None:
        raise InputError("there is no token for the hub; run hf auth login, or set HF_TOKEN")
    if not sys.stderr.isatty():
        disable_progress_bars()
    api = HfApi()
    try:
        # Not False: an organisation may make new repositories private by itself.
        url = api.create_repo(repository, private=private or None, exist_ok=True)
        api.upload_folder(
            repo_id=repository,
            folder_path=model,
            allow_patterns=files,
            commit_message="Upload a merge with its card by layerswap",
        )
    except Exception as error:
        said = first_line(error).replace(token, "<token>")
        raise LayerSwapError(f"{repository}: the hub did not take it: {said}") from None
    return str(url)
