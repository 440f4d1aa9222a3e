"""Evaluations that went wrong without an error.

On a task where every model scores 0 nothing is compared, and often its prompt or its filter is at
fault. Reports say so before any score.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ablations.engines.task_loading import lm_eval_file
from ablations.runs.records import CellRecord, Run
from ablations.scoring.observed import PROMPT_TRUNCATED
from ablations.statistics.as_text import percent
from ablations.study.identity import record_key
from ablations.tasks.contents import TaskContents
from layerswap_method.errors import InputError
from layerswap_method.recipe.references import resolve_from

MOST_CUT = 0.5
"""Share of cut prompts from which on a score is not that of the task."""


def evaluation_problems(run: Run) -> tuple[str, ...]:
    """Return the problems of the evaluation itself, one text each: what, where, what to do.

    Looked for are tasks that have changed since they were scored, prompts that did not fit the
    model, filters that find no answer, empty answers, and tasks on which every model scores 0.
    """
    problems = list(_changed(run))
    for task in dict.fromkeys(score.task for cell in run.cells for score in cell.scores):
        cells = [cell for cell in run.cells if any(s.task == task for s in cell.scores)]
        problems += [*_cut(task, cells), *_zero(task, cells, run.study.report.metric)]
    return tuple(problems)


def _changed(run: Run) -> Iterator[str]:
    """Yield the tasks whose files, data or scoring are not those of the records. Loads no task."""
    study = run.study.with_folders(lambda path: resolve_from(path, run.path))
    evaluate, head = study.evaluate, run.head
    cells = {k: c for c in run.cells for k in c.records.items()}
    folders = [evaluate.task_folder, evaluate.data_dir or evaluate.task_folder]
    if run.is_copy or not cells or not all(folder.is_dir() for folder in folders):
        return
    evaluate = evaluate.model_copy(update={"tasks": tuple(dict.fromkeys(t for t, _ in cells))})
    try:
        contents = TaskContents(evaluate.folders, evaluate.data_dir, elsewhere=lm_eval_file)
        changed = dict.fromkeys(
            task
            for (task, key), cell in cells.items()
            # `layerswap evaluate` may have had another folder of tasks in the call before.
            if contents.has(task)
            and key != record_key(cell.weights_key, head.protocol, task, contents, head.versions)
        )
    except InputError as error:
        yield f"Whether tasks have changed since this run cannot be said: {error.message}"
        return
    for task in changed:
        yield (
            f"{task}: its file, its data or its scoring has changed since this run. Run the study "
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
        record = next(record for record in cell.tasks if record.task == task)
        scores = [score for score in record.evaluation.scores if score.task == task]
        score = next((score for score in scores if score.metric == metric), scores[0])
        if score.higher_is_better and score.is_share and score.value == 0:
            zeros.append((cell, score, record))
    plain = [(cell, s, record) for cell, s, record in zeros if s.filter in record.no_answers]
    if (not plain and len(zeros) < len(cells)) or not zeros:
        return
    named = plain if plain and len(zeros) < len(cells) else zeros
    _, score, record = (plain or zeros)[0]
    every = f"every answer is wrong ({score.metric} is 0 on all {score.n} items)"
    files = record.provenance.get("texts")
    texts = f"{' and '.join(files)} (from the run folder)" if files else "the folder of answers"
    yield (
        f"{task}: {record.no_answers.get(score.filter, every)}"
        f"{_where([cell for cell, *_ in named], cells)}. Nothing can be concluded from this score. "
        f"Compare the prompts and responses in {texts} with the task file."
    )


def _where(affected: Sequence[CellRecord], cells: Sequence[CellRecord]) -> str:
    """Return in which cells; empty for a single cell of one."""
    if len(cells) == 1:
        return ""
    first = f" (the first is {affected[0].label})" if len(affected) < len(cells) else ""
    return f", in {len(affected)} of {len(cells)} cells{first}"
