"""The paper's benchmarks on one model: a study of one unmerged model, and its Table 5.

The run folder is that of any study (`ablations.runner.records`): finished tasks are
not evaluated again, and one more language or benchmark adds only its own.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ablations.engines.backends import describe_backend, resolve_backend
from ablations.engines.options import BackendChoice
from ablations.engines.task_loading import NEEDS_CODE_EXECUTION
from ablations.evaluate.table5 import render_table5
from ablations.machine.fingerprint import fingerprint_of
from ablations.models.find import find_model
from ablations.runner.problems import evaluation_problems
from ablations.runner.records import load_run
from ablations.runner.results import SCORES_FILE
from ablations.runner.run import RunOptions, check_folder, run_file
from ablations.runner.trackers import TrackerName
from ablations.sandbox import Isolation
from ablations.scoring.records import Backend, Evaluation
from ablations.study.experts import ExpertsFile
from ablations.study.files import StudyFile
from ablations.study.schema import Evaluate, Pools, Study
from ablations.tasks.catalog import PAPER_BENCHMARKS, PAPER_LANGUAGES, Task, choose, list_tasks
from layerswap_method.checkpoint.checkpoint import read_checkpoint
from layerswap_method.checkpoint.lora import is_lora, read_changes
from layerswap_method.errors import LayerSwapError
from layerswap_method.recipe.references import is_folder

DEFAULT_OUT = Path("runs/evaluate")
_NAME = "evaluate"


@dataclass(frozen=True)
class SuiteResult:
    """What a model scored."""

    model: str
    """As the user named it."""

    backend: Backend
    """What evaluated it."""

    tasks: tuple[Task, ...]
    """Every task of the suite that was chosen, in the order of Table 5."""

    evaluations: Mapping[str, Evaluation]
    """Task name -> its evaluation, without samples."""

    skipped: Mapping[str, str]
    """Task name -> why it was skipped."""

    earlier: tuple[str, ...]
    """Other tasks that the folder has scores of, from calls before."""

    out: Path
    """The run folder."""

    problems: tuple[str, ...] = ()
    """What is wrong with the evaluation itself; see `ablations.runner.problems`."""

    notes: tuple[str, ...] = ()
    """How the model was prompted, where that is not as the tasks say."""

    def report(self) -> str:
        """Return the table in the layout of the paper's Table 5, notes, and where records are."""
        parts = [self.model] if is_folder(self.model) else self.model.split("+")
        name = "+".join(Path(part).name if is_folder(part) else part for part in parts)
        table = render_table5(name, self.tasks, self.evaluations, self.skipped, self.notes)
        if not self.evaluations:
            return f"{table}\n\nNothing was evaluated."
        many = "task" if len(self.earlier) == 1 else "tasks"
        earlier = f" (and those of {len(self.earlier)} {many} of earlier calls)"
        wrapped = (textwrap.fill(f"Warning: {each}", 100) for each in self.problems)
        warnings = "".join(f"{each}\n\n" for each in wrapped)
        return (
            f"{warnings}{table}\n\nEvaluated by lm-eval on {describe_backend(self.backend)}.\n"
            f"Scores{earlier if self.earlier else ''}: {self.out / SCORES_FILE}"
        )


