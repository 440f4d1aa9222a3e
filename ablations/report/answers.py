"""`layerswap answers`: prompt, answer, what filters took and target, of one model or of two."""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ablations.machine.whole_files import check_place, write_errors, write_text
from ablations.report.answer_words import (
    ANSWER_KINDS,
    choice_text,
    kinds_of,
    outcome_text,
    taken_texts,
    target_text,
    values_text,
    visible,
)
from ablations.report.pages import page_environment
from ablations.runs.answered import (
    AnsweredItem,
    ModelAnswer,
    judged_items,
    why_no_texts,
    with_prompts,
    with_responses,
)
from ablations.runs.evaluated_models import places_of_models
from ablations.runs.examples import EXAMPLES_FILE, read_examples
from ablations.runs.named_models import model_of_run, run_and_model
from ablations.runs.records import CellRecord, TaskRecord, read_run_file
from ablations.runs.run import Run
from layerswap_method.errors import InputError, nearest_of
from layerswap_method.recipe.references import is_folder

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

_MOST_SHOWN = 1000
"""Characters of a text that a terminal shows where several items are listed."""

_NARROWEST = 80
"""Columns of a terminal from which on two models stand side by side."""

_BEGIN = b"<!doctype html>"

_Place = tuple[int, int]
"""Item and repeat."""


class SelectedAnswers(NamedTuple):
    """The items that the user asked for, each with an answer of every model."""

    models: tuple[str, ...]
    task: str
    items: tuple[AnsweredItem, ...]
    selection: str
    """Their description, such as ``7 of 40 items: those that ... has wrong``; with repeats these
    are samples."""

    notes: tuple[str, ...]
    """Sentences on what is missing, with the remedy."""

    is_whole: bool
    """Whether long texts are shown whole in a terminal."""

    tally: Tally

    def as_json(self) -> dict[str, Any]:
        """Return the object of `layerswap answers --json`."""
        return {
            "models": self.models,
            "task": self.task,
            "tally": self.tally,
            "items": [
                {
                    **item.model_dump(exclude={"answers", "content", "task"}),
                    "answers": [
                        {**answer.model_dump(exclude={"kinds"}), "is_empty": answer.is_empty}
                        for answer in item.answers
                    ],
                }
                for item in self.items
            ],
            "notes": self.notes,
        }


class Tally(NamedTuple):
    """How many items and samples there are, shown or not, and in how many each model is right.

    Each repeat of an item is a sample.
    """

    items: int
    samples: int
    right: tuple[int | None, ...]
    """Samples by model; None where a sample alone is neither right nor wrong (BLEU)."""

    only: tuple[int | None, ...] | None = None
    """By model: samples in which it alone is right; None for one model."""

    differ: int | None = None
    """Samples in which one of two models is right and the other wrong, or whose values differ."""

    @property
    def noun(self) -> str:
        """What is counted, in texts."""
        return "items" if self.samples == self.items else "samples"


class _Source(NamedTuple):
    """A model's items of a task, without texts unless they are examples."""

    name: str
    run: Run
    cell: CellRecord
    record: TaskRecord
    items: Mapping[_Place, AnsweredItem]

    def examples(self) -> dict[_Place, AnsweredItem]:
        """Return what the run folder itself has of this model."""
        return {
            item.place: item.model_copy(
                update={"answers": (answer.model_copy(update={"model": self.name}),)}
            )
            for item in read_examples(self.run.path)
            for answer in item.answers
            if (item.task, answer.cell) == (self.record.task, self.cell.label)
        }


