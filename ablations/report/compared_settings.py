"""What two compared models differ in besides their weights: notes on it, or why it is too much."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from ablations.runs.results import Results
from ablations.runs.run import Run
from layerswap_method.errors import InputError, counted


class ComparedModel(NamedTuple):
    """A model that was evaluated, by us or by lm-eval itself."""

    word: str
    """As the user wrote it."""

    label: str
    """Name of the model in its run."""

    results: Results
    identity: object
    """Equal for the same evaluation of the same model."""

    run: Run | None = None
    """None for an output of lm-eval."""

    versions: Mapping[str, str] = {}
    settings: Mapping[str, Mapping[str, str]] = {}
    """Of an output of lm-eval: versions of its tasks, and their settings in words."""

    notes: tuple[str, ...] = ()


def notes_on_pairs(
    notes: Iterable[tuple[tuple[ComparedModel, ComparedModel], Iterable[str]]],
) -> Iterator[str]:
    """Yield notes on two models each, behind their names; equal ones once, for all their pairs."""
    pairs: dict[str, list[str]] = {}
    for (first, second), texts in notes:
        for text in texts:
            pairs.setdefault(text, []).append(f"{first.label} and {second.label}")
    for text, names in pairs.items():
        yield f"{', '.join(names)} {text}"


def setting_notes(
    first: ComparedModel, second: ComparedModel, tasks: Sequence[str]
) -> Iterator[str]:
    """Yield the settings in which two models differ, one of which lm-eval evaluated.

    The names of the models are not in a note; see `notes_on_pairs`.

    Raises:
        InputError: for other versions of a task; between our own runs for any other setting.
    """
    if first.run is not None and second.run is not None:
        _check_protocol(first.run, first.label, second.run, second.label, tasks)
        return
    versions = [_versions(side, tasks) for side in (first, second)]
    for task in tasks:
        one, two = (by_task[task] for by_task in versions)
        if one != two:
            rest = [t for t in tasks if versions[0][t] == versions[1][t]]
            advice = f"; compare the others: --tasks {','.join(rest)}" if rest else ""
            raise InputError(
                f"{first.label} and {second.label} have different versions of {task}: "
                f"{one or 'none'} and {two or 'none'}; their scores are of different things{advice}"
            )
    differences: dict[tuple[str, str, str], list[str]] = {}
    settings = [_settings(side, tasks) for side in (first, second)]
    for task in tasks:
        for name, value in settings[0][task].items():
            other = settings[1][task].get(name, value)
            if other != value:
                differences.setdefault((name, value, other), []).append(task)
    for (name, one, two), differing in differences.items():
        of = "" if len(differing) == len(tasks) else f" of {', '.join(differing)}"
        yield (
            f"differ in {name}{of} ({_short(one)} and {_short(two)}): a difference may come from "
            "that."
        )


def _short(value: str) -> str:
    return value if len(value) <= 60 else f"{value[:57]}..."


def _versions(side: ComparedModel, tasks: Sequence[str]) -> Mapping[str, str]:
    if side.run is None:
        return side.versions
    return {
        record.task: record.evaluation.task_versions.get(record.task, "")
        for cell in side.run.cells
        for record in cell.task_records
        if record.task in tasks
    }


def _settings(side: ComparedModel, tasks: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
    """Return task -> settings in words; of our own runs those that lm-eval writes alike."""
    if side.run is None:
        return side.settings
    repeats = str(side.run.study.evaluate.repeats)
    return {
        record.task: {
            "the number of examples": str(record.evaluation.num_fewshot.get(record.task, 0)),
            "repeats": repeats,
            "the engine": record.evaluation.backend,
        }
        for cell in side.run.cells
        for record in cell.task_records
        if record.task in tasks
    }


def content_notes(first: ComparedModel, second: ComparedModel, data: pd.DataFrame) -> Iterator[str]:
    """Yield which tasks are compared on some items only, or have other prompts.

    The names of the models are not in a note; see `notes_on_pairs`.

    Raises:
        InputError: where our own runs have other prompts.
    """
    keys = ["task", "item"]
    ours = first.run is not None and second.run is not None
    one, two = (
        data[data["model"] == side.label].drop_duplicates(keys)[[*keys, "doc_id", "prompt"]]
        for side in (first, second)
    )
    both = one.merge(two, on=keys, suffixes=("", "_second"))
    differing = both[both["prompt"] != both["prompt_second"]].drop_duplicates("task")
    if len(differing) and ours:
        row = differing.iloc[0]
        raise InputError(
            f"{first.label} and {second.label} have different prompts of {row['task']} (the first "
            f"is item {row['doc_id']}); evaluate both with the same data and task files"
        )
    if len(differing):
        yield (
            f"have different prompts of {', '.join(differing['task'])} (examples or chat "
            "template): a difference may come from that."
        )
    sizes = [frame.groupby("task").size() for frame in (one, two, both)]
    for task, items in sizes[2].items():
        if items < max(sizes[0][task], sizes[1][task]):
            yield (
                f"are compared on the {counted(items, 'item')} of {task} that both have (of "
                f"{sizes[0][task]} and {sizes[1][task]}); scores next to a difference are on these."
            )


def _check_protocol(
    first_run: Run, first_name: str, second_run: Run, second_name: str, tasks: Sequence[str]
) -> None:
    second_protocol = _protocol(second_run, tasks)
    for name, value in _protocol(first_run, tasks).items():
        if second_protocol[name] != value:
            raise InputError(
                f"{first_name} and {second_name} were evaluated in different ways: {name} is "
                f"{value} and {second_protocol[name]}; evaluate both with the same settings"
            )


def _protocol(run: Run, tasks: Sequence[str]) -> dict[str, str]:
    """Return the settings that two models must share to be compared, by their names in words."""
    evaluate = run.study.evaluate
    evaluations = {
        record.task: record.evaluation for cell in run.cells for record in cell.task_records
    }
    settings = {
        "the backend": ", ".join(dict.fromkeys(evaluations[task].backend for task in tasks)),
        "--dtype": evaluate.options.dtype,
        "the level of the intervals": f"{evaluate.level:g}",
        "--max-model-len": str(evaluate.options.max_model_len or "the model's"),
        "the protocol": evaluate.overrides_text or "the tasks' own",
    }
    for task in tasks:
        evaluation = evaluations[task]
        settings[f"the version of {task}"] = evaluation.task_versions.get(task, "") or "none"
        settings[f"the number of examples of {task}"] = str(evaluation.num_fewshot.get(task, 0))
    return settings
