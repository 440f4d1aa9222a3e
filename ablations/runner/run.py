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
from ablations.engines.task_loading import check_data
from ablations.machine.fingerprint import HASHES
from ablations.machine.progress import Step, show_step
from ablations.runner.jobs import (
    Start,
    Summary,
    in_processes,
    in_this_process,
    run_cells,
    show_scores,
)
from ablations.runner.study_engine import SharedEngine, StudyEngine
from ablations.runner.work import now
from ablations.runs import records
from ablations.runs.collect import collect
from ablations.runs.run import Run, holds_copy, load_run
from ablations.sandbox import Isolation
from ablations.study.cells import Cell, missing_tasks, selected
from ablations.study.describe import describe_study_plan
from ablations.study.documents import with_references
from ablations.study.files import ExpertsFile, StudyFile, find_file, folder_words, open_study_file
from ablations.study.planning import StudyPlan, plan_study
from layerswap_method.errors import InputError, LayerSwapError, counted
from layerswap_method.methods.read import read_recipe

logger = logging.getLogger(__name__)


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
    executor: Literal["local", "ray"] = "local"
    address: str = "auto"
    """Address of the Ray cluster."""

    jobs: int | None = None
    """Engines at once; None is one on this machine, and one per GPU on a Ray cluster."""

    only: tuple[str, ...] = ()
    """Conditions NAME=VALUE on the cells; none for all."""

    materialize: bool = False
    """Whether every merge is written to disk by mergekit."""

    answers: Path | None = None
    """Folder of the answers that runs share; None is that of `default_answers_folder`."""

    isolation: Isolation | None = None
    """Sandbox of generated programs; None skips the tasks that run them."""

    download: str | None = None
    """What to fetch of models of the hub, a `hub.downloads.Download`; None: the environment's."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the study, such as ``evaluate.limit``, and their values in place of the study's."""

    shared: SharedEngine | None = None
    """The live engine of several calls in this process; None is one of this call alone."""

    keep_earlier_tasks: bool = False
    """Whether the run folder keeps the tasks that an earlier call evaluated with the same protocol,
    as that of one model does."""

    show_scores: bool = False
    """Whether scores of a cell are printed on stdout when it has ended."""


@dataclass(frozen=True)
class RunResult:
    """The outcome of a run."""

    run: Run
    """Its folder with the plan of this call: another call may have replaced `run.json` since."""

    summary: Summary

    tasks: frozenset[str]
    """The tasks that were to be evaluated."""

    def summary_text(self) -> str:
        """Return what was done, every failure with its reason, and what to do next."""
        done, out, unfinished = self.summary, self.run.path, len(self.run.unfinished)
        before = f", {len(done.before)} finished before" if done.before else ""
        counts = f"{counted(len(done.evaluated), 'cell')} evaluated{before}"
        lines = [f"{out}: {counts}, {len(done.failed)} failed"]
        failed: dict[str, list[str]] = {}
        for label, error in done.failed.items():
            failed.setdefault(error, []).append(label)
        for error, (first, *others) in failed.items():
            more = f" and {counted(len(others), 'more cell')}" if others else ""
            lines.append(f"  failed: {first}{more}: {error}")
        if done.failed:
            lines.append("Run the same command again to retry the cells that failed.")
        elif unfinished:
            lines.append(f"Not run yet: {counted(unfinished, 'cell')} of the study.")
        lines.append(f"Tables and figures: layerswap report {out}")
        return "\n".join(lines)


def dry_run(study: str, options: RunOptions) -> tuple[str, StudyPlan]:
    """Return the cells of a study with their layers and what running them would cost; its plan.

    Nothing is written or run; of models of the hub, config, tokenizer and the headers of the
    weights are fetched. No task is loaded.

    Raises:
        InputError: with every problem of the study, or for a folder that is another's.
    """
    file, out = open_study(study, options)
    check_folder(out, file.study.name, answers_folder(options, out), dry=True)
    plan = plan_of_run(file, options, out, dry=True)
    cells = selected(plan.cells, options.only)
    left = records.unfinished_records(out, cells)
    text = describe_study_plan(plan, cells, materialize=options.materialize, missing=left)
    return text, plan


def run_study(study: str | Mapping[str, Any], options: RunOptions) -> RunResult:
    """Run a study: finished work is reused, and a cell that fails does not stop the others.

    `study` is as in `open_study_file`.

    Raises:
        InputError: with every problem of the study, or for a folder that is another's.
    """
    file, out = open_study(study, options)
    logger.info("planning %s", file.path)
    return run_study_file(file, out, options)


