"""The output of lm-eval itself, as the results of one model: of any model, by whomever evaluated.

``lm_eval --output_path DIR --log_samples`` writes ``results_TIME.json`` and, for each task,
``samples_TASK_TIME.jsonl``: a line for every item and filter, without what the score is made of.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pandas as pd
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictInt, ValidationError

from ablations.machine.untrusted import check_name, read_regular, read_regular_lines
from ablations.runs.observations import CELL_ROLES, items_of
from ablations.runs.results import Results
from ablations.runs.score_table import score_rows, scores_frame
from ablations.scoring.evaluation import Sample, TaskScore
from ablations.scoring.groups import ScoredGroup, item_starts, with_groups
from ablations.scoring.scores import item_value, scores_of_samples
from ablations.study.grouping import StudyModel
from ablations.study.schema import Evaluate, Pools, Study
from layerswap_method.errors import InputError, LayerSwapError, first_line, printable

_TIME = r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d(?:\.\d+)?"
_RESULTS = re.compile(rf".*_({_TIME})\.json")
_SAMPLES = re.compile(rf"samples_(.+)_({_TIME})\.jsonl")

LEVEL = 0.95
"""Of the intervals, where they are not compared with those of a run."""

_ADVICE = "evaluate again: lm_eval --output_path DIR --log_samples"

_Name = Annotated[str, AfterValidator(check_name)]


class _ResultsFile(BaseModel):
    """What is read of ``results_TIME.json``."""

    model_config = ConfigDict(frozen=True)

    results: dict[_Name, dict[_Name, Any]]
    versions: dict[str, Any]
    higher_is_better: dict[str, dict[str, bool | None]]
    configs: dict[str, dict[str, Any]] = Field(default_factory=dict)
    num_fewshot: dict[str, Any] = Field(default_factory=dict, alias="n-shot")
    groups: dict[str, list[str]] = Field(default_factory=dict, alias="group_subtasks")
    config: dict[str, Any] = Field(default_factory=dict)
    model_name: _Name | None = None
    chat_template_sha: str | None = None
    system_instruction_sha: str | None = None


class _Line(BaseModel):
    """What is read of a line of samples; the values of its metrics are the other keys."""

    model_config = ConfigDict(frozen=True, extra="allow")

    doc_id: StrictInt
    filter: _Name
    metrics: list[_Name]
    doc_hash: _Name
    prompt_hash: _Name
    target_hash: _Name


class LmEvalOutput(NamedTuple):
    """An output of lm-eval."""

    results: Results
    """Of its one model."""

    versions: Mapping[str, str]
    """Task -> its version; models are compared on equal ones only."""

    settings: Mapping[str, Mapping[str, str]]
    """Task -> setting in words -> its value: of two models they may differ, which is then said."""

    notes: tuple[str, ...]
    """What a reader must know of how it was read."""


def is_lm_eval_output(path: Path) -> bool:
    """Return whether a path is an output of lm-eval: a file of it, or a folder that has some."""
    if path.is_dir():
        return any(True for _ in _results_files(path))
    return bool(_RESULTS.fullmatch(path.name) or _SAMPLES.fullmatch(path.name)) and path.is_file()


def read_lm_eval_output(
    path: Path, tasks: Sequence[str] = (), level: float = LEVEL
) -> LmEvalOutput:
    """Return the results of an output of lm-eval, with the intervals that our own have.

    A group that lm-eval scores by the mean over all items of its tasks is one task.

    Args:
        path: the folder that ``--output_path`` named or the folder of a model in it, or one of the
            files. Where a task was evaluated several times, the newest is taken.
        tasks: those that are compared: a group of which one is named stays single tasks.
        level: of the intervals, in (0, 1).

    Raises:
        InputError: for a file that is damaged, that has no samples, or that belongs to several
            models; the message names it.
    """
    only: str | None = None
    files = [path]
    if path.is_dir():
        files = _files_of_one_model(path)
    elif (match := _SAMPLES.fullmatch(path.name)) is not None:
        only, time = match[1], match[2]
        files = sorted(path.parent.glob(f"*_{time}.json"))
        if len(files) != 1:
            raise InputError(f"{path}: its results_{time}.json is not in the same folder")
    contents = {file: _read_results(file) for file in sorted(files, key=_time_of, reverse=True)}
    models = dict.fromkeys(content.model_name or "" for content in contents.values())
    if len(models) > 1:
        raise InputError(
            f"{path}: holds the results of several models ({', '.join(models)}); name a file: "
            f"{', '.join(map(str, contents))}"
        )
    label = next(iter(models)) or path.name
    rows: list[dict[str, Any]] = []
    items: list[pd.DataFrame] = []
    versions: dict[str, str] = {}
    settings: dict[str, dict[str, str]] = {}
    notes = list[str]()
    identity = hashlib.sha256()
    for file, content in contents.items():
        identity.update(read_regular(file))
        raw, samples = _raw_result(file, content, only, tasks)
        for task in [task for task in raw["samples"] if task in versions]:
            notes.append(f"{task} was evaluated several times; the newest is taken, not {file}.")
            del raw["samples"][task]
        scores = _scores(raw, samples, file, level)
        head = _head(label)
        rows += score_rows(head, scores, str(content.config.get("model") or "lm-eval"))
        kept = [sample for sample in samples if sample.task in raw["samples"]]
        items.append(items_of(kept, scores).assign(**head))
        for task in raw["samples"]:
            versions[task] = str(raw["versions"].get(task) or "")
            settings[task] = _settings(content, raw, task)
    if not versions:
        raise InputError(f"{path}: has no samples (samples_TASK_TIME.jsonl); {_ADVICE}")
    weights = identity.hexdigest()
    pools = {"base": (label,)}
    model = StudyModel(label=label, kind="base", setting={}, pools=pools, cells=(label,))
    study = Study(
        name="compare",
        question=f"What does {printable(label)} score?",
        baseline=("base",),
        experts=Pools(base=label, task=(label,), language=(label,)),
        evaluate=Evaluate(tasks=tuple(versions), level=level),
    )
    results = Results(
        study,
        (model,),
        pd.concat(items, ignore_index=True).assign(weights=weights),
        scores_frame(rows).assign(weights=weights),
        {},
    )
    return LmEvalOutput(results, versions, settings, tuple(notes))


def _head(label: str) -> dict[str, str]:
    """Return the columns that describe the model in observations and scores."""
    empty = dict.fromkeys(("base", *CELL_ROLES, "language"), "")
    return {"model": label, "kind": "base", "cell": label, "weights": "", **empty}


def _results_files(folder: Path) -> Iterator[Path]:
    for file in sorted(folder.glob("*.json")):
        if _RESULTS.fullmatch(file.name):
            yield file
    for file in sorted(folder.glob("*/*.json")):
        if _RESULTS.fullmatch(file.name):
            yield file


def _files_of_one_model(folder: Path) -> list[Path]:
    """Return the results in a folder, or in the one folder of a model in it."""
    files = [*_results_files(folder)]
    folders = dict.fromkeys(file.parent for file in files)
    if folder in folders:
        return [file for file in files if file.parent == folder]
    if len(folders) > 1:
        raise InputError(
            f"{folder}: holds the output of {len(folders)} models; name one of its folders: "
            f"{', '.join(str(one) for one in folders)}"
        )
    return files


def _time_of(file: Path) -> str:
    match = _RESULTS.fullmatch(file.name)
    return "" if match is None else match[1]


def _read_results(file: Path) -> _ResultsFile:
    try:
        return _ResultsFile.model_validate_json(read_regular(file))
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(file, error) from error


def _raw_result(
    file: Path, content: _ResultsFile, only: str | None, tasks: Sequence[str]
) -> tuple[dict[str, Any], list[Sample]]:
    """Return lm-eval's result of a file, groups as tasks, and the samples of the tasks that count.

    ``samples`` of the result has of each line what `with_groups` and `scores_of_samples` ask.
    """
    time = _time_of(file)
    lines: dict[str, list[dict[str, Any]]] = {}
    samples: dict[str, list[Sample]] = {}
    groups = _groups(content)
    for task in content.results:
        place = file.with_name(f"samples_{task}_{time}.jsonl")
        if only in (None, task) and "/" not in task and place.exists():
            samples[task], lines[task] = _read_samples(place, task)
    # A group without one of its tasks, and one whose task is asked for by its name, is none.
    groups = {
        name: group
        for name, group in groups.items()
        if {*group.members} <= {*lines} and not {*group.members} & {*tasks}
    }
    raw: dict[str, Any] = {
        "samples": lines,
        "results": content.results,
        "higher_is_better": {task: content.higher_is_better.get(task, {}) for task in lines},
        "configs": {task: content.configs.get(task, {}) for task in lines},
        "versions": content.versions,
        "n-shot": content.num_fewshot,
    }
    sizes = {task: 1 + max(line["doc_id"] for line in of_task) for task, of_task in lines.items()}
    starts = item_starts(groups, sizes)
    names = {member: name for name, group in groups.items() for member in group.members}
    renamed = [
        sample.model_copy(update={"task": names[task], "doc_id": sample.doc_id + starts[task]})
        if task in names
        else sample
        for task, of_task in samples.items()
        for sample in of_task
    ]
    if not groups:
        return raw, renamed
    raw["n-shot"] = {task: content.num_fewshot.get(task) for task in lines}
    raw["versions"] = {task: content.versions.get(task) for task in lines}
    return with_groups(raw, groups, starts), renamed


def _groups(content: _ResultsFile) -> dict[str, ScoredGroup]:
    """Return the outermost groups whose scores are means over the items of all their tasks."""

    def leaves(name: str, above: tuple[str, ...] = ()) -> list[str]:
        if name in above or name not in content.groups:
            return [name]
        return [leaf for child in content.groups[name] for leaf in leaves(child, (*above, name))]

    groups: dict[str, ScoredGroup] = {}
    children = {child for names in content.groups.values() for child in names}
    for name in sorted(content.groups, key=lambda name: name in children):
        members = tuple(dict.fromkeys(leaves(name)))
        taken = {member for group in groups.values() for member in group.members}
        metrics = _mean_metrics(content, name, members)
        if metrics and not taken & {*members}:
            groups[name] = ScoredGroup(members, metrics)
    return groups


def _mean_metrics(
    content: _ResultsFile, group: str, members: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """Return metric -> filters of a group, where each score is the mean over all items."""
    metrics: dict[str, tuple[str, ...]] = {}
    parts = [content.results.get(member, {}) for member in members]
    sizes = [part.get("sample_len") for part in parts]
    if not members or not all(isinstance(size, int) and size > 0 for size in sizes):
        return {}
    for key, value in content.results.get(group, {}).items():
        metric, comma, filter_name = key.partition(",")
        if not comma or metric.endswith("_stderr"):
            continue
        values = [part.get(key) for part in parts]
        if not all(isinstance(one, int | float) for one in (value, *values)):
            return {}
        pairs = zip(values, sizes, strict=True)
        mean = sum(one * size for one, size in pairs) / sum(sizes)  # type: ignore[arg-type, operator]
        if abs(mean - value) > 1e-6:
            return {}
        metrics[metric] = (*metrics.get(metric, ()), filter_name)
    return metrics


def _read_samples(file: Path, task: str) -> tuple[list[Sample], list[dict[str, Any]]]:
    """Return the samples of a file, and of each line its item and the values of its metrics."""
    samples, lines = list[Sample](), list[dict[str, Any]]()
    where = str(file)
    try:
        for number, text in read_regular_lines(file):
            where = f"{file}:{number}"
            line = _Line.model_validate_json(text)
            metrics = {name: (line.model_extra or {})[name] for name in line.metrics}
            values = {name: item_value(name, value) for name, value in metrics.items()}
            samples.append(
                Sample(
                    task=task,
                    filter=line.filter,
                    doc_id=line.doc_id,
                    target="",
                    answers=(),
                    values={name: one for name, one in values.items() if one is not None},
                    doc_hash=line.doc_hash,
                    prompt_hash=line.prompt_hash,
                    target_hash=line.target_hash,
                )
            )
            lines.append({"doc_id": line.doc_id, "filter": line.filter, **metrics})
    except KeyError as error:
        raise _damaged(where, f"it has no value of {error}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(where, error) from error
    if not samples:
        raise _damaged(file, "it has no line")
    (item, filter_name), count = Counter((one.doc_id, one.filter) for one in samples).most_common(
        1
    )[0]
    if count > 1:
        raise _damaged(file, f"item {item} ({filter_name}) is in it {count} times")
    return samples, lines


def _scores(
    raw: Mapping[str, Any], samples: Sequence[Sample], file: Path, level: float
) -> tuple[TaskScore, ...]:
    try:
        return scores_of_samples(raw, samples, seed=0, level=level)
    except (LayerSwapError, KeyError, TypeError, ValueError, AttributeError) as error:
        reason = error.message if isinstance(error, LayerSwapError) else f"{error!r}"
        raise _damaged(file, reason) from error


def _settings(content: _ResultsFile, raw: Mapping[str, Any], task: str) -> dict[str, str]:
    """Return what may differ between two models, in words; prompts are compared by their hashes.

    The words are those of our own runs, where they have the same.
    """
    config = raw["configs"].get(task, {})
    return {
        "the number of examples": str(raw["n-shot"].get(task) or 0),
        "the settings of generation": str(config.get("generation_kwargs") or "none"),
        "repeats": str(config.get("repeats") or 1),
        "the chat template": content.chat_template_sha or "none",
        "the system instruction": content.system_instruction_sha or "none",
        "the engine": str(content.config.get("model") or "unknown"),
        "the dtype": str(content.config.get("model_dtype") or "unknown"),
    }


def _damaged(where: Path | str, why: Exception | str) -> InputError:
    reason = why if isinstance(why, str) else first_line(why)
    if isinstance(why, ValidationError):
        first = why.errors()[0]
        reason = ": ".join([*(str(part) for part in first["loc"]), first["msg"]])
    reason = printable(reason)[:300]
    return InputError(f"{where}: cannot be read as an output of lm-eval ({reason}); {_ADVICE}")
