"""`results.json`: the scores that one folder holds of one model, over several calls. Knows a file.

What all of them have in common is written once; what may differ from task to task (data, versions,
task version) stands with each task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from ablations.machine.whole_files import told_if_unwritable, write_text
from ablations.scoring.records import Backend, Evaluation
from layerswap_method.errors import InputError
from layerswap_method.frozen import Frozen

FILE = "results.json"


class Protocol(Frozen):
    """What makes scores of one model comparable with each other; one folder holds one."""

    model_fingerprint: str
    """Of the model's files."""

    backend: Backend
    """What evaluated it."""

    limit: int | None
    """Items per task, from the first; None asks all."""

    dtype: str
    """Of the weights in memory, as asked for."""

    max_model_len: int | None
    """Context length in tokens, as asked for."""


class ResultsFile(Frozen):
    """The content of the file."""

    schema_version: Literal[2] = 2
    """Of the file. A file of version 1 did not say of which model it was; it is written anew."""

    model: str
    """As the user named it in the last call."""

    protocol: Protocol
    """Of every task."""

    skipped: dict[str, str]
    """Task of the last call that was not asked -> why."""

    tasks: dict[str, dict[str, Any]]
    """Task -> its scores, versions, notes, and the folder of its data (None for the hub)."""


def read_results(out: Path, model: str, protocol: Protocol) -> dict[str, dict[str, Any]]:
    """Return the tasks that `out` has results of, from earlier calls, and has the records of.

    Args:
        out: folder of the file.
        model: as the user names it now.
        protocol: of this call.

    Raises:
        InputError: where the results are those of another model or protocol.
    """
    found = _read(out)
    if found is None:
        return {}
    if differing := _differences(found, model, protocol):
        raise InputError(
            f"{out}: holds results of another evaluation ({'; '.join(differing)}); one folder is "
            "for one model and protocol: give another --out, or remove this one"
        )
    return {
        name: task
        for name, task in found.tasks.items()
        if (out / name / "evaluation.json").exists()
    }


def add_results(
    out: Path,
    model: str,
    protocol: Protocol,
    *,
    evaluations: Mapping[str, Evaluation],
    skipped: Mapping[str, str],
    data_dir: Path | None,
    order: Sequence[str],
) -> tuple[str, ...]:
    """Write the scores of this call beside those of earlier ones; return the tasks of the latter.

    Args:
        out: folder of the file.
        model: as the user names it now.
        protocol: of this call.
        evaluations: task -> what it gave, in this call.
        skipped: task -> why it was not asked; left out where an earlier call has its score.
        data_dir: where this call's data is; None for the hub.
        order: of the tasks in the file.

    Raises:
        InputError: as `read_results`.
        LayerSwapError: when it cannot be written.
    """
    earlier = read_results(out, model, protocol)
    data = {"data_dir": None if data_dir is None else str(data_dir)}
    tasks = dict(earlier)
    for name, each in evaluations.items():
        left_out = {"samples", "model", "backend", "skipped"}
        tasks[name] = each.model_dump(mode="json", exclude=left_out) | data
    content = ResultsFile(
        model=model,
        protocol=protocol,
        skipped={name: why for name, why in skipped.items() if name not in tasks},
        tasks={name: tasks[name] for name in [*order, *tasks] if name in tasks},
    )
    with told_if_unwritable(out / FILE):
        write_text(out / FILE, content.model_dump_json(indent=2) + "\n")
    return tuple(name for name in earlier if name not in evaluations)


def _read(out: Path) -> ResultsFile | None:
    """Return the content; None where there is none, or none that this version reads."""
    try:
        return ResultsFile.model_validate_json((out / FILE).read_bytes())
    except (OSError, ValidationError):
        return None


def _differences(found: ResultsFile, model: str, protocol: Protocol) -> list[str]:
    old, new = found.protocol, protocol
    words = []
    if old.model_fingerprint != new.model_fingerprint:
        same = "whose files were others" if found.model == model else f"now {model}"
        words.append(f"model {found.model}, {same}")
    for name in ("backend", "limit", "dtype", "max_model_len"):
        before, now = getattr(old, name), getattr(new, name)
        if before != now:
            words.append(f"{name.replace('_', '-')} {_word(before)}, now {_word(now)}")
    return words


def _word(value: object) -> str:
    return "none" if value is None else str(value)