def evaluate_model(
    model: str,
    asked: Evaluate,
    *,
    languages: Sequence[str] = (),
    backend: BackendChoice = "auto",
    isolation: Isolation | None = None,
    out: Path | None = None,
    track: TrackerName | None = None,
    answers: Path | None = None,
) -> SuiteResult:
    """Evaluate one model on the suite; finished tasks with unchanged inputs stay.

    Args:
        model: a checkpoint folder, a hub id (``org/name`` or ``org/name@revision``), or either
            with a LoRA adapter: ``BASE+ADAPTER``.
        asked: tasks and settings. Without benchmarks, those of the paper; other tasks are asked
            alone unless languages or benchmarks are named too.
        languages: codes; none means those of the paper.
        backend: what evaluates.
        isolation: what holds generated programs; None skips the tasks that run them.
        out: folder for the records; None for `default_folder`.
        track: what the scores are sent to as well.
        answers: folder of the answers that runs share; None for that of all runs.

    Raises:
        InputError: for unknown languages or benchmarks, data that is missing (all of it in one
            message, before a model is loaded), a model that is not there, an adapter that cannot
            be streamed, a missing backend, or a folder that cannot be written or is another's.
        LayerSwapError: when a task fails; what was finished before it stays.
    """
    chosen, others = _chosen(asked, languages)
    expert = find_model(model)
    beside = None
    if expert.adapter is not None and is_lora(expert.adapter):  # of a kind that is not streamed
        read_changes(expert.adapter, read_checkpoint(model, expert.folder))
    else:
        beside = expert.adapter
    engine = resolve_backend(backend, beside)
    out = default_folder(model, engine, asked) if out is None else out
    check_folder(out, _NAME)
    names = [task.name for task in chosen if isolation or not task.executes_code] + others
    skipped = {task.name: NEEDS_CODE_EXECUTION for task in chosen if task.name not in names}
    if not names:
        return SuiteResult(model, engine, chosen, {}, skipped, (), out)
    study = Study(
        name=_NAME,
        question=f"What does {model} score?",
        baseline=("base",),
        experts=Pools(base=model, task=(model,), language=(model,)),
        evaluate=asked.model_copy(update={"tasks": tuple(names), "benchmarks": ()}),
    )
    options = RunOptions(
        experts=ExpertsFile(experts={model: model}),
        backend=engine,
        model=model,
        # An adapter's change is added to the base in a live engine, as in any study.
        materialize=expert.adapter is None,
        track=track,
        answers=answers,
        isolation=isolation,
    )
    result = run_file(StudyFile(Path(f"layerswap {_NAME}"), study), out, options)
    if result.summary.failed:
        raise LayerSwapError(f"{model}: {'; '.join(result.summary.failed.values())}")
    done = load_run(out)
    (cell,) = done.cells
    every = {task.task: task.evaluation.model_copy(update={"model": model}) for task in cell.tasks}
    found = {task: each for task, each in every.items() if task in result.tasks}
    earlier = tuple(task for task in every if task not in found)
    problems, notes = evaluation_problems(done), done.head.notes
    skipped |= cell.skipped
    return SuiteResult(model, engine, chosen, found, skipped, earlier, out, problems, notes)


def _chosen(asked: Evaluate, languages: Sequence[str]) -> tuple[tuple[Task, ...], list[str]]:
    """Return the tasks of the suite, and the names of the others."""
    suite = list_tasks()
    named = {task.name for task in suite if task.name in asked.tasks}
    if languages or asked.benchmarks or not asked.tasks:
        of_paper = (
            task
            for task in suite
            if (languages or task.language in PAPER_LANGUAGES)
            and (asked.benchmarks or task.benchmark in PAPER_BENCHMARKS)
        )
        named |= {task.name for task in choose(of_paper, languages, asked.benchmarks)}
    chosen = tuple(task for task in suite if task.name in named)
    return chosen, [name for name in asked.tasks if name not in named]


def default_folder(model: str, backend: Backend, asked: Evaluate) -> Path:
    """Return where records go by default: a folder named by model and protocol.

    What is no default is in the name, so that `scores.csv` of a quick look with a limit does not
    take the place of the whole run's.
    """
    options = asked.options
    protocol = asked.asked()
    words = {
        "limit": asked.limit,
        "dtype": options.dtype,
        "max-model-len": options.max_model_len,
        "asked": fingerprint_of(**protocol)[:8] if protocol else None,
    }
    parts = [f"{name}-{value}" for name, value in words.items() if value not in (None, "auto")]
    return DEFAULT_OUT / model.strip("/.").replace("/", "--") / "-".join([backend, *parts])
