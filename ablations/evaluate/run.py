"""The paper's benchmarks on one model: a study of one unmerged model, and its Table 5.

The run folder is that of any study (`ablations.runner.records`): what is finished is not asked
again, and one more language or benchmark asks only that.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from ablations.engines.backends import describe_backend, resolve_backend
from ablations.engines.options import BackendChoice, EngineOptions
from ablations.engines.task_choice import NEEDS_CODE_EXECUTION
from ablations.evaluate.table5 import render_table5
from ablations.models.find import find_model
from ablations.runner.problems import evaluation_problems
from ablations.runner.records import SCORES_FILE, latest_records, load_run
from ablations.runner.run import RunOptions, check_folder, run_file
from ablations.runner.trackers import TrackerName
from ablations.sandbox import Isolation
from ablations.scoring.protocol import Protocol
from ablations.scoring.records import Backend, Evaluation, Seed
from ablations.study.experts import ExpertsFile
from ablations.study.files import StudyFile
from ablations.study.schema import Evaluate, Pools, Study
from ablations.tasks.catalog import PAPER_BENCHMARKS, PAPER_LANGUAGES, Task, choose, list_tasks
from layerswap_method.checkpoint.checkpoint import read_checkpoint
from layerswap_method.checkpoint.lora import is_lora, read_changes
from layerswap_method.errors import LayerSwapError
from layerswap_method.frozen import Frozen
from layerswap_method.recipe.references import is_folder

DEFAULT_OUT = Path("runs/evaluate")
_NAME = "evaluate"


class SuiteRequest(Frozen):
    """What to ask, and how."""

    languages: tuple[str, ...] = ()
    """Language codes; none asks those of the paper."""

    benchmarks: tuple[str, ...] = ()
    """Short names of benchmarks; none asks those of the paper."""

    tasks: tuple[str, ...] = ()
    """Other tasks by lm-eval's names; alone unless languages or benchmarks are named too."""

    include_path: Path | None = None
    """Folder of task files in which `tasks` are looked for before lm-eval's own."""

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

    protocol: Protocol = Protocol()
    """Chat template, thinking, sampling and repeats."""

    allow_code_execution: bool = False
    """Whether generated programs may be run."""

    code_isolation: Isolation = "bwrap"
    """What holds generated programs; none where the container is the sandbox."""


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
    """Task name -> why it was not asked."""

    earlier: tuple[str, ...]
    """Other tasks that the folder has scores of, from calls before."""

    out: Path
    """The run folder."""

    problems: tuple[str, ...] = ()
    """What is wrong with the evaluation itself; see `ablations.runner.problems`."""

    notes: tuple[str, ...] = ()
    """How the model was asked, where that is not as the tasks say."""

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
    request: SuiteRequest,
    out: Path | None = None,
    track: TrackerName | None = None,
    answers: Path | None = None,
) -> SuiteResult:
    """Evaluate one model on the suite; finished tasks with unchanged inputs are not asked again.

    Args:
        model: a checkpoint folder, a hub id (``org/name`` or ``org/name@revision``), or either
            with a LoRA adapter: ``BASE+ADAPTER``.
        request: what to ask.
        out: folder for the records; None for `default_folder`.
        track: what the scores are sent to as well.
        answers: folder of the answers that runs share; None for that of all runs.

    Raises:
        InputError: for unknown languages or benchmarks, data that is missing (all of it in one
            message, before a model is loaded), a model that is not there, an adapter that cannot
            be streamed, a missing backend, or a folder that cannot be written or is another's.
        LayerSwapError: when a task fails; what was finished before it stays.
    """
    chosen, others = _chosen(request)
    expert = find_model(model)
    beside = None
    if expert.adapter is not None and is_lora(expert.adapter):  # of a kind that is not streamed
        read_changes(expert.adapter, read_checkpoint(model, expert.folder))
    else:
        beside = expert.adapter
    backend = resolve_backend(request.backend, beside)
    out = default_folder(model, backend, request) if out is None else out
    check_folder(out, _NAME)
    may_run = request.allow_code_execution
    asked = [task.name for task in chosen if may_run or not task.executes_code] + others
    skipped = {task.name: NEEDS_CODE_EXECUTION for task in chosen if task.name not in asked}
    if not asked:
        return SuiteResult(model, backend, chosen, {}, skipped, (), out)
    study = Study(
        name=_NAME,
        question=f"What does {model} score?",
        baseline=("base",),
        experts=Pools(base=model, task=(model,), language=(model,)),
        evaluate=Evaluate(
            **dict(request.protocol),
            tasks=tuple(asked),
            include_path=None if request.include_path is None else str(request.include_path),
            data_dir=None if request.data_dir is None else str(request.data_dir),
            limit=request.limit,
            seed=request.seed,
            options=request.options,
        ),
    )
    options = RunOptions(
        experts=ExpertsFile(experts={model: model}),
        backend=backend,
        model=model,
        # An adapter's change is added to the base in a live engine, as in any study.
        materialize=expert.adapter is None,
        track=track,
        answers=answers,
        isolation=request.code_isolation if may_run else None,
    )
    result = run_file(StudyFile(Path(f"layerswap {_NAME}"), study, ()), out, options)
    if result.summary.failed:
        raise LayerSwapError(f"{model}: {'; '.join(result.summary.failed.values())}")
    done = load_run(out)
    (cell,) = done.cells
    found = {task.task: task.evaluation.model_copy(update={"model": model}) for task in cell.tasks}
    earlier = tuple(task for task in latest_records(done)[cell.label] if task not in found)
    problems, notes = evaluation_problems(done), done.head.notes
    skipped |= cell.skipped
    return SuiteResult(model, backend, chosen, found, skipped, earlier, out, problems, notes)


def _chosen(request: SuiteRequest) -> tuple[tuple[Task, ...], list[str]]:
    """Return the tasks of the suite, and the names of the others."""
    suite = list_tasks()
    names = {task.name for task in suite}
    named = [task for task in suite if task.name in request.tasks]
    by_kind: tuple[Task, ...] = ()
    if request.languages or request.benchmarks or not request.tasks:
        of_paper = (
            task
            for task in suite
            if (request.languages or task.language in PAPER_LANGUAGES)
            and (request.benchmarks or task.benchmark in PAPER_BENCHMARKS)
        )
        by_kind = choose(of_paper, request.languages, request.benchmarks)
    chosen = tuple(task for task in suite if task in named or task in by_kind)
    return chosen, [name for name in request.tasks if name not in names]


def default_folder(model: str, backend: Backend, request: SuiteRequest) -> Path:
    """Return where the records go unless the user says: a folder of the model's and protocol's.

    So `scores.csv` of a quick look with a limit does not take the place of the whole run's:
    what is no default is in the name.
    """
    options = request.options
    asked = {"limit": request.limit, "dtype": options.dtype, "max-model-len": options.max_model_len}
    words = [f"{name}-{value}" for name, value in asked.items() if value not in (None, "auto")]
    name = "-".join([backend, *words, *request.protocol.words()])
    return DEFAULT_OUT / model.strip("/.").replace("/", "--") / name
