"""What a run has no result of: which tasks, in which cells, and why. Knows records; no score."""

from __future__ import annotations

from ablations.report.names import task_name
from ablations.runner.records import PlannedCell, Run, read_failure


def missing_tasks(run: Run) -> tuple[str, ...]:
    """Return the tasks that the study shows and no cell has answered, in the order of the study."""
    planned = _planned(run)
    answered = {task.task for cell in run.cells for task in cell.tasks}
    shown = run.study.report.tasks
    tasks = [task for task in shown if task in planned] if shown else list(planned)
    return tuple(task for task in tasks if task not in answered)


def failure_problems(run: Run) -> tuple[str, ...]:
    """Return which tasks failed in which cells, and the first line of the first reason."""
    found: dict[tuple[str, str], list[str]] = {}
    left = _left(run)
    for task, cells in _planned(run).items():
        failed = [
            (cell, failure)
            for cell in left[task]
            if (failure := read_failure(run.path, cell.records[task])) is not None
        ]
        if not failed:
            continue
        first, failure = failed[0]
        where = f"in all {len(cells)} cells" if len(cells) > 1 else "in its only cell"
        if len(failed) < len(cells):
            where = f"in {len(failed)} of {len(cells)} cells (the first is {first.label})"
        reason = (failure.error.splitlines() or [""])[0].rstrip(".")
        found.setdefault((where, reason), []).append(task)
    return tuple(
        f"{', '.join(tasks)} failed {where}, with: {reason}. The same layerswap run tries again."
        for (where, reason), tasks in found.items()
    )


def unfinished_text(run: Run) -> str:
    """Return how much of the study has no result yet; empty where everything has one."""
    left, cells = run.unfinished, run.head.cells
    if not left:
        return ""
    begun = {cell.label for cell in run.cells}
    if not any(cell.label in begun for cell in left):
        return f"Preliminary: {len(left)} of {len(cells)} cells have no result yet."
    number, results = (sum(map(len, each(run).values())) for each in (_left, _planned))
    text = f"Preliminary: {number} of {results} results (a task in a cell) "
    names = " and ".join(task_name(task) for task in missing_tasks(run))
    return f"{text}are missing{f', all of {names} among them' * bool(names)}."


def _planned(run: Run) -> dict[str, list[PlannedCell]]:
    """Return the tasks of the study, each with the cells that it is asked of."""
    found: dict[str, list[PlannedCell]] = {}
    for cell in run.head.cells:
        for task in cell.records:
            found.setdefault(task, []).append(cell)
    return found


def _left(run: Run) -> dict[str, list[PlannedCell]]:
    """Return the tasks of the study, each with the cells that lack a result of it."""
    done = {each.key for cell in run.cells for each in cell.tasks}
    return {
        task: [cell for cell in cells if cell.records[task] not in done]
        for task, cells in _planned(run).items()
    }
