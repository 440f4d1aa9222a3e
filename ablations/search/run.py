"""`layerswap search` as a function: a study run a round, and one on the items that report.

A search that was stopped goes on by the same call. Every round is a run folder whose answers are
stored, so what is done is read again, and each decision is computed again from it.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ablations.engines.backends import describe_start
from ablations.machine.whole_files import write_text
from ablations.runner.run import (
    RunOptions,
    RunResult,
    check_folder,
    default_answers,
    open_study,
    plan_of_run,
    run_file,
)
from ablations.runs.records import Run
from ablations.search.plan import (
    Search,
    make_search,
    read_search,
    with_comparators,
    write_search,
)
from ablations.search.result import (
    HELD_OUT,
    ROUNDS_FILE,
    Progress,
    SearchResult,
    load_search,
    read_progress,
    round_folder,
    scores_of_round,
    survivors,
)
from ablations.search.rounds import Bound, total, within_budget
from ablations.study.files import StudyFile
from ablations.study.planning import StudyPlan
from ablations.study.schema import Study
from ablations.tasks.names import task_name
from layerswap_method.errors import InputError, LayerSwapError, counted

logger = logging.getLogger(__name__)


def dry_run_of_search(
    study: str, options: RunOptions, budget: float | None = None
) -> tuple[str, Search]:
    """Return candidates, items and the most that a search costs, and the search; runs nothing.

    The data of the tasks is loaded, of which the split is made.

    Raises:
        InputError: with every problem of the study, or for a folder that is another's.
    """
    file, out = _opened(study, options)
    plan = plan_of_run(file, options, out, dry=True)
    search = make_search(plan, str(file.path))
    _check_same(out, search)
    return "\n".join(_described(search, plan, read_progress(out), budget)), search


def run_search(
    study: str | Mapping[str, Any], options: RunOptions, budget: float | None = None
) -> SearchResult:
    """Search the best setting of a study; finished work is reused.

    Args:
        study: a file, the name of a shipped study, or its content as a mapping.
        options: of every run; their `out` is the folder of the search.
        budget: minutes for all of it; None for no limit. After the first round, by whose rate it is
            known what is left, the last rounds that do not fit are left out.

    Raises:
        InputError: with every problem of the study, or for a folder that holds something else.
        LayerSwapError: where a model fails; the same call tries it again.
    """
    if budget is not None and not budget > 0:
        raise InputError(f"--budget is {budget:g}; give minutes above 0")
    file, out = _opened(study, options)
    plan = plan_of_run(file, options, out)
    search = make_search(plan, str(file.path))
    write_search(out, search)
    for line in _described(search, plan, read_progress(out), budget):
        logger.info("%s", line)
    answers = (options.answers or default_answers(out)).absolute()
    inner = dataclasses.replace(options, answers=answers, settings={}, only=(), show_scores=False)
    settings = (*file.settings, "evaluate.tasks", "evaluate.languages")

    def run(study: Study, folder: Path) -> Run:
        result = run_file(StudyFile(file.path, study, settings), folder, inner)
        _check_whole(result)
        return result.run

    names = [one.name for one in search.candidates]
    number, last = 1, len(search.rounds)
    while number <= last:
        folder = round_folder(out, number)
        done = run(search.study_of_round(number, names), folder)
        if number == 1:
            last = _write_progress(out, search, done, budget)
        scores = scores_of_round(search, done, number, is_last=number == last)
        names = survivors(scores)
        logger.info("round %d of %d: %s go on", number, last, ", ".join(names))
        number += 1
    run(search.study_of_report(names), out / HELD_OUT)
    return load_search(out)


def _opened(study: str | Mapping[str, Any], options: RunOptions) -> tuple[StudyFile, Path]:
    """Return a study with the comparators, and the folder of its search."""
    file, out = open_study(study, options)
    if options.out is None:
        out = out.parent / "search" / out.name
    if read_search(out) is None:
        check_folder(out, file.study.name)
    return with_comparators(file), out


def _check_same(out: Path, search: Search) -> None:
    if read_search(out) is not None:
        write_search(out, search)


def _check_whole(result: RunResult) -> None:
    if result.summary.failed:
        raise LayerSwapError(
            f"{result.report()}\nThe search goes on when all models of a round have their scores."
        )


def _write_progress(out: Path, search: Search, first: Run, budget: float | None) -> int:
    """Write how many rounds there are, by the first one's rate; return it."""
    earlier, parts = read_progress(out), search.bounds()
    rate = _rate(first) if earlier is None else earlier.rate
    rounds = len(search.rounds)
    if budget is not None:
        rounds = within_budget(search.rounds, parts, budget, rate)
    progress = Progress(
        rounds=rounds, budget=budget, seconds_of_answer=rate[0], seconds_of_load=rate[1]
    )
    write_text(out / ROUNDS_FILE, f"{progress.model_dump_json(indent=1)}\n")
    for line in _left(search, progress):
        logger.info("%s", line)
    return rounds


