"""Notes on tasks, fewer and as clear. Knows their form only: ``TASK: what is to be said``."""

from __future__ import annotations

from collections.abc import Iterable


def join_notes(notes: Iterable[str]) -> list[str]:
    """Return `notes` with those that say the same of several tasks as one, each once, in order."""
    tasks: dict[str, dict[str, None]] = {}
    for note in notes:
        task, colon, text = note.partition(": ")
        # What begins with a sentence is no note on a task.
        key, named = (text, task) if colon and " " not in task else (note, "")
        tasks.setdefault(key, {})[named] = None
    return [
        f"{', '.join(name for name in named if name)}: {text}" if any(named) else text
        for text, named in tasks.items()
    ]


def truncation_note(task: str, answers: str, limit: str) -> str:
    """Return that `answers`, such as ``12.0 % of the answers``, were cut off at `limit`."""
    return f"{task}: {answers} were cut off at {limit}: its score may be too low by that much."
