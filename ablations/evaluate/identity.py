"""What decides a score of the suite, as hashes, and the folder that is named after it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import layerswap_method
from ablations.engines.backends import backend_versions
from ablations.evaluate.request import SuiteRequest
from ablations.evaluate.results_file import Protocol
from ablations.machine.fingerprint import (
    fingerprint_checkpoint,
    fingerprint_files,
    fingerprint_folder,
    fingerprint_of,
)
from ablations.models.find import Expert
from ablations.scoring import SCORING_VERSION
from ablations.scoring.records import Backend
from ablations.tasks.catalog import SHIPPED_TASKS, Task

DEFAULT_OUT = Path("runs/evaluate")


def protocol_of(expert: Expert, backend: Backend, request: SuiteRequest) -> Protocol:
    """Return what all scores of one folder have in common."""
    folders = [expert.folder, *([expert.adapter] if expert.adapter is not None else [])]
    return Protocol(
        model_fingerprint=fingerprint_of(parts=[fingerprint_checkpoint(each) for each in folders]),
        backend=backend,
        limit=request.limit,
        dtype=request.options.dtype,
        max_model_len=request.options.max_model_len,
    )


def default_folder(model: str, backend: Backend, request: SuiteRequest) -> Path:
    """Return where the records go unless the user says: a folder of the model's and protocol's.

    So a quick look with a limit does not stand in the way of the whole run, nor one engine in the
    other's: what is no default is in the name.
    """
    options = request.options
    asked = {"limit": request.limit, "dtype": options.dtype, "max-model-len": options.max_model_len}
    words = [f"{name}-{value}" for name, value in asked.items() if value not in (None, "auto")]
    return DEFAULT_OUT / model.strip("/.").replace("/", "--") / "-".join([backend, *words])


def task_fingerprints(
    tasks: Sequence[Task], expert: Expert, protocol: Protocol, request: SuiteRequest
) -> Iterator[tuple[str, str]]:
    """Yield task name and the hash of everything that can change its score."""
    shared = {
        "model": protocol.model_fingerprint,
        "tasks": fingerprint_folder(SHIPPED_TASKS),
        "code": [SCORING_VERSION, layerswap_method.METHOD_VERSION],
        "options": request.options.model_dump(mode="json"),
        "backend": protocol.backend,
        "versions": {
            "layerswap": layerswap_method.__version__,
            **backend_versions(protocol.backend),
        },
    }
    for task in tasks:
        asked = request.of(task).model_dump(
            mode="json", exclude={"include_path", "data_dir", "code_isolation"}
        )
        data = None if request.data_dir is None else _data_hash(request.data_dir, task)
        yield task.name, fingerprint_of(**shared, request=asked, data=data)


def _data_hash(folder: Path, task: Task) -> str:
    """Return a hash of the local files that a task can read: others may come and go."""
    return fingerprint_files(
        folder,
        {
            path
            for place in (folder / task.benchmark, folder)
            for code in task.configs
            for path in place.glob(f"{code}_*.jsonl")
        },
    )