def _rate(run: Run) -> tuple[float, float]:
    """Return seconds of an answer and of a load, by what a run has answered itself."""
    records = {task.key: task for cell in run.cells for task in cell.tasks}
    new = [record for record in records.values() if not record.evaluation.answers_before]
    answers = sum(record.evaluation.scores[0].n for record in new)
    models = {record.weights_key for record in new}
    if not new:
        return 0.0, 0.0
    evaluate = sum(record.timing_s["evaluate"] for record in new)
    loading = sum(record.timing_s["total"] for record in new) - evaluate
    return evaluate / answers, loading / len(models)


def _described(
    search: Search, plan: StudyPlan, progress: Progress | None, budget: float | None
) -> Iterator[str]:
    """Yield a search in lines: items, candidates, rounds, cost."""
    parts, study = search.bounds(), search.study
    yield f"search {study.name}: {study.question}"
    chosen = search.choose_items[search.choose]
    reported = search.report_items[search.report]
    yield f"  chooses by {task_name(search.choose)} ({search.choose}): {len(chosen)} items"
    yield f"  reports {task_name(search.report)} ({search.report}): {len(reported)} items"
    for task, most in search.floors.items():
        yield f"  floor: {task_name(task)} ({task}) loses at most {most:g} points"
    for note in (*plan.notes, *search.notes):
        yield f"  note: {note}"
    yield ""
    settings = study.settings()
    yield (
        f"{counted(len(search.candidates), 'candidate')} of {counted(len(settings), 'setting')} "
        "(layers from the input side; █ language, ▒ average, · task):"
    )
    width = max(len(one.name) for one in search.candidates)
    for one in search.candidates:
        yield f"  {one.name:{width}}  {one.layers}".rstrip()
    yield ""
    yield "at most, without what is answered already:"
    for number, (stage, part) in enumerate(zip(search.rounds, parts, strict=False), 1):
        yield (
            f"  round {number}: {stage.candidates} candidates and the comparators, up to item "
            f"{stage.items}: {_cost(part)}; {stage.kept} go on"
        )
    yield f"  report: {search.rounds[-1].kept} candidates and the comparators: {_cost(parts[-1])}"
    yield (
        f"  in all: {_cost(total(parts))}, in {len(parts)} starts of an engine "
        f"({describe_start(plan.backend, plan.options)})"
    )
    if progress is None:
        yield "  minutes: known after the first round, by its rate"
    else:
        yield from _left(search, progress)
    if budget is not None:
        yield f"  budget: {budget:g} minutes; rounds that do not fit are left out, the last first"


def _left(search: Search, progress: Progress) -> Iterator[str]:
    """Yield how long what follows the first round takes at most."""
    parts = search.bounds()
    left = total([*parts[1 : progress.rounds], parts[-1]])
    minutes = progress.minutes(left)
    yield f"  after the first round: at most {minutes:.1f} minutes by its rate ({_cost(left)})"
    if progress.rounds < len(search.rounds):
        yield f"  {progress.cut_text(len(search.rounds))}"
    if progress.budget is not None and progress.minutes(total([parts[0], left])) > progress.budget:
        yield f"  the budget of {progress.budget:g} minutes does not cover even this"


def _cost(part: Bound) -> str:
    return f"{counted(part.answers, 'answer')}, {counted(part.loads, 'load')}"
