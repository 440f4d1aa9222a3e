"""Where the answers of a model are, and its scores where all of them are there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ablations.engines.answers import AnswerFile
from ablations.engines.backends import backend_versions
from ablations.machine.fingerprint import fingerprint_of
from ablations.models.context import context_of
from ablations.runner.work import Work
from ablations.scoring.records import Evaluation

if TYPE_CHECKING:
    from ablations.runner.engines import EngineSetup


def default_answers(out: Path) -> Path:
    """Return the folder of answers for the run folder `out` where none is asked for."""
    runs = Path("runs").absolute()
    return (runs if runs in out.parents else out.parent) / "answers"


def answer_file(setup: EngineSetup, work: Work) -> AnswerFile:
    """Return the file of a model's answers to a task; equal weights have one, in all runs."""
    engine = fingerprint_of(
        backend=setup.backend,
        options=setup.options.of_backend(setup.backend).identity(),
        protocol=work.request.protocol.asked(),
        context=setup.options.max_model_len or context_of(str(setup.base.folder)),
        versions=backend_versions(setup.backend),
    )
    name = work.task.replace("/", "_")
    return AnswerFile(setup.answers / work.weights_key / f"{name}.jsonl", engine)


def recalled(setup: EngineSetup, work: Work, answers: AnswerFile) -> Evaluation | None:
    """Return the scores of a work item whose answers are all stored, else None."""
    from ablations.engines.recall import recall
    from layerswap_method.methods.read import recipe_by_files

    single, recipe = setup.single(work.merge), recipe_by_files(work.merge)
    if not answers.path.is_file() or recipe is None or recipe.needs_deltas:
        return None  # what a merge measures stands in its records
    folder = recipe.merge(setup.experts).donor if single is None else single.folder
    return recall(answers, work.request, model=str(folder), backend=setup.backend, folder=folder)
