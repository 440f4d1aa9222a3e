"""The paper's benchmarks on one model: which tasks, what is kept, what is not asked again.

Every task of the suite has a folder of its own below the output folder, written when it is done,
so that a run that was stopped goes on where it was, and one more language asks only that. The
output folder is one model's under one protocol; its `results.json` grows from call to call.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ablations.engines.backends import describe_backend, resolve_backend
from ablations.engines.lm_eval_backend import check_data
from ablations.engines.task_choice import NEEDS_CODE_EXECUTION
from ablations.evaluate.identity import default_folder, protocol_of, task_fingerprints
from ablations.evaluate.model import opened
from ablations.evaluate.request import SuiteRequest
from ablations.evaluate.results_file import FILE, add_results, read_results
from ablations.evaluate.store import read_evaluation, write_evaluation
from ablations.evaluate.table5 import render_table5
from ablations.machine.whole_files import check_place, told_if_unwritable
from ablations.models.find import find_model
from ablations.scoring.records import Backend, Evaluation
from ablations.tasks.catalog import Task, choose, list_tasks
from layerswap_method.recipe.references import is_folder

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SuiteResult:
    """What a model scored."""

    model: str
    """As the user named it."""

    backend: Backend
    """What evaluated it."""

    tasks: tuple[Task, ...]
    """Every task that was chosen, in the order of Table 5."""

    evaluations: Mapping[str, Evaluation]
    """Task name -> its evaluation."""

    skipped: Mapping[str, str]
    """Task name -> why it was not asked."""

    earlier: tuple[str, ...]
    """Other tasks that the folder has scores of, from calls before."""

    out: Path
    """Folder of the records."""

    def report(self) -> str:
        """Return the table in the layout of the paper's Table 5, notes, and where records are."""
        parts = [self.model] if is_folder(self.model) else self.model.split("+")
        name = "+".join(Path(part).name if is_folder(part) else part for part in parts)
        table = render_table5(name, self.tasks, self.evaluations, self.skipped)
        if not self.evaluations:
            return f"{table}\n\nNothing was evaluated. What was skipped: {self.out / FILE}"
        many = "task" if len(self.earlier) == 1 else "tasks"
        earlier = f" (and those of {len(self.earlier)} {many} of earlier calls)"
        return (
            f"{table}\n\nEvaluated by lm-eval on {describe_backend(self.backend)}.\n"
            f"Scores{earlier if self.earlier else ''}: {self.out / FILE}; "
            f"one record per item: {self.out}/TASK/samples_*.jsonl"
        )


def evaluate_model(model: str, request: SuiteRequest, out: Path | None = None) -> SuiteResult:
    """Evaluate one model on the suite; finished tasks with unchanged inputs are not asked again.

    Args:
        model: a checkpoint folder, a hub id (``org/name`` or ``org/name@revision``), or either
            with a LoRA adapter: ``BASE+ADAPTER``.
        request: what to ask.
        out: folder for the records; None for `default_folder`.

    Raises:
        InputError: for unknown languages or benchmarks, data that is missing (all of it in one
            message, before a model is loaded), a model that is not there, an adapter that cannot
            be streamed, a missing backend, a folder that cannot be written, or one that holds
            results of another model or protocol.
        LayerSwapError: when writing fails later on, or the engine cannot take the adapter.
    """
    suite = list_tasks()
    chosen = choose(suite, request.languages, request.benchmarks)
    expert = find_model(model)
    backend = resolve_backend(request.backend)
    out = default_folder(model, backend, request) if out is None else out
    check_place(out / FILE)
    protocol = protocol_of(expert, backend, request)
    read_results(out, model, protocol)
    fingerprints = dict(task_fingerprints(chosen, expert, protocol, request))
    found: dict[str, Evaluation] = {}
    for name, fingerprint in fingerprints.items():
        known = read_evaluation(out / name, fingerprint=fingerprint)
        if known is not None:
            found[name] = known.model_copy(update={"model": model})
            logger.info("%s: evaluated before, nothing has changed", name)
    missing = [task for task in chosen if request.may_run(task) and task.name not in found]
    check_data(request.of(task) for task in missing)
    skipped = {
        task.name: NEEDS_CODE_EXECUTION
        for task in chosen
        if not request.may_run(task) and task.name not in found
    }

    def so_far() -> SuiteResult:
        ordered = {task.name: found[task.name] for task in chosen if task.name in found}
        earlier = add_results(
            out,
            model,
            protocol,
            evaluations=ordered,
            skipped=skipped,
            data_dir=request.data_dir,
            order=[task.name for task in suite],
        )
        return SuiteResult(model, backend, chosen, ordered, skipped, earlier, out)

    with told_if_unwritable(out):
        out.mkdir(parents=True, exist_ok=True)
    if missing:
        with opened(expert, model, backend, request) as ask:
            for task in missing:
                started = time.monotonic()
                name = task.name
                found[name] = ask(request.of(task)).model_copy(update={"model": model})
                with told_if_unwritable(out / name):
                    write_evaluation(out / name, found[name], fingerprint=fingerprints[name])
                so_far()
                logger.info("%s: evaluated in %.1f s", name, time.monotonic() - started)
    return so_far()