def run_study_file(file: StudyFile, out: Path, options: RunOptions) -> RunResult:
    """Run a study that was read, in the run folder `out`.

    Raises:
        InputError: with every problem of the study, or for a folder that is another's.
    """
    check_folder(out, file.study.name, answers_folder(options, out))
    plan = plan_of_run(file, options, out)
    records.remove_damaged(out, {key for cell in plan.cells for key in cell.record_keys.values()})
    cells = selected(plan.cells, options.only)
    # Missing data is reported before anything runs.
    check_data(missing_tasks(cells, records.unfinished_records(out, cells)).values())
    for note in plan.notes:
        logger.info("  note: %s", note)
    head = write_plan(out, plan, keep_earlier_tasks=options.keep_earlier_tasks)
    title = f"{plan.study.name}: {counted(len(cells), 'cell')}"
    if plan.study.recipe is None and len(plan.cells) == 1:  # a study of one model
        title = cells[0].label
    logger.info("%s on %s, in %s", title, plan.backend, out)

    show = functools.partial(show_scores, metric=plan.study.report.metric)
    try:
        summary = run_cells(
            out,
            cells,
            functools.partial(
                StudyEngine,
                plan,
                out,
                answers_folder(options, out),
                materialize=options.materialize,
                shared=options.shared,
            ),
            protocol_key=plan.protocol_key,
            show=show if options.show_scores else None,
            start=_start(options, plan.options.gpus),
        )
    finally:
        run = _collect_what_is_there(out)
    if run is None or run.head != head:
        run = load_run(out, head)
    tasks = frozenset(task for cell in cells for task in cell.record_keys)
    return RunResult(run, summary, tasks)


def _collect_what_is_there(out: Path) -> Run | None:
    """Write the tables of a run folder, and return what they were made of.

    This is done however the workers ended: after Ctrl-C or a failure, too, a report shows what is
    finished. None where a record is damaged or the tables cannot be written: the records hold all
    of it, and the next run writes the tables.
    """
    with contextlib.suppress(OSError, LayerSwapError):
        run = load_run(out)
        collect(run)
        return run
    return None


def open_study(study: str | Mapping[str, Any], options: RunOptions) -> tuple[StudyFile, Path]:
    """Return a study as far as it can be read, and its run folder."""
    show_step(Step("reading the study"))
    file = open_study_file(study, options.settings)
    if options.out is not None:
        return file, options.out.absolute()
    stated, other = file.experts_file, None
    if isinstance(options.experts, (str, Path)):
        other = find_file(str(options.experts), "experts").resolve()
    if stated is not None and other == stated.resolve():
        other = None
    return file, default_out(file.study.name, other, options.settings).absolute()


def plan_of_run(file: StudyFile, options: RunOptions, out: Path, *, dry: bool = False) -> StudyPlan:
    """Return the plan of a study for the run folder `out`; see `plan_study`."""
    experts = options.experts
    return plan_study(
        file,
        find_file(str(experts), "experts") if isinstance(experts, (str, Path)) else experts,
        backend=options.backend,
        hashes=answers_folder(options, out) / HASHES,
        dry=dry,
        is_engine_local=options.executor == "local" and not dry,
        jobs=options.jobs or 1,
        only=options.only,
        isolation=options.isolation,
        download=options.download,
    )


def default_out(
    name: str, experts: Path | None = None, settings: Mapping[str, Any] | None = None
) -> Path:
    """Return the default run folder of the study `name`; see `RunOptions.out`."""
    names = [name] if experts is None else [name, experts.stem]
    return Path("runs") / "-".join([*names, *folder_words(settings or {})])


def default_answers_folder(out: Path) -> Path:
    """Return the default folder of stored answers for the run folder `out`."""
    runs = Path("runs").absolute()
    return (runs if runs in out.absolute().parents else out.parent) / "answers"


def answers_folder(options: RunOptions, out: Path) -> Path:
    """Return the folder of stored answers for the run folder `out`, absolute."""
    return (options.answers or default_answers_folder(out)).absolute()


def _start(options: RunOptions, gpus: int) -> Start:
    if options.executor == "ray":
        from ablations.runner.ray_jobs import on_cluster

        return functools.partial(on_cluster, address=options.address, jobs=options.jobs, gpus=gpus)
    if options.jobs in (None, 1):
        return in_this_process
    return functools.partial(in_processes, jobs=options.jobs, gpus=gpus)


