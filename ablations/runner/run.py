"""`layerswap run` as a function, from a study file to a run folder."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ablations.engines.options import BackendChoice
from ablations.engines.work_size import TaskSize, measure_tasks
from ablations.machine.locks import try_claim
from ablations.machine.progress import Step, tell
from ablations.runner import records
from ablations.runner.board import ShowCell, Summary
from ablations.runner.cell_lines import show_scores
from ablations.runner.engines import EngineSetup
from ablations.runner.jobs import Start, in_processes, in_this_process, run_cells
from ablations.runner.results import write_results
from ablations.runner.stored_answers import default_answers
from ablations.runner.trackers import TrackerName, tracker
from ablations.runner.worker import LOCKS, now
from ablations.sandbox import Isolation
from ablations.scoring.records import EvaluationRequest
from ablations.study.cells import selected
from ablations.study.describe import counted, describe_plan
from ablations.study.documents import with_references
from ablations.study.experts import ExpertsFile, find_experts_file
from ablations.study.files import StudyFile, find_study, folder_words, read_study
from ablations.study.labels import cell_names
from ablations.study.planning import StudyPlan, plan_study
from ablations.tasks.catalog import SHIPPED_TASKS
from layerswap_method.errors import InputError, LayerSwapError

logger = logging.getLogger(__name__)

FINGERPRINTS = ".fingerprints.json"
"""File of a run folder with the hashes of its experts."""


@dataclass(frozen=True)
class RunOptions:
    """Options of the command line, besides the study."""

    experts: Path | str | ExpertsFile | None = None
    """The experts file (a path, or a shipped one by its name), or its content; None takes the
    study's own."""

    out: Path | None = None
    """The run folder; None is ``runs/NAME``, with the name of an experts file that is not the
    study's own and with what `settings` change of the scores: ``runs/NAME-EXPERTS-limit-50``."""

    backend: BackendChoice = "auto"
    """What evaluates."""

    executor: Literal["local", "ray"] = "local"
    """Where cells run."""

    address: str = "auto"
    """Of the Ray cluster."""

    jobs: int | None = None
    """Engines at once; None is one here, and one a GPU on a Ray cluster."""

    only: tuple[str, ...] = ()
    """Conditions NAME=VALUE on the cells; none for all."""

    materialize: bool = False
    """Whether every merge is written to disk by mergekit."""

    answers: Path | None = None
    """Folder of the answers that runs share; None is that of `default_answers`."""

    isolation: Isolation | None = None
    """What holds generated programs; None skips the tasks that run them."""

    read_tasks: bool = False
    """Whether a dry run loads the tasks of the study's own folder, which are programs."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the study, such as ``evaluate.limit``, and their values in place of the study's."""

    progress: bool | None = None
    """Whether to show what is being done; None shows it on a terminal only."""

    model: str | None = None
    """What the only cell is called while it runs; None goes by its name in a report."""

    show_scores: bool = False
    """Whether scores of a cell are printed on stdout when it has ended."""

    track: TrackerName | None = None
    """What the scores of every cell are sent to when it has ended."""


@dataclass(frozen=True)
class RunResult:
    """What a run has done, and where it is."""

    out: Path
    """The run folder."""

    summary: Summary
    """Cells by what became of them."""

    unfinished: int
    """Cells of the study that still have no record."""

    def report(self) -> str:
        """Return what was done, every failure with its reason, and what to do next."""
        done = self.summary
        parts = [f"{counted(len(done.evaluated), 'cell')} evaluated"]
        parts += [f"{len(done.before)} finished before"] if done.before else []
        lines = [f"{self.out}: {', '.join(parts)}, {len(done.failed)} failed"]
        failed: dict[str, list[str]] = {}
        for label, error in done.failed.items():
            failed.setdefault(error, []).append(label)
        for error, (first, *others) in failed.items():
            more = f" and {counted(len(others), 'more cell')}" if others else ""
            lines.append(f"  failed: {first}{more}: {error}")
        if done.failed:
            lines.append("Run the same command again to retry the cells that failed.")
        elif self.unfinished:
            left, has = counted(self.unfinished, "cell"), "has" if self.unfinished == 1 else "have"
            lines.append(f"{left} of the study {has} not been run yet.")
        lines.append(f"Tables and figures: layerswap report {self.out}")
        return "\n".join(lines)


