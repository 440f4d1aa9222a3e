"""A few answers of a run for its readers, in ``RUN/examples.jsonl``.

    {"seed": 0, "examples": 2}      how they were chosen
    {"task": ..., "item": ...}      an item with the answers that are shown of it

The folder of answers is shared by runs and large, so a run has a few texts of its own: for each
task items on which models differ, and for each model some that it has right or wrong, whose answer
was cut off, or is empty, or any others of a task without right and wrong. A task whose data must
not be published has none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ablations.machine.untrusted import read_regular_lines
from ablations.machine.whole_files import write_text
from ablations.runs.answered import (
    AnsweredItem,
    ExampleKind,
    ModelAnswer,
    judged_items,
    with_prompts,
    with_responses,
)
from ablations.runs.records import TaskRecord, stored_line, stored_value
from ablations.runs.run import Run
from ablations.scoring.evaluation import Sample
from layerswap_method.errors import LayerSwapError, first_line

EXAMPLES_FILE = "examples.jsonl"

KINDS: dict[ExampleKind, Callable[[ModelAnswer], bool]] = {
    "wrong": lambda answer: answer.is_right is False,
    "right": lambda answer: answer.is_right is True,
    "cut": lambda answer: answer.is_cut,
    "empty": lambda answer: answer.is_empty,
    "neither": lambda answer: answer.is_right is None and not answer.is_cut and not answer.is_empty,
}
"""Kind -> whether an answer is of it, of those that are chosen model by model.

``neither``: of tasks that are not scored right or wrong, such as translation by BLEU.
"""

_MOST_SIGNS = 4000
"""Most characters of a text in an example."""


class Shown(NamedTuple):
    """A record of which answers are shown."""

    model: str
    """Name of the model, or of its cell where it has several."""

    cell: str
    record: TaskRecord


def write_examples(run: Run, examples: Sequence[AnsweredItem]) -> None:
    """Write the examples of a run, or remove the file where it has none."""
    file = run.path / EXAMPLES_FILE
    if not examples:
        file.unlink(missing_ok=True)
        return
    lines = [json.dumps({"seed": run.study.evaluate.seed, "examples": run.study.report.examples})]
    lines += [stored_line(item.model_dump_json(exclude_defaults=True)) for item in examples]
    write_text(file, "".join(f"{line}\n" for line in lines))


def read_examples(path: Path) -> tuple[AnsweredItem, ...]:
    """Return the examples of the run folder `path`, () where it has none.

    Raises:
        LayerSwapError: for a file that is damaged.
    """
    file, items, number = path / EXAMPLES_FILE, list[AnsweredItem](), 1
    try:
        for number, line in read_regular_lines(file):
            if number > 1:
                items.append(stored_value(AnsweredItem, line, f"{file}:{number}"))
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError) as error:
        raise LayerSwapError(
            f"{file}:{number} is damaged ({first_line(error)}); remove the file: the end of a run "
            "writes it again"
        ) from error
    return tuple(items)


def shown_records(run: Run, task: str) -> list[Shown]:
    """Return the records of which answers to a task are shown: of each model its first cell's."""
    shown = list[Shown]()
    for model in run.models if run.study.report.examples else ():
        records = [
            (cell.label, record)
            for cell in run.cells
            if cell.label in model.cells
            for record in cell.task_records
            if record.task == task and task not in record.evaluation.unpublished
            if record.provenance.get("texts")
        ]
        for cell, record in records[:1]:
            shown.append(Shown(model.label if len(model.cells) == 1 else cell, cell, record))
    return shown


def examples_of_task(
    run: Run, shown: Sequence[Shown], samples: Mapping[str, Sequence[Sample]]
) -> Iterator[AnsweredItem]:
    """Yield the examples of a task: as many of each kind as the study's report says.

    The order in which items are looked at is drawn from the seed of the evaluation, the same for
    all models, so that they are shown on the same items.

    Args:
        run: whose folder has the texts.
        shown: the records of the task.
        samples: key of a record -> its items.
    """
    number = run.study.report.examples
    members = [
        (each.record, items)
        for each in shown
        if (items := _answered(run, each, samples[each.record.key]))
    ]
    order = sorted(
        {item for _, items in members for item in items},
        key=lambda item: _draw(f"{run.study.evaluate.seed} {members[0][0].task} {item}"),
    )
    kinds: dict[tuple[int, int], list[ExampleKind]] = {}
    for item in _differing([items for _, items in members], order)[:number]:
        for member, (_, items) in enumerate(members):
            if item in items:
                kinds.setdefault((item, member), []).append("differ")
    for member, (_, items) in enumerate(members):
        for kind, is_of in KINDS.items():
            chosen = [i for i in order if i in items and is_of(items[i].answers[0])][:number]
            for item in chosen:
                kinds.setdefault((item, member), []).append(kind)
    prompts = dict[int, AnsweredItem]()
    for member, (record, items) in enumerate(members):
        wanted = [items[item] for item, of in kinds if of == member and item not in prompts]
        prompts |= {item.item: item for item in with_prompts(run, record, wanted)}
    for item in sorted({item for item, _ in kinds} & prompts.keys()):
        answers = tuple(
            _shortened(items[item].answers[0]).model_copy(
                update={"kinds": tuple(kinds[item, member])}
            )
            for member, (_, items) in enumerate(members)
            if (item, member) in kinds and items[item].content == prompts[item].content
        )
        update = {"answers": answers, "prompts": tuple(map(_short, prompts[item].prompts))}
        yield prompts[item].model_copy(update=update)


def _answered(run: Run, shown: Shown, samples: Sequence[Sample]) -> dict[int, AnsweredItem]:
    metric = run.study.report.metric
    items = judged_items(shown.record, samples, model=shown.model, cell=shown.cell, metric=metric)
    first = (item for item in items if item.repeat == 0)
    return {item.item: item for item in with_responses(run, shown.record, first)}


def _differing(members: Iterable[dict[int, AnsweredItem]], order: Iterable[int]) -> list[int]:
    """Return the items that some models have right and others wrong, the most even ones first."""
    members, shares = list(members), dict[int, float]()
    for item in order:
        verdicts = [items[item].answers[0].is_right for items in members if item in items]
        right, wrong = verdicts.count(True), verdicts.count(False)
        if right and wrong:
            shares[item] = abs(right - wrong) / (right + wrong)
    return sorted(shares, key=lambda item: shares[item])


def _draw(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _shortened(answer: ModelAnswer) -> ModelAnswer:
    responses = tuple(_short(text) if isinstance(text, str) else text for text in answer.responses)
    taken = {name: tuple(map(_short, texts)) for name, texts in answer.taken.items()}
    return answer.model_copy(update={"responses": responses, "taken": taken})


def _short(text: str) -> str:
    """Return a text without its middle where it is long."""
    left_out = len(text) - _MOST_SIGNS
    if left_out <= 0:
        return text
    half = _MOST_SIGNS // 2
    return f"{text[:half]}\n[... {left_out:,} characters are left out here ...]\n{text[-half:]}"