def select_answers(
    name: str,
    task: str | None = None,
    *,
    is_wrong: bool = False,
    item: int | None = None,
    against: str | None = None,
    is_all: bool = False,
) -> SelectedAnswers:
    """Return what a model answered to the items of a task.

    Args:
        name: a folder that `layerswap evaluate` wrote, ``RUN:MODEL``, or a model that was evaluated
            here, which is found by its weights.
        task: its name; None where there is one only.
        is_wrong: whether only items are shown that the model has wrong.
        item: number of the only item to show, from 0.
        against: another model to show next to it: one of the same run, or named as `name` is. Only
            items are shown on which one of the two is right and the other wrong; where an item
            alone is neither, those whose values differ.
        is_all: whether all items are shown with `against`, too.

    Raises:
        InputError: for a model, task or item that is missing, models that got different items or
            prompts, and where no text is stored any more.
        LayerSwapError: for a file that is damaged.
    """
    written, names = name, _places(name, against)
    name = names[0]
    sources = [_source(name, task) for name in names]
    first, *others = sources
    if others and (first.run.path.resolve(), first.cell.label) == (
        others[0].run.path.resolve(),
        others[0].cell.label,
    ):
        raise InputError(f"--against: {against} is the same as {written}; name another model")
    places = [place for place in first.items if all(place in other.items for other in others)]
    _check_content(sources, places)
    selected = [place for place in places if item is None or place[0] == item]
    if not selected:
        raise InputError(f"item {item}: {_range(first.record.task, places)}")
    tally = _tally(sources, places)
    selection = f"item {item}" if item is not None else f"{tally.samples:,} {tally.noun}"
    if others and item is None:
        if not is_all:
            selected = [place for place in selected if _differ(sources, place)]
        selection = _tally_text(tally, names)
    if is_wrong:
        selected = list(_wrong(first, selected))
        shown = f"{len(selected):,} of {tally.samples:,} {tally.noun}: those that {name} has wrong"
        selection = f"{shown}; {selection}" if others else shown
    notes = list[str]()
    texts = [_texts(source, selected, notes) for source in sources]
    items = []
    for place in selected:
        if all(place in answered for answered in texts):
            answers = tuple(answered[place].answers[0] for answered in texts)
            items.append(texts[0][place].model_copy(update={"answers": answers}))
    if selected and not items:
        raise InputError(notes[0])
    if len(items) < len(selected):
        selection += f" ({len(selected) - len(items):,} without text)"
    return SelectedAnswers(
        models=tuple(names),
        task=first.record.task,
        items=tuple(items),
        selection=selection,
        notes=tuple(notes),
        is_whole=item is not None,
        tally=tally,
    )


def _differ(sources: Sequence[_Source], place: _Place) -> bool:
    first, second = (source.items[place].answers[0] for source in sources)
    if first.is_right is None or second.is_right is None:
        return first.values != second.values
    return first.is_right != second.is_right


def _tally(sources: Sequence[_Source], places: Sequence[_Place]) -> Tally:
    verdicts = [[source.items[place].answers[0].is_right for place in places] for source in sources]
    has_verdicts = not any(verdict is None for column in verdicts for verdict in column)
    right = tuple(sum(map(bool, column)) if has_verdicts else None for column in verdicts)
    items = len({item for item, _ in places})
    if len(sources) == 1:
        return Tally(items, len(places), right)
    only = tuple(
        sum(bool(one) and not other for one, other in zip(column, others, strict=True))
        if has_verdicts
        else None
        for column, others in zip(verdicts, reversed(verdicts), strict=True)
    )
    differ = sum(_differ(sources, place) for place in places)
    return Tally(items, len(places), right, only, differ)


def _tally_text(tally: Tally, names: Sequence[str]) -> str:
    """Say in how many items, or samples of items, two models differ."""
    text = f"{tally.differ:,} of {tally.samples:,} {tally.noun} differ"
    if tally.only is None or None in (*tally.right, *tally.only):
        return f"{text} in their values"
    (first, second), (first_only, second_only) = names, tally.only
    both = (tally.right[0] or 0) - (first_only or 0)
    neither = tally.samples - both - (tally.differ or 0)
    return (
        f"{text}: {first_only:,} right with {first} only, {second_only:,} with {second} only; "
        f"{both:,} right with both, {neither:,} with neither"
    )


def _places(name: str, against: str | None) -> list[str]:
    """Return run folders or RUN:MODEL: of a model, and of the one that is shown next to it."""
    (place,) = places_of_models([name])
    if against is None:
        return [place]
    folder, _ = run_and_model(place)
    head = read_run_file(folder) if is_folder(folder) else None
    labels = [] if head is None else [cell.label for cell in head.cells]
    models = [] if head is None else [model.label for model in head.models]
    if against not in (*labels, *models):
        places = places_of_models([name, against])
        if places[1] != against or is_folder(run_and_model(against)[0]):
            return places
    return [place, f"{folder}:{against}"]


