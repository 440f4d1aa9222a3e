"""The door to the hub: why it does not give a model, in one sentence with what to do."""

from __future__ import annotations

import errno
import functools
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from layerswap_method.errors import InputError, LayerSwapError, first_line, nearest
from layerswap_method.file_names import MODEL_FILES, WEIGHT_FILES
from layerswap_method.hub.patience import watch

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class NotGiven(LayerSwapError):
    """The hub does not give what huggingface_hub asks for; the message is a clause."""


@contextmanager
def asking(repository: str, revision: str | None) -> Iterator[None]:
    """Turn what huggingface_hub raises into `NotGiven`. The body has calls of it and no others.

    Raises `LayerSwapError` where a server is not waited for, see `patience`.
    """
    from huggingface_hub import get_session

    hooks = get_session().event_hooks["response"]
    hooks.append(watch)
    try:
        yield
    except LayerSwapError:
        raise
    except Exception as error:
        raise NotGiven(describe_refusal(repository, revision, error)) from error
    finally:
        hooks.remove(watch)


@functools.cache
def hub_answers() -> bool:
    """Return whether the hub answers, tried once: every download would try six times."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

    with suppress(Exception):  # no network, or downloads are switched off
        get_session().head(constants.ENDPOINT, timeout=10.0)
        return True
    return False


def describe_refusal(repository: str, revision: str | None, error: Exception) -> str:
    """Return why a model of the hub cannot be had, from what huggingface_hub raised."""
    import httpx2
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    page = f"{constants.ENDPOINT}/{repository}"
    cause = error.__cause__ if isinstance(error, FileNotFoundError) and error.__cause__ else error
    if isinstance(cause, GatedRepoError):
        return (
            "the hub says: the model is gated and your account has no access; ask for it at "
            f"{page}, and log in with hf auth login"
        )
    if isinstance(cause, RevisionNotFoundError):
        near = _nearest_revision(repository, revision or "")
        return f"the hub says: there is no revision {revision}{near or f'; see {page}/commits'}"
    if isinstance(cause, RepositoryNotFoundError):
        return (
            "the hub says: there is no such model, or it is private; check its name, or log in "
            "with hf auth login"
        )
    if isinstance(cause, HfHubHTTPError) and cause.response.status_code in (401, 403):
        return (
            f"the hub says: your token may not read it (HTTP {cause.response.status_code}); log in "
            f"with hf auth login, or look at {page}"
        )
    if isinstance(cause, httpx2.TransportError):
        return (
            f"the hub cannot be reached ({first_line(cause)}); check the network, or copy a cache "
            "that has it and set HF_HUB_OFFLINE=1"
        )
    if isinstance(cause, OSError) and cause.errno in _NO_ROOM:
        return describe_no_place(cause)
    if isinstance(cause, OSError) and cause.errno is not None and cause.filename is not None:
        return (
            f"{describe_no_place(cause)}, or HF_HUB_OFFLINE=1 where an earlier download is enough"
        )
    if constants.HF_HUB_OFFLINE:
        return describe_absence(repository, revision)
    if not isinstance(cause, (HfHubHTTPError, HFValidationError, httpx2.HTTPError, OSError)):
        return (
            f"its answer cannot be read ({type(cause).__name__}: {first_line(cause)}); if it stays "
            f"so, look at {page}"
        )
    return f"the hub says: {first_line(error)}"


def describe_no_place(error: OSError) -> str:
    """Return why a file of a cache cannot be written."""
    if error.errno in _NO_ROOM:
        return "there is no room for it; make room, or set HF_HUB_CACHE to a folder elsewhere"
    file = error.filename2 or error.filename  # of a link and of a new name: the second
    return (
        f"{file} cannot be written ({error.strerror}); set HF_HUB_CACHE to a folder inside one "
        "that you may write"
    )


def describe_absence(repository: str, revision: str | None) -> str:
    """Return why a model is not had where the hub is not asked, and the command that gets it."""
    from huggingface_hub import constants

    why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "nothing is downloaded now"
    includes = " ".join(f"--include '{pattern}'" for pattern in (WEIGHT_FILES, *MODEL_FILES))
    return (
        f"the hub's cache does not have it ({why}); this gets it: hf download {repository} "
        f"{f'--revision {revision} ' if revision else ''}{includes}"
    )


def is_refusal(error: Exception) -> bool:
    """Return whether trying again will not help: no such model, no right to it, or a damaged one.

    The last is an `InputError` that no foreign error caused.
    """
    from huggingface_hub.errors import (
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    refusals = (HFValidationError, RepositoryNotFoundError, RevisionNotFoundError)
    cause: BaseException = error
    while cause.__cause__ is not None and not isinstance(cause, refusals):
        cause = cause.__cause__
    return isinstance(cause, (*refusals, InputError))


def _nearest_revision(repository: str, revision: str) -> str:
    from huggingface_hub import HfApi

    with suppress(Exception):  # it is only a hint
        refs = HfApi().list_repo_refs(repository)
        return nearest(revision, [ref.name for ref in (*refs.branches, *refs.tags)])
    return ""