def dry_run(study: str, options: RunOptions) -> str:
    """Return the cells of a study with their layers, and what running them would cost.

    Nothing is written, downloaded or run. Tokens are counted in data that is on this machine, of
    the tasks that ship with this package or lm-eval, and of others with `read_tasks`.

    Raises:
        InputError: with every problem of the study, or for a folder that is another's.
    """
    file, out = _opened(study, options)
    check_folder(out, file.study.name, dry=True)
    plan = _plan(file, options, out, dry=True)
    _check_same_experts(out, plan)
    keys = {key for cell in plan.cells for key in cell.records.values()}
    finished = {key for key in keys if records.is_finished(out, key)}
    chosen = selected(plan.cells, options.only)
    asked = {
        task: request
        for cell in chosen
        for task, request in cell.requests.items()
        if cell.records[task] not in finished
    }
    return describe_plan(
        plan,
        materialize=options.materialize,
        selected={cell.label for cell in chosen},
        finished=finished,
        sizes=_sizes(asked, plan, read_tasks=options.read_tasks),
    )


def _sizes(
    asked: Mapping[str, EvaluationRequest], plan: StudyPlan, *, read_tasks: bool
) -> dict[str, TaskSize | str]:
    """Return task -> its size. Loading a task runs what its file says: a dry run asks first."""
    foreign = {
        task: f"tasks of {request.include_path} are programs, which --read-tasks loads"
        for task, request in asked.items()
        if not read_tasks and request.include_path != SHIPPED_TASKS
    }
    own = [request for task, request in asked.items() if task not in foreign]
    return {**foreign, **measure_tasks(own, plan.base.folder, plan.options.max_model_len)}


def run_study(study: str, options: RunOptions) -> RunResult:
    """Run a study: finished work is reused, and a cell that fails does not stop the others.

    Raises:
        InputError: with every problem of the study, or for a folder that is another's.
    """
    file, out = _opened(study, options)
    check_folder(out, file.study.name)
    logger.info("planning %s", file.path)
    return run_file(file, out, options)


def run_file(file: StudyFile, out: Path, options: RunOptions) -> RunResult:
    """Run a study as it was read in the folder `out`, which `check_folder` has let pass.

    Raises:
        InputError: with every problem of the study.
    """
    shows: list[ShowCell] = []
    send = None if options.track is None else tracker(options.track)
    plan = _plan(file, options, out)
    for note in plan.notes:
        logger.info("  note: %s", note)
    cells = selected(plan.cells, options.only)
    head = _write_run_file(out, plan)
    what = f"{plan.study.name}: {counted(len(cells), 'cell')}"
    names = cell_names(head)
    if options.model is not None:
        names = dict.fromkeys(names, what := options.model)
    cells = [cell.model_copy(update={"label": names.get(cell.label, cell.label)}) for cell in cells]
    logger.info("%s on %s, in %s", what, plan.backend, out)
    setup = EngineSetup.of(
        plan,
        out,
        materialize=options.materialize,
        answers=(options.answers or default_answers(out)).absolute(),
    )
    if options.show_scores:
        shows.append(functools.partial(show_scores, metric=plan.study.report.metric))
    if send is not None:
        facts = {"study": plan.study.name, "out": str(out), "protocol": plan.protocol}
        shows.append(functools.partial(send, facts={**facts, **plan.versions}))
    try:
        summary = run_cells(
            out,
            cells,
            setup,
            protocol=plan.protocol,
            progress=options.progress,
            shows=shows,
            start=_start(options, plan.options.gpus),
        )
    finally:
        with contextlib.suppress(OSError, LayerSwapError):  # the records say it all the same
            write_results(out)
    return RunResult(out, summary, len(records.load_run(out).unfinished))


def _opened(study: str, options: RunOptions) -> tuple[StudyFile, Path]:
    """Return a study as far as it can be read, and its run folder."""
    tell(Step("reading the study"))
    file = read_study(find_study(study), options.settings)
    if options.out is not None:
        return file, options.out.absolute()
    own = file.study.experts_file
    other = None
    if isinstance(options.experts, (str, Path)):
        other = find_experts_file(str(options.experts)).resolve()
    if own is not None and other == (file.path.parent / own).resolve():
        other = None
    return file, default_out(file.study.name, other, options.settings).absolute()