def _source(name: str, task: str | None) -> _Source:
    run, _ = model_of_run(name)
    tasks = list(dict.fromkeys(record.task for cell in run.cells for record in cell.task_records))
    if task is None and len(tasks) > 1:
        raise InputError(f"{name} has {len(tasks)} tasks; name one with --task: {', '.join(tasks)}")
    if task not in (None, *tasks):
        raise InputError(f"{name} has no task {task!r}{nearest_of(str(task), tasks)}")
    task = task or tasks[0]
    pairs = [(cell, r) for cell in run.cells for r in cell.task_records if r.task == task]
    if len(pairs) > 1:
        lines = [f"\n  {shlex.quote(f'{run.path}:{cell.label}')}" for cell, _ in pairs]
        raise InputError(f"{name} has {len(pairs)} cells; name one of them:{''.join(lines)}")
    (cell, record) = pairs[0]
    source = _Source(name, run, cell, record, {})
    if run.is_copy:
        items = source.examples()
        if not items:
            raise InputError(
                f"{run.path} is a copy for readers, and its {EXAMPLES_FILE} has no answer of this "
                f"model to {task}; look at the folder that was copied"
            )
        return source._replace(items=items)
    metric = run.study.report.metric
    judged = judged_items(record, record.samples(), model=name, cell=cell.label, metric=metric)
    return source._replace(items={item.place: item for item in judged})


def _check_content(sources: Sequence[_Source], places: Sequence[_Place]) -> None:
    """Check that all models got the same prompts."""
    names, task = " and ".join(source.name for source in sources), sources[0].record.task
    if not places:
        raise InputError(f"{names} have no item of {task} in common")
    for place in places:
        if len({source.items[place].content for source in sources}) > 1:
            raise InputError(
                f"{names} have different items or prompts of {task} (the first is item "
                f"{place[0]}); evaluate both with the same --limit, data and task files"
            )


def _range(task: str, places: Sequence[_Place]) -> str:
    items = sorted({item for item, _ in places})
    if len(items) == items[-1] - items[0] + 1:
        return f"{task} has the items {items[0]} to {items[-1]}"
    return f"of {task} there are the items {', '.join(map(str, items))}"


def _wrong(source: _Source, places: Sequence[_Place]) -> Iterator[_Place]:
    verdicts = {place: source.items[place].answers[0].is_right for place in places}
    if not any(verdict is not None for verdict in verdicts.values()):
        record, named = source.record, source.run.study.report.metric
        metric = record.evaluation.shown_score(record.task, named).metric
        raise InputError(
            f"{source.record.task} is scored by {metric}, by which a single item is neither right "
            "nor wrong; leave out --wrong"
        )
    yield from (place for place, verdict in verdicts.items() if verdict is False)


def _texts(
    source: _Source, places: Sequence[_Place], notes: list[str]
) -> dict[_Place, AnsweredItem]:
    """Return the items with texts; add to `notes` why some have none."""
    items = [source.items[place] for place in places]
    if source.run.is_copy:
        notes.append(f"{source.run.path} is a copy for readers: it has examples only")
        return {item.place: item for item in items}
    answered = with_responses(source.run, source.record, items)
    with_texts = with_prompts(source.run, source.record, answered)
    stored = {item.place: item for item in with_texts}
    missing = [item for item in items if item.place not in stored]
    if missing:
        notes.append(f"{source.name}: {why_no_texts(source.run, source.record, missing)}")
        examples = source.examples()
        stored |= {i.place: examples[i.place] for i in missing if i.place in examples}
    return stored


def write_page(selected: SelectedAnswers, file: Path) -> None:
    """Write the answers as one HTML page that loads nothing and runs its own script only.

    Raises:
        InputError: where another file is in the way.
        LayerSwapError: where the file cannot be written.
    """
    check_place(file)
    if os.path.lexists(file) and not (file.is_file() and file.read_bytes().startswith(_BEGIN)):
        raise InputError(f"{file}: exists and is no page; choose another --html")
    with write_errors(file):
        template = page_environment().get_template("answers.html.j2")
        text = template.render(answers=selected, filters=_filters(selected))
        write_text(file, text)


