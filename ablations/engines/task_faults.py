"""Why lm-eval cannot load a task: its file, its data, or a hub that cannot be reached."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ablations.tasks.data import DataAway
from layerswap_method.errors import InputError, LayerSwapError, describe_error

_NETWORK = ("requests", "httpx", "huggingface_hub", "urllib3", "aiohttp")
"""Packages whose errors are about a hub or the way to it."""

_NOT_CACHED = "Couldn't find cache for"
"""What datasets says of a hub's data set, offline, when it has only other parts of it."""


class TaskFault(InputError):
    """No model can run this task until its file, or the place of its data, is mended."""


@contextmanager
def task_errors(name: str, file: Path | None) -> Iterator[None]:
    """Raise what goes wrong with a task in the block as an error that says what to do.

    Args:
        name: of the task.
        file: its YAML file, if it has one.

    Raises:
        TaskFault: where the task's file or its data is wrong.
        DataAway: where the hub cannot be reached.
    """
    try:
        yield
    except LayerSwapError as error:
        if type(error) not in (InputError, DataAway) or error.message.startswith("task "):
            raise
        raise type(error)(f"task {name}: {error.message}") from error
    except Exception as error:  # a task runs code of its own, which may raise anything
        if _is_about_a_hub(error):
            raise DataAway(
                f"task {name}: its data is not on this machine and the hub cannot be reached "
                f"({describe_error(error)}); run this where there is a network, without "
                "HF_HUB_OFFLINE and HF_DATASETS_OFFLINE, or leave the task out"
            ) from error
        kind = "data" if isinstance(error, OSError) else "file or data"
        where = "" if file is None else f" ({file})"
        problem = f"its {kind} cannot be read: {describe_error(error)}"
        raise TaskFault(f"task {name}: {problem}{where}") from error


def _is_about_a_hub(error: BaseException | None) -> bool:
    if error is None:
        return False
    return (
        isinstance(error, ConnectionError | TimeoutError)
        or type(error).__module__.partition(".")[0] in _NETWORK
        or str(error).startswith(_NOT_CACHED)
        or _is_about_a_hub(error.__cause__ or error.__context__)
    )