def _plan(file: StudyFile, options: RunOptions, out: Path, *, dry: bool = False) -> StudyPlan:
    given = options.experts
    return plan_study(
        file,
        find_experts_file(str(given)) if isinstance(given, (str, Path)) else given,
        backend=options.backend,
        cache=out / FINGERPRINTS,
        dry=dry,
        here=options.executor == "local" and not dry,
        only=options.only,
        isolation=options.isolation,
        # A dry run reads the data where it counts the tokens.
        is_finished=None if dry else functools.partial(records.is_finished, out),
    )


def default_out(
    name: str, experts: Path | None = None, settings: Mapping[str, Any] | None = None
) -> Path:
    """Return the default run folder of the study `name`.

    Args:
        name: of the study.
        experts: the experts file, where it is not the study's own.
        settings: what the command line sets in the study.
    """
    own = [] if experts is None else [experts.stem]
    return Path("runs") / "-".join([name, *own, *folder_words(settings or {})])


def _start(options: RunOptions, gpus: int) -> Start:
    if options.executor == "ray":
        from ablations.runner.ray_jobs import on_cluster

        return functools.partial(on_cluster, address=options.address, jobs=options.jobs, gpus=gpus)
    if options.jobs in (None, 1):
        return in_this_process
    return functools.partial(in_processes, jobs=options.jobs, gpus=gpus)


def check_folder(out: Path, name: str, *, dry: bool = False) -> None:
    """Check that `out` may hold a run of the study `name`.

    Args:
        out: the run folder to be.
        name: of the study.
        dry: whether it need not be writable.

    Raises:
        InputError: when it holds something else, or cannot be a folder.
    """
    try:
        there = next(p for p in (out, *out.parents) if p.exists() or p.is_symlink())
    except OSError as error:
        raise InputError(f"{out}: {error.strerror}; choose another --out") from error
    if not there.is_dir():
        raise InputError(f"{there}: is not a folder; choose another --out")
    if not dry and not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"{there}: you have no permission to write there; choose another --out")
    head = records.read_run_file(out)
    if head is not None and head.study.name != name:
        raise InputError(
            f"{out}: holds a run of the study {head.study.name!r}, not of {name!r}; choose "
            "another --out"
        )
    if head is None and (found := sorted(path.name for path in out.glob("[!.]*"))):
        raise InputError(
            f"{out}: is not empty ({found[0]}) and is not a run folder; choose another --out"
        )


def _portable_source(source: str, out: Path) -> str:
    """Return where an expert is, its folders as seen from `out`: no place of this machine's."""
    parts = source.split("+")
    return "+".join(os.path.relpath(p, out) if Path(p).is_absolute() else p for p in parts)


def _check_same_experts(out: Path, plan: StudyPlan) -> records.RunFile | None:
    """Return the run file of a folder, whose cells are of the same experts in the same places.

    Raises:
        InputError: where a cell was of other experts; `evaluate` may put models into one folder.
    """
    known = records.read_run_file(out)
    if known is None or plan.study.recipe is None:
        return known
    before = {(cell.label, cell.weights_key): cell for cell in known.cells}
    changed = {label: cell for (label, _), cell in before.items()}
    for cell in plan.cells:
        if (cell.label, cell.weights_key) in before or cell.label not in changed:
            continue
        for role, name in cell.experts.items():
            was = known.experts.get(changed[cell.label].experts.get(role, ""))
            now = _portable_source(plan.experts[name].source, out)
            if was is not None and was != now:
                raise InputError(
                    f"{out}: holds a run of other experts ({role} was {was} and is now {now}); "
                    "choose another --out"
                )
    return known


def _write_run_file(out: Path, plan: StudyPlan) -> records.RunFile:
    known = _check_same_experts(out, plan)
    sources = {name: _portable_source(e.source, out) for name, e in plan.experts.items()}
    places = {expert.reference: sources[name] for name, expert in plan.experts.items()}
    head = records.RunFile(
        study=plan.study,
        experts=sources,
        cells=tuple(
            cell.model_copy(update={"merge": with_references(cell.merge, places), "request": None})
            for cell in plan.cells
        ),
        num_layers=plan.num_layers or None,
        protocol=plan.protocol,
        notes=plan.notes,
        created=now() if known is None else known.created,
        versions=dict(plan.versions),
    )
    if known == head:
        return head
    try:
        claim = try_claim(out / LOCKS, records.RUN_FILE)
        if claim is not None:  # else another runner is writing it
            records.write_run_file(out, head)
            claim.release()
    except OSError as error:
        raise LayerSwapError(f"{out}: cannot be written: {error}") from error
    return head