def _filters(selected: SelectedAnswers) -> list[_Filter]:
    """Return what the page can filter by: each kind of answer that it has, of each model."""
    filters = list[_Filter]()
    for number, model in enumerate(selected.models):
        name = f"{model}: " if len(selected.models) > 1 else ""
        counts = Counter(kind for item in selected.items for kind in kinds_of(item.answers[number]))
        filters += [
            _Filter(f"{kind}-{number}", f"{name}{text}", counts[kind])
            for kind, text in ANSWER_KINDS.items()
            if counts[kind]
        ]
    return filters


class _Filter(NamedTuple):
    key: str
    text: str
    samples: int


def print_answers(selected: SelectedAnswers, console: Console | None = None) -> None:
    """Print the answers: two models side by side on a terminal, plain text anywhere else."""
    from rich.console import Console

    console = console or Console(highlight=False, markup=False, emoji=False)
    layout = _Layout(selected, console)
    console.print(layout.line(layout.title, "bold"), soft_wrap=not console.is_terminal)
    for item in selected.items:
        for line in layout.of_item(item):
            # A file and a pipe get each line of a text as one line.
            console.print(line, soft_wrap=not console.is_terminal)


class _Layout:
    """The lines of answers on a console.

    What an answer says is indented, in wrapped lines too, so it cannot look like the next item.
    """

    def __init__(self, selected: SelectedAnswers, console: Console) -> None:
        self._selected, self._console = selected, console
        self.title = f"{' and '.join(selected.models)}, {selected.task}: {selected.selection}"

    def of_item(self, item: AnsweredItem) -> Iterator[RenderableType]:
        from rich.console import Group
        from rich.table import Table

        sample = f", sample {item.repeat + 1}" if item.repeat else ""
        yield self.line("")
        yield self.line(f"--- item {item.item}{sample} ---", "bold cyan")
        for text in item.prompts:
            yield from self._labelled("prompt", self._end(text), "dim")
        yield from self._labelled("target", target_text(item))
        columns = [list(self._of_answer(item, answer)) for answer in item.answers]
        if len(columns) > 1 and self._console.is_terminal and self._console.width >= _NARROWEST:
            table = Table.grid(expand=True, padding=(0, 2))
            for _ in columns:
                table.add_column(ratio=1, overflow="fold")
            table.add_row(*(Group(*column) for column in columns))
            yield table
        else:
            for column in columns:
                yield from column

    def _of_answer(self, item: AnsweredItem, answer: ModelAnswer) -> Iterator[RenderableType]:
        name = f"{answer.model}: " if len(self._selected.models) > 1 else ""
        style = {True: "bold green", False: "bold red", None: "bold"}[answer.is_right]
        yield self.line(f"{name}{outcome_text(answer)}", style)
        for number, response in enumerate(answer.responses):
            if isinstance(response, str):
                yield from self._labelled("answer", self._ends(response))
            else:
                yield self._indented(choice_text(item, answer, number), 2)
        for label, text in taken_texts(answer):
            yield from self._labelled(label, self._ends(text))
        if answer.values:
            yield self._indented(values_text(answer), 2, "dim")

    def line(self, text: str, style: str = "") -> Text:
        from rich.text import Text

        return Text(visible(text), style=style)

    def _labelled(self, label: str, text: str, style: str = "") -> Iterator[RenderableType]:
        """Yield a label and a text under it, or next to it where it is a short one."""
        if "\n" not in text and len(text) < 60:
            yield self._indented(f"{label}: {text}", 2, style)
        else:
            yield self._indented(f"{label}:", 2, style)
            yield self._indented(text, 4, style)

    def _indented(self, text: str, columns: int, style: str = "") -> RenderableType:
        from rich.padding import Padding

        if self._console.is_terminal:
            return Padding(self.line(text, style), (0, 0, 0, columns))
        return self.line(re.sub("^", " " * columns, text, flags=re.MULTILINE))

    def _end(self, text: str) -> str:
        """Return the end of a prompt, where the item stands behind its examples."""
        left_out = len(text) - _MOST_SHOWN
        if self._selected.is_whole or left_out <= 0:
            return text
        return f"[... {left_out:,} characters before: --item N or --html FILE]\n{text[left_out:]}"

    def _ends(self, text: str) -> str:
        left_out, half = len(text) - _MOST_SHOWN, _MOST_SHOWN // 2
        if self._selected.is_whole or left_out <= 0:
            return text
        mark = f"[... {left_out:,} characters: --item N or --html FILE]"
        return f"{text[:half]}\n{mark}\n{text[-half:]}"
