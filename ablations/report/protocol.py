"""What a reader must know of the tasks behind the numbers. Knows records only.

Answers that were cut off, prompts that did not fit, tasks that were skipped, and prompts in
another language than the task is said to be in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ablations.report.rescored import rescored_notes
from ablations.runner.records import CellRecord, Run
from ablations.scoring.notes import join_notes, truncation_note
from ablations.scoring.observed import LANGUAGE_FIDELITY, TRUNCATED, TRUNCATION_NOTED
from ablations.statistics.as_text import percent

_SHOWN_CELLS = 2
"""Cells that a note names before it counts the others."""


def protocol_notes(run: Run) -> list[str]:
    """Return the notes on the tasks of `run`, and those of its plan, each once."""
    return join_notes((*run.head.notes, *_notes(run)))


def _notes(run: Run) -> Iterator[str]:
    yield from _by_cells(
        run, lambda cell: [f"{task}: skipped: {reason}" for task, reason in cell.skipped.items()]
    )
    yield from _by_cells(run, lambda cell: list(cell.notes))
    yield from _by_cells(run, rescored_notes)
    yield from _truncation(run)
    yield from _repeats(run)
    if any(score.metric == LANGUAGE_FIDELITY for cell in run.cells for score in cell.scores):
        yield (
            "scores.csv has, beside each generation task, the share of answers in the language "
            f"they should be in ({LANGUAGE_FIDELITY}) and of those cut off ({TRUNCATED})."
        )


def _truncation(run: Run) -> Iterator[str]:
    worst: dict[str, tuple[float, str]] = {}
    for cell in run.cells:
        for score in cell.scores:
            if score.metric == TRUNCATED and score.value > TRUNCATION_NOTED:
                worst[score.task] = max(worst.get(score.task, (0.0, "")), (score.value, cell.label))
    for task, (share, label) in worst.items():
        told = f"up to {percent(share)} % of the answers of a cell ({label})"
        yield truncation_note(task, told, "the token limit")


def _repeats(run: Run) -> Iterator[str]:
    """Yield how many samples of an item a score is the mean of, and how much they differ."""
    for task in dict.fromkeys(score.task for cell in run.cells for score in cell.scores):
        scores = [next((s for s in cell.scores if s.task == task), None) for cell in run.cells]
        found = [s for s in scores if s is not None and s.deviation is not None]
        if found:
            most = max(score.deviation or 0.0 for score in found)
            yield (
                f"{task}: scores are the mean of {found[0].repeats} samples of each item; over "
                f"them the score of a cell has a standard deviation of up to {percent(most)}. "
                "Intervals and tests count items and repeats as two levels."
            )


def _by_cells(run: Run, notes: Callable[[CellRecord], list[str]]) -> Iterator[str]:
    """Yield every note with the cells that have it, or without where all do."""
    found: dict[str, list[str]] = {}
    for cell in run.cells:
        for note in notes(cell):
            found.setdefault(note, []).append(cell.label)
    for note, labels in found.items():
        if len(labels) == len(run.cells):
            yield note
            continue
        named = "; ".join(labels[:_SHOWN_CELLS])
        more = len(labels) - _SHOWN_CELLS
        yield f"{note} (cells {named}{f' and {more} more' if more > 0 else ''})"
