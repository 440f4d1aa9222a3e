"""Evaluations that went wrong without an error.

A task on which every model scores 0 compares nothing, and often its prompt or its filter is at
fault. Reports say so before any score.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ablations.engines.task_loading import lm_eval_file
from ablations.runner.records import CellRecord, Run
from ablations.scoring.observed import PROMPT_TRUNCATED
from ablations.scoring.records import EvaluationRequest, TaskScore
from ablations.statistics.as_text import percent
from ablations.study.cells import task_folder
from ablations.study.identity import record_key
from ablations.tasks.contents import TaskContents

MOST_CUT = 0.5
"""Share of cut prompts from which the scores of a task are not those of the task."""


def evaluation_problems(run: Run) -> tuple[str, ...]:
    """Return what is wrong with the evaluation itself, a text a problem: what, where, what to do.

    Empty where nothing is. Looked for are tasks that have changed since they were scored, prompts
    that did not fit the model, filters that find no answer, empty answers, and tasks on which every
    model scores 0.
    """
    tasks = dict.fromkeys(score.task for cell in run.cells for score in cell.scores)
    found = list(_changed(run))
    for task in tasks:
        cells = [cell for cell in run.cells if any(s.task == task for s in cell.scores)]
        found += [*_cut(task, cells), *_zero(task, cells, run.study.report.metric)]
    return tuple(found)


def _changed(run: Run) -> Iterator[str]:
    """Yield the tasks whose files, data or scoring are not those of the records. Loads no task."""
    evaluate = run.study.evaluate
    folder, cells = task_folder(evaluate), {k: c for c in run.cells for k in c.records.items()}
    if run.is_copy or not cells or not folder.is_dir():
        return
    data_dir = None if evaluate.data_dir is None else Path(evaluate.data_dir).absolute()
    names = tuple(dict.fromkeys(task for task, _ in cells))
    request = EvaluationRequest(tasks=names, include_path=folder, data_dir=data_dir)
    contents = TaskContents(request.folders, data_dir, elsewhere=lm_eval_file)
    changed = dict.fromkeys(
        task
        for (task, key), cell in cells.items()
        if key != record_key(cell.weights_key, run.head.protocol, task, contents, run.head.versions)
    )
    for task in changed:
        yield (
            f"{task}: its file, its data or how it is scored has changed since. Run the study "
            "again: it scores the stored answers anew, and the model gets only new prompts."
        )


def _cut(task: str, cells: Sequence[CellRecord]) -> Iterator[str]:
    shares = [
        (score.value, cell)
        for cell in cells
        for score in cell.scores
        if (score.task, score.metric) == (task, PROMPT_TRUNCATED) and score.value >= MOST_CUT
    ]
    if shares:
        yield (
            f"{task}: up to {percent(max(share for share, _ in shares))} % of the prompts were too "
            f"long for the model and lost their beginning{_where([c for _, c in shares], cells)}. "
            "The scores are not those of the task. Raise max_model_len, or use a model with a "
            "longer context or a task with fewer examples."
        )


def _zero(task: str, cells: Sequence[CellRecord], metric: str | None) -> Iterator[str]:
    """Yield what is wrong where scores are 0; nothing where only some are, for no plain reason."""
    zeros = []
    for cell in cells:
        score = _shown(cell, task, metric)
        if score.higher_is_better and score.is_share and score.value == 0:
            record = next(each for each in cell.tasks if each.task == task)
            zeros.append((cell, score, record.no_answers.get(score.filter), record.provenance))
    plain = [each for each in zeros if each[2]]
    if not zeros or (len(zeros) < len(cells) and not plain):
        return
    named = plain if plain and len(plain) < len(zeros) < len(cells) else zeros
    _, score, reason, provenance = (plain or zeros)[0]
    reason = reason or f"every answer is wrong ({score.metric} is 0 on all {score.n} items)"
    texts = " and ".join(provenance.get("texts", ())) or "the folder of answers"
    yield (
        f"{task}: {reason}{_where([cell for cell, *_ in named], cells)}. "
        f"{_better(cells, task, score)}Nothing can be concluded from this score. Compare the "
        f"prompts and responses in {texts} with the task file."
    )


def _better(cells: Sequence[CellRecord], task: str, shown: TaskScore) -> str:
    """Return what another filter finds, as a sentence; empty where none finds more."""
    others = [
        score
        for cell in cells
        for score in cell.scores
        if (score.task, score.metric) == (task, shown.metric) and score.filter != shown.filter
    ]
    best = max(others, key=lambda score: score.value, default=None)
    if best is None or best.value == 0:
        return ""
    return f"The filter {best.filter} gives up to {percent(best.value)} %. "


def _shown(cell: CellRecord, task: str, metric: str | None) -> TaskScore:
    scores = [score for score in cell.scores if score.task == task]
    return next((score for score in scores if score.metric == metric), scores[0])


def _where(some: Sequence[CellRecord], cells: Sequence[CellRecord]) -> str:
    """Return in which cells; empty for a single cell of one."""
    if len(cells) == 1:
        return ""
    if len(some) == len(cells):
        return f", in all {len(cells)} cells"
    return f", in {len(some)} of {len(cells)} cells (the first is {some[0].label})"
