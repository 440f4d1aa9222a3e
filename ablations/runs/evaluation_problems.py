"""Evaluations that went wrong without an error.

On a task where every model scores 0 nothing is compared, and often its prompt or its filter is at
fault. Reports say so before any score.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence

from ablations.runs.records import CellRecord
from ablations.runs.run import Run
from ablations.scoring.observed import PROMPT_TRUNCATED
from ablations.statistics.as_text import percent

MOST_CUT = 0.5
"""Share of cut prompts from which on a score is not that of the task."""


def evaluation_problems(run: Run, only: Collection[str] | None = None) -> tuple[str, ...]:
    """Return the problems of the evaluation itself, one text each: what, where, what to do.

    The problems are prompts that did not fit the model, filters that find no answer, empty
    answers, and tasks on which every model scores 0.

    Args:
        run: whose records are read.
        only: tasks; None is all of the run.
    """
    problems = list[str]()
    tasks = dict.fromkeys(score.task for cell in run.cells for score in cell.scores)
    for task in (task for task in tasks if only is None or task in only):
        cells = [cell for cell in run.cells if any(s.task == task for s in cell.scores)]
        problems += [*_cut(task, cells), *_zero(task, cells, run)]
    return tuple(problems)


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
            f"long for the model and lost their beginning"
            f"{_where([cell for _, cell in shares], cells)}. "
            "The scores are not those of the task. Raise max_model_len, or use a model with a "
            "longer context or a task with fewer examples."
        )


def _zero(task: str, cells: Sequence[CellRecord], run: Run) -> Iterator[str]:
    """Yield each reason of scores that are 0, with its cells.

    Plain wrong answers are one only where every score is 0.
    """
    metric = run.study.report.metric
    explained, wrong = dict[str, list[CellRecord]](), dict[str, list[CellRecord]]()
    for cell in cells:
        record = next(record for record in cell.task_records if record.task == task)
        score = record.evaluation.shown_score(task, metric)
        if not (score.higher_is_better and score.is_share and score.value == 0):
            continue
        if (reason := record.no_answers.get(score.filter)) is not None:
            explained.setdefault(reason, []).append(cell)
        else:
            reason = f"every answer is wrong ({score.metric} is 0 on all {score.n} items)"
            wrong.setdefault(reason, []).append(cell)
    if sum(map(len, (*explained.values(), *wrong.values()))) < len(cells):
        wrong = {}
    for reason, affected in {**explained, **wrong}.items():
        model = str(run.path)
        if len(run.head.cells) > 1:
            model += f":{affected[0].label}"
        yield (
            f"{task}: {reason}{_where(affected, cells)}. Nothing can be concluded from this score. "
            "Compare the prompts and answers with the task file: layerswap answers "
            f"{shlex.quote(model)} --task {task} --wrong"
        )


def _where(affected: Sequence[CellRecord], cells: Sequence[CellRecord]) -> str:
    """Return in which cells; empty for a single cell of one."""
    if len(cells) == 1:
        return ""
    first = f" (the first is {affected[0].label})" if len(affected) < len(cells) else ""
    return f", in {len(affected)} of {len(cells)} cells{first}"
