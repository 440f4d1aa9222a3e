"""Which tasks a request means: groups and tags taken apart, unsafe ones left out.

Knows the entries of lm-eval's task index; loads no task and no data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

NEEDS_CODE_EXECUTION = "needs --allow-code-execution"
"""Why a task that executes generated code is skipped."""


@dataclass(frozen=True)
class Choice:
    """The tasks of a request."""

    asked: tuple[str, ...]
    """Names to hand to lm-eval, each task once, in the order of the request."""

    skipped: dict[str, str] = field(default_factory=dict)
    """Task -> why it is not asked."""

    runs_code: bool = False
    """Whether one of `asked` executes what the model writes."""


def choose_tasks(
    index: Mapping[str, Any], names: Sequence[str], *, allow_code_execution: bool
) -> Choice:
    """Return what to ask for `names`, all of which are in `index`.

    A group of plain names becomes those names, so that two groups may share a task (lm-eval
    refuses that) and a group survives one task that is skipped. A group that changes its members
    on the way stays a group.

    Args:
        index: lm-eval's ``TaskManager.task_index``: name to entry (`kind`, `cfg`, `tags`).
        names: tasks, groups and tags.
        allow_code_execution: whether tasks that say ``unsafe_code: true`` are asked.
    """
    asked: dict[str, None] = {}
    skipped: dict[str, str] = {}
    runs_code = False
    for name in names:
        for leaf in _leaves(index, name):
            unsafe = _runs_code(index, leaf)
            if unsafe and not allow_code_execution:
                skipped[leaf] = NEEDS_CODE_EXECUTION
            else:
                asked[leaf] = None
                runs_code |= unsafe
    return Choice(tuple(asked), skipped, runs_code)


def _leaves(index: Mapping[str, Any], name: str) -> Iterator[str]:
    entry = index[name]
    if entry.kind.name == "TAG":
        yield from sorted(entry.tags)
        return
    members = entry.cfg.get("task") if entry.kind.name == "GROUP" else None
    plain = isinstance(members, list) and all(
        isinstance(each, str) and each in index for each in members
    )
    if not plain or _changes_members(entry.cfg):
        yield name
        return
    for member in members or ():
        yield from _leaves(index, member)


def _changes_members(group: Mapping[str, Any]) -> bool:
    """Return whether a group's file sets more than the group: then that goes to its members."""
    return bool(
        group.keys() - {"group", "group_alias", "task", "aggregate_metric_list", "metadata"}
    )


def _runs_code(index: Mapping[str, Any], name: str) -> bool:
    entry = index.get(name)
    if entry is None or entry.cfg is None:
        return False
    if entry.kind.name != "GROUP":
        return bool(entry.cfg.get("unsafe_code"))
    members = entry.cfg.get("task")
    named = [each.get("task") if isinstance(each, dict) else each for each in members or ()]
    return (
        bool(entry.cfg.get("unsafe_code"))
        or any(isinstance(each, dict) and each.get("unsafe_code") for each in members or ())
        or any(_runs_code(index, each) for each in named if isinstance(each, str))
    )
