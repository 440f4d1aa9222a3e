"""Where the answers of a model and the prompts of a task are, and scores of stored answers."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ablations.engines.answers import AnswerFile
from ablations.engines.backends import backend_versions
from ablations.machine.fingerprint import fingerprint_of
from ablations.machine.whole_files import write_text
from ablations.models.context import context_of
from ablations.runner.worker import Work
from ablations.scoring.records import Evaluation, Sample

if TYPE_CHECKING:
    from ablations.runner.engines import EngineSetup


def default_answers(out: Path) -> Path:
    """Return the default folder of answers for the run folder `out`."""
    runs = Path("runs").absolute()
    return (runs if runs in out.parents else out.parent) / "answers"


def answer_file(setup: EngineSetup, work: Work) -> AnswerFile:
    """Return the file of a model's answers to a task; equal weights have one, in all runs."""
    plan = setup.plan
    engine = fingerprint_of(
        backend=plan.backend,
        options=plan.options.of_backend(plan.backend).identity(),
        protocol=work.request.protocol.asked(),
        context=plan.options.max_model_len or context_of(str(plan.base.folder)),
        versions=backend_versions(plan.backend),
    )
    name = work.task.replace("/", "_")
    return AnswerFile(setup.answers / work.cell.weights_key / f"{name}.jsonl", engine)


def store_prompts(folder: Path, task: str, samples: Sequence[Sample]) -> Path:
    """Write the prompts and targets of a task into the folder of answers, once for all models."""
    first = {sample.doc_id: sample for sample in reversed(samples)}
    rows = (
        {"item": item, "prompts": first[item].prompts, "target": first[item].target}
        for item in sorted(first)
    )
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    name = f"{task.replace('/', '_')}-{fingerprint_of(text=text)[:12]}.jsonl"
    path = folder / "prompts" / name
    with contextlib.suppress(OSError):  # a full disk: a warning says so of the answers
        if not path.is_file():
            write_text(path, text)
    return path


def recalled(setup: EngineSetup, work: Work, answers: AnswerFile) -> Evaluation | None:
    """Return the scores of a task whose answers are all stored, else None."""
    from ablations.engines.recall import recall
    from layerswap_method.methods.read import recipe_by_files

    merge = work.cell.merge
    single, recipe = setup.single(merge), recipe_by_files(merge)
    if not answers.path.is_file() or recipe is None or recipe.needs_deltas:
        return None  # what a merge measures stands in its records
    folder = recipe.merge(setup.experts).donor if single is None else single.folder
    backend = setup.plan.backend
    return recall(answers, work.request, model=str(folder), backend=backend, folder=folder)
