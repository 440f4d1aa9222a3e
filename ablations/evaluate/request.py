"""What one asks of the suite, and how. Evaluates nothing."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from ablations.engines.options import BackendChoice, EngineOptions
from ablations.sandbox.programs import Isolation
from ablations.scoring.records import Seed
from ablations.tasks.catalog import Task
from layerswap_method.frozen import Frozen


class SuiteRequest(Frozen):
    """What to ask, and how."""

    languages: tuple[str, ...] = ()
    """Language codes; none asks all that the suite has."""

    benchmarks: tuple[str, ...] = ()
    """Short names of benchmarks; none asks all."""

    data_dir: Path | None = None
    """Folder of local files in place of the hub."""

    limit: int | None = Field(default=None, ge=1)
    """Items per task, from the first; None asks all."""

    seed: Seed = 0
    """Of the bootstrap."""

    backend: BackendChoice = "auto"
    """What evaluates."""

    options: EngineOptions = EngineOptions()
    """How the model is run."""

    allow_code_execution: bool = False
    """Whether generated programs may be run."""

    code_isolation: Isolation = "bwrap"
    """What holds generated programs; none where the container is the sandbox."""

    def may_run(self, task: Task) -> bool:
        """Return whether the task executes no code, or may."""
        return self.allow_code_execution or not task.executes_code