def check_folder(out: Path, name: str, answers: Path, *, dry: bool = False) -> None:
    """Check that `out` may hold a run of the study `name`, and be written unless it is `dry`.

    `answers` is the folder of its stored answers, which an earlier call may have begun in it.

    Raises:
        InputError: when it holds something else, or cannot be a folder.
    """
    try:
        there = next(p for p in (out, *out.parents) if p.exists() or p.is_symlink())
    except OSError as error:
        raise InputError(f"{out}: {error.strerror}; choose another --out") from error
    head, fault = records.read_run_file(out) if there.is_dir() else None, ""
    if not there.is_dir():
        out, fault = there, "is not a folder"
    elif not dry and not os.access(there, os.W_OK | os.X_OK):
        out, fault = there, "you have no permission to write there"
    elif head is not None and head.study.name != name:
        fault = f"holds a run of the study {head.study.name!r}, not of {name!r}"
    elif head is None and (others := {*out.absolute().glob("[!.]*")} - {answers}):
        fault = f"is not empty ({min(others).name}) and is not a run folder"
    elif head is not None and holds_copy(out) and load_run(out).cells:
        fault = "is a copy for readers, without records"
    if fault:
        raise InputError(f"{out}: {fault}; choose another --out")


def write_plan(out: Path, plan: StudyPlan, *, keep_earlier_tasks: bool = False) -> records.RunFile:
    """Write a plan as `run.json`, without places of this machine.

    With `keep_earlier_tasks`, models keep those that were evaluated under the same protocol.
    """
    earlier = records.read_run_file(out)
    before, languages = dict[str, dict[str, str]](), dict[str, str]()
    if keep_earlier_tasks and earlier is not None and earlier.protocol == plan.protocol_key:
        before = {cell.weights_key: cell.record_keys for cell in earlier.cells}
        languages = earlier.task_languages
    sources = {name: _portable_source(e.source, out) for name, e in plan.experts.items()}
    places = {expert.reference: sources[name] for name, expert in plan.experts.items()}
    cells = []
    for cell in plan.cells:
        keys = dict(cell.record_keys)
        for task, key in before.get(cell.weights_key, {}).items():
            keys.setdefault(task, key)
        recipe = read_recipe(with_references(cell.recipe.document, places))
        cells.append(
            Cell(
                **(cell.expanded() | {"recipe": recipe}),
                weights_key=cell.weights_key,
                record_keys=keys,
                skipped=cell.skipped,
            )
        )
    study = plan.study.with_folders(lambda p: Path(os.path.relpath(p.resolve(), out.resolve())))
    pools = study.experts.model_copy(update={"places": {}})
    head = records.RunFile.of_cells(
        study=study.model_copy(update={"experts": pools}),
        experts=sources,
        cells=cells,
        num_layers=plan.num_layers or None,
        protocol=plan.protocol_key,
        notes=plan.notes,
        created=now() if earlier is None else earlier.created,
        versions=dict(plan.versions),
        task_languages={**languages, **plan.task_languages},
    )
    if earlier is not None and earlier != head and (names := _no_longer_shown(earlier, head, out)):
        logger.warning(
            "%s: %s: finished there, and not part of this study, so no longer in scores.csv or in "
            "a report; the records stay, and another --out keeps both",
            out,
            ", ".join(names),
        )
    if earlier != head:
        try:
            records.write_run_file(out, head)
        except OSError as error:
            raise LayerSwapError(f"{out}: cannot be written: {error}") from error
    return head


def _no_longer_shown(earlier: records.RunFile, head: records.RunFile, out: Path) -> list[str]:
    """Return the names of cells with records that an earlier call had and this one has not.

    A model of new weights replaces the one of its name only if it is of the same place.
    """
    places = earlier.experts.items() & head.experts.items()
    labels = {label for model in head.models for label in model.cells}
    shown = {
        cell.label
        for cell in earlier.cells
        if cell.label in labels
        and places >= {(n, earlier.experts[n]) for n in cell.experts.values()}
    }
    weights = {cell.weights_key for cell in head.cells}  # of models that have a new name
    return [
        cell.label
        for cell in earlier.cells
        if cell.label not in shown
        and cell.weights_key not in weights
        and any(records.record_file(out, key).is_file() for key in cell.record_keys.values())
    ]


def _portable_source(source: str, out: Path) -> str:
    """Return where an expert is, its folders as seen from `out`; a link keeps its own name."""
    out = out.resolve()

    def seen(part: str) -> str:
        path = Path(part)
        is_here = path.is_absolute()
        return os.path.relpath(path.parent.resolve() / path.name, out) if is_here else part

    return "+".join(map(seen, source.split("+")))
