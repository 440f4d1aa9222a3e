"""`layerswap search` as a function: a study run a round, and one on the items that report.

A search that was stopped goes on by the same call. Every round is a run folder whose answers are
stored, so what is done is read again, and each decision is computed again from it.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ablations.drawing.text_table import wrapped
from ablations.engines.backends import describe_start
from ablations.machine.whole_files import write_text
from ablations.runner.run import (
    RunOptions,
    RunResult,
    answers_folder,
    check_folder,
    open_study,
    plan_of_run,
    run_study_file,
)
from ablations.runs.records import HELD_OUT, RUN_FILE, as_input_errors
from ablations.runs.run import Run, load_run
from ablations.search.plan import (
    Search,
    make_search,
    read_search,
    with_comparators,
    write_search,
)
from ablations.search.result import (
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
    _check_budget(budget)
    file, out = _opened(study, options)
    plan = plan_of_run(file, options, out, dry=True)
    search = make_search(plan, str(file.path))
    _check_same(out, search)
    return "\n".join(_described(search, plan, out, budget)), search


def run_search(
    study: str | Mapping[str, Any], options: RunOptions, budget: float | None = None
) -> SearchResult:
    """Search the best setting of a study; finished work is reused.

    Args:
        study: a file, the name of a shipped study, or its content as a mapping.
        options: of every run; their `out` is the folder of the search.
        budget: minutes for all of it; None for no limit. The base answers first, by whose rate it
            is known what fits; the last rounds that do not are left out.

    Raises:
        InputError: with every problem of the study, or for a folder that holds something else.
        LayerSwapError: where a model fails; the same call tries it again. Also where the budget is
            too small for one round and the report.
    """
    _check_budget(budget)
    file, out = _opened(study, options)
    plan = plan_of_run(file, options, out)
    search = make_search(plan, str(file.path))
    write_search(out, search)
    for line in _described(search, plan, out, budget):
        logger.info("%s", line)
    answers = answers_folder(options, out)
    inner = dataclasses.replace(options, answers=answers, settings={}, only=(), show_scores=False)
    settings = (*file.settings, "evaluate.tasks", "evaluate.languages")

    def run(study: Study, folder: Path, only: tuple[str, ...] = ()) -> Run:
        opened = StudyFile(file.path, study, settings)
        result = run_study_file(opened, folder, dataclasses.replace(inner, only=only))
        _check_whole(result)
        return result.run

    names = [one.name for one in search.candidates]
    if budget is not None:
        first = run(search.study_of_round(1, names), round_folder(out, 1), ("kind=base",))
        progress = _progress(search, [first], budget)
        if progress.rounds == 0:
            raise LayerSwapError(progress.too_small_text(search.bounds()))
    runs = list[Run]()
    number, last = 1, len(search.rounds)
    while number <= last:
        runs.append(run(search.study_of_round(number, names), round_folder(out, number)))
        progress = _progress(search, runs, budget)
        write_text(out / ROUNDS_FILE, f"{progress.model_dump_json(indent=1)}\n")
        last = progress.rounds
        for line in _left(search, progress, [*_parts_left(search, out)][number:]):
            logger.info("%s", line)
        scores = scores_of_round(search, runs[-1], number, is_last=number == last)
        names = survivors(scores)
        logger.info("round %d of %d: %s go on", number, last, ", ".join(names))
        number += 1
    run(search.study_of_report(names), out / HELD_OUT)
    return load_search(out)


def _check_budget(budget: float | None) -> None:
    if budget is not None and not budget > 0:
        raise InputError(f"--budget is {budget:g}; give minutes above 0")


def _opened(study: str | Mapping[str, Any], options: RunOptions) -> tuple[StudyFile, Path]:
    """Return a study with the comparators, and the folder of its search."""
    file, out = open_study(study, options)
    if options.out is None:
        out = out.parent / "search" / out.name
    if read_search(out) is None:
        check_folder(out, file.study.name, answers_folder(options, out))
    return with_comparators(file), out


def _check_same(out: Path, search: Search) -> None:
    if read_search(out) is not None:
        write_search(out, search)


def _check_whole(result: RunResult) -> None:
    if result.summary.failed:
        raise LayerSwapError(
            f"{result.summary_text()}\n"
            "The search goes on when all models of a round have their scores."
        )


def _progress(search: Search, runs: Sequence[Run], budget: float | None) -> Progress:
    """Return the rate of the runs of a search so far, and how many rounds it leaves in a budget.

    At least the rounds that have ended; of one that has not, 0 where the budget is too small.
    """
    rate, rounds = _rate(runs), len(search.rounds)
    if budget is not None and rate is not None:
        ended = sum(not run.unfinished for run in runs)
        rounds = max(ended, within_budget(search.rounds, search.bounds(), budget, rate))
    answer, load = rate or (None, None)
    return Progress(rounds=rounds, budget=budget, seconds_of_answer=answer, seconds_of_load=load)


def _rate(runs: Sequence[Run]) -> tuple[float, float] | None:
    """Return seconds of an answer and of a load, by the new answers of runs; None without any."""
    records = {key: record for run in runs for key, record in run.records.items()}
    new = {
        key: record.evaluation.scores[0].n - record.evaluation.answers_before
        for key, record in records.items()
        if record.evaluation.scores[0].n > record.evaluation.answers_before
    }
    if not new:
        return None
    times = [records[key].timing_s for key in new]
    models = {(records[key].weights_key, records[key].protocol) for key in new}
    evaluate = sum(time["evaluate"] for time in times)
    loading = sum(time["total"] for time in times) - evaluate
    return evaluate / sum(new.values()), loading / len(models)


def _parts_left(search: Search, out: Path) -> Iterator[Bound]:
    """Yield the most that is left of each round and of the report, which have a folder each."""
    folders = [round_folder(out, number) for number in range(1, len(search.rounds) + 1)]
    parts = zip((*folders, out / HELD_OUT), search.bounds(), search.new_items(), strict=True)
    for folder, part, new_items in parts:
        if not (folder / RUN_FILE).is_file():
            yield part
            continue
        run = load_run(folder)
        if not run.unfinished:
            yield Bound(0, 0)
            continue
        models = {cell.weights_key for cell in run.head.cells}
        models -= {cell.weights_key for cell in run.unfinished}
        answers = sum(new_items[record.task] for record in run.records.values())
        yield Bound(max(0, part.answers - answers), max(0, part.loads - len(models)))


def _described(search: Search, plan: StudyPlan, out: Path, budget: float | None) -> Iterator[str]:
    """Yield a search in lines: items, candidates, rounds, what is left of its cost."""
    with as_input_errors():
        study, parts = search.study, [*_parts_left(search, out)]
    progress = read_progress(out)
    yield f"search {study.name}: {study.question}"
    chosen = search.choose_items[search.choose]
    reported = search.report_items[search.report]
    yield f"  chooses by {task_name(search.choose)} ({search.choose}): {len(chosen)} items"
    yield f"  reports {task_name(search.report)} ({search.report}): {len(reported)} items"
    for task, most in search.floors.items():
        yield f"  floor: {task_name(task)} ({task}) loses at most {most:g} points"
    for note in (*plan.notes, *search.equal, *search.notes):
        yield wrapped(f"note: {note}", first="  ", indent="    ")
    if plan.needs:
        yield "  note: settings of equal weights are seen when the experts are downloaded"
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
    yield "cost, at most (answers that another run has stored are not asked again):"
    for number, (stage, part) in enumerate(zip(search.rounds, parts, strict=False), 1):
        yield (
            f"  round {number}: {stage.candidates} candidates and the comparators, up to item "
            f"{stage.items}: {_cost(part)}; {stage.kept} go on"
        )
    yield f"  report: {search.rounds[-1].kept} candidates and the comparators: {_cost(parts[-1])}"
    starts = sum(part != Bound(0, 0) for part in parts)
    if starts:
        yield (
            f"  in all: {_cost(total(parts))}, in {counted(starts, 'start')} of an engine "
            f"({describe_start(plan.backend, plan.options)})"
        )
    if progress is not None:
        yield from _left(search, progress, parts)
    elif starts:
        yield "  minutes: known after the first round, by its rate"
    if budget is not None:
        yield (
            f"  budget: {budget:g} minutes; rounds that do not fit are left out, the last first, "
            "and nothing runs but the base where one round and the report do not fit"
        )


def _left(search: Search, progress: Progress, parts: Sequence[Bound]) -> Iterator[str]:
    """Yield how long the last `parts` of a search take at most."""
    before = len(search.rounds) + 1 - len(parts)
    left = total([*parts[: max(0, progress.rounds - before)], parts[-1]])
    if left == Bound(0, 0):
        return
    minutes = progress.minutes(left)
    if minutes is None:
        yield f"  left: {_cost(left)}; minutes are not known, as every answer so far was stored"
    else:
        yield f"  left: at most {minutes:.1f} minutes by the rate so far ({_cost(left)})"
    if progress.rounds < len(search.rounds):
        yield f"  {progress.cut_text(len(search.rounds))}"


def _cost(part: Bound) -> str:
    if part == Bound(0, 0):
        return "done"
    return f"{counted(part.answers, 'answer')}, {counted(part.loads, 'load')}"
