"""The examples of a run in its report: by task, and in it by what is shown."""

from __future__ import annotations

import html
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from ablations.report.answer_words import (
    choice_text,
    markdown_text,
    outcome_text,
    taken_texts,
    target_text,
    values_text,
    visible,
)
from ablations.runs.answered import AnsweredItem, ExampleKind, ModelAnswer

_TITLES: dict[ExampleKind, str] = {
    "differ": "Some models right, others wrong",
    "wrong": "Wrong",
    "right": "Right",
    "cut": "Cut off at the token limit",
    "empty": "Empty",
    "neither": "Some answers",
}


class TaskExamples(NamedTuple):
    """The examples of one task."""

    task: str
    kinds: Sequence[tuple[str, Sequence[AnsweredItem]]]
    """Title, and items with the answers that it is about."""


def examples_by_task(
    items: Iterable[AnsweredItem], tasks: Collection[str]
) -> tuple[TaskExamples, ...]:
    """Return the examples of `tasks` in their order."""
    by_task: dict[str, list[AnsweredItem]] = {}
    for item in items:
        by_task.setdefault(item.task, []).append(item)
    return tuple(
        TaskExamples(task, list(_kinds(by_task[task]))) for task in tasks if task in by_task
    )


def _kinds(items: Sequence[AnsweredItem]) -> Iterator[tuple[str, list[AnsweredItem]]]:
    for kind, title in _TITLES.items():
        shown = []
        for item in items:
            answers = tuple(answer for answer in item.answers if kind in answer.kinds)
            if answers:
                shown.append(item.model_copy(update={"answers": answers}))
        if shown:
            yield title, shown


def examples_markdown(examples: Sequence[TaskExamples]) -> list[str]:
    """Return the lines of the examples in Markdown, each task folded."""
    if not examples:
        return []
    lines = [
        "",
        "## What the models answered",
        "",
        "All others: `layerswap answers RUN:MODEL --task TASK`.",
    ]
    for task in examples:
        lines += ["", f"<details><summary>{html.escape(visible(task.task))}</summary>"]
        for title, items in task.kinds:
            lines += ["", f"**{title}**"]
            for item in items:
                lines += _item(item)
        lines += ["", "</details>"]
    return lines


def _item(item: AnsweredItem) -> Iterator[str]:
    yield from ("", f"Item {item.item}")
    for text in item.prompts:
        yield from _block("Prompt", text)
    yield from _block("Target", target_text(item))
    for answer in item.answers:
        yield from ("", f"{markdown_text(answer.model)}: {markdown_text(outcome_text(answer))}")
        for text in _responses(item, answer):
            yield from _block("Answer", text)
        for label, text in taken_texts(answer):
            yield from _block(label[0].upper() + label[1:], text)
        yield from ("", markdown_text(values_text(answer)))


def _responses(item: AnsweredItem, answer: ModelAnswer) -> Iterator[str]:
    if answer.likeliest is None:
        yield from map(str, answer.responses)
    else:
        yield "\n".join(
            choice_text(item, answer, number) for number in range(len(answer.responses))
        )


def _block(label: str, text: str) -> Iterator[str]:
    """Yield a text as code, behind a fence that it does not have in it."""
    text = visible(text)
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    yield from ("", f"{markdown_text(label)}:", "", f"{fence}text", text, fence)
