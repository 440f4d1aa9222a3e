"""The tasks that the names of a request mean, among those that its folders and lm-eval offer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from ablations.machine.progress import Step, show_step
from ablations.requests.known_tasks import KnownTasks, known_tasks
from ablations.requests.lm_eval_index import lm_eval_index
from ablations.sandbox import Isolation
from ablations.scoring.evaluation import EvaluationRequest
from ablations.scoring.groups import ScoredGroup, group_metrics
from ablations.tasks.catalog import list_tasks
from layerswap_method.errors import InputError, nearest, with_valid

NEEDS_CODE_EXECUTION = "needs --allow-code-execution"
"""Why a task that executes generated code in the sandbox is skipped."""

NEEDS_NO_SANDBOX = (
    "it runs generated programs by itself, not in the sandbox, and needs --allow-code-execution "
    "--code-isolation none"
)
"""Why a task that executes generated code in this process is skipped."""

_SANDBOXED = ("ablations.tasks.mbpp.run_answers", "ablations.tasks.mbpp.score")
"""Functions of a task whose programs run in the sandbox: filter and score."""

_LISTED = 12
"""Known names that a message about an unknown task has."""

_NEAR = 0.75
"""Nearness from which a name of lm-eval's ten thousand is worth a hint."""

_GROUP_KEYS = {"group", "group_alias", "task", "aggregate_metric_list", "metadata"}
"""Keys of a group's file that are the group's; all others go to its members."""


@dataclass(frozen=True)
class ResolvedTasks:
    """The tasks of a request, with what was read of their files; picklable, for workers."""

    request: EvaluationRequest
    known: KnownTasks

    chosen: tuple[str, ...]
    """Names of tasks, and of groups that are one, each once, in the order of the request."""

    skipped: Mapping[str, str]
    """Task -> why it is skipped."""

    groups: Mapping[str, ScoredGroup]
    """The groups among the chosen."""

    @property
    def tasks(self) -> tuple[str, ...]:
        """The chosen tasks, with those of chosen groups in the groups' places, each once."""
        parts = (self.groups[n].members if n in self.groups else (n,) for n in self.chosen)
        return tuple(dict.fromkeys(chain(*parts)))

    @property
    def runs_code(self) -> bool:
        """Whether a chosen task executes what the model writes."""
        return any(self.known.file(name).content.get("unsafe_code") for name in self.chosen)

    def only(self, name: str) -> ResolvedTasks:
        """Return one of the chosen tasks alone."""
        return replace(
            self,
            request=self.request.model_copy(update={"tasks": (name,)}),
            chosen=(name,),
            skipped={},
            groups={name: self.groups[name]} if name in self.groups else {},
        )


def resolve(request: EvaluationRequest) -> ResolvedTasks:
    """Return the tasks that a request means, and which of them are skipped; loads no data.

    A group that lm-eval scores by the mean over all items stays one. A tag, and any other group of
    plain names, becomes those names, so that two groups may share a task (lm-eval refuses that) and
    a group survives one task that is skipped.

    Raises:
        InputError: for a folder that does not exist, naming every unknown task with the nearest
            known one, and every group that gives its members settings: a record is of one task.
    """
    show_step(Step("reading the task files"))
    for folder in request.task_folders:
        if not folder.is_dir():
            raise InputError(f"{folder}: no such folder of lm-eval task files")
    if request.data_dir is not None and not request.data_dir.is_dir():
        raise InputError(f"{request.data_dir}: no such folder of task data")
    known = known_tasks(request.folders)
    for folder in request.task_folders:
        if not known.names[folder]:
            raise InputError(
                "; ".join(
                    [f"{folder}: has no lm-eval task file (*.yaml)", *_unreadable(known, folder)]
                )
            )
    _check_names(request, known)
    problems = list[str]()
    groups = dict[str, ScoredGroup]()
    leaves = (leaf for task in request.tasks for leaf in _leaves(known, task, problems, groups))
    names = tuple(dict.fromkeys(leaves))
    if problems:
        raise InputError("\n".join(dict.fromkeys(problems)))
    contents = {name: known.file(name).content for name in names}
    reasons = {
        name: why_generated_code_may_not_run(content, request.isolation)
        for name, content in contents.items()
    }
    chosen = tuple(name for name in names if reasons[name] is None)
    return ResolvedTasks(
        request=request,
        known=known,
        chosen=chosen,
        skipped={name: reason for name, reason in reasons.items() if reason is not None},
        groups=groups,
    )


def why_generated_code_may_not_run(
    content: Mapping[str, Any], isolation: Isolation | None
) -> str | None:
    """Return why a task is skipped because of the code that it executes; None where it may run.

    The sandbox holds the programs of tasks that ask it. All others (lm-eval's own, such as
    cruxeval, and a user's) execute them in this process, which nothing but the user can allow.

    Args:
        content: of the task's file.
        isolation: of the request; None where no generated code may run.
    """
    if not content.get("unsafe_code"):
        return None
    steps = [step for part in content.get("filter_list") or () for step in part.get("filter") or ()]
    functions = [*(step.get("filter_fn") for step in steps), content.get("process_results")]
    is_sandboxed = all(any(str(f).endswith(name) for f in functions) for name in _SANDBOXED)
    if is_sandboxed:
        return None if isolation is not None else NEEDS_CODE_EXECUTION
    return None if isolation == "none" else NEEDS_NO_SANDBOX


def _check_names(request: EvaluationRequest, known: KnownTasks) -> None:
    """Raise for names that neither the folders nor lm-eval have."""
    names_of_folders = sorted({*chain(*known.names.values())})
    unknown = [name for name in request.tasks if known.entry(name) is None]
    if not unknown:
        return
    valid = {*lm_eval_index(), *(task.name for task in list_tasks())}
    problems = [
        f"unknown task {name!r}{nearest(name, names_of_folders) or nearest(name, valid, _NEAR)}"
        for name in unknown
    ]
    if request.include_path:
        listed = list(names_of_folders[:_LISTED])
        if len(names_of_folders) > _LISTED:
            listed.append(f"{len(names_of_folders) - _LISTED} more")
        listed.append("and lm-eval's own tasks (lm-eval ls tasks)")
        where = ", ".join(map(str, request.include_path))
    else:
        listed = [
            "the paper's benchmarks (layerswap tasks)",
            "lm-eval's own tasks (lm-eval ls tasks)",
            "and those of a folder that --include-path names, or include_path: in a file",
        ]
        where = "tasks"
    problems[-1] = with_valid(problems[-1], listed)
    problems += chain(*(_unreadable(known, folder) for folder in request.task_folders))
    raise InputError.from_problems(where, problems)


def _unreadable(known: KnownTasks, folder: Path) -> Iterator[str]:
    """Yield the files of a folder that cannot be read, each with what is wrong with it."""
    for path, problem in known.problems.items():
        if path.is_relative_to(folder):
            yield f"{path} cannot be read: {problem}"


def _leaves(
    known: KnownTasks, name: str, problems: list[str], groups: dict[str, ScoredGroup]
) -> Iterator[str]:
    """Yield the tasks of a tag or a group; add groups that are one; note one that changes members.

    A group of which a member runs code is none: without leave, the others are evaluated.
    """
    entry, content = known.entry(name), known.file(name).content
    if entry is not None and entry.kind.name == "TAG":
        yield from known.members(name)
        return
    if entry is None or entry.kind.name != "GROUP":
        yield name
        return
    members = content.get("task") or []
    is_plain = all(isinstance(m, str) and known.entry(m) is not None for m in members)
    if is_plain and members and not content.keys() - _GROUP_KEYS:
        inner: dict[str, ScoredGroup] = {}
        leaves = [leaf for member in members for leaf in _leaves(known, member, problems, inner)]
        if content.get("aggregate_metric_list"):
            parts = (inner[leaf].members if leaf in inner else (leaf,) for leaf in leaves)
            tasks = tuple(dict.fromkeys(chain(*parts)))
            contents = [known.file(task).content for task in tasks]
            is_safe = not any(part.get("unsafe_code") for part in contents)
            if is_safe and (metrics := group_metrics(content, contents)):
                groups[name] = ScoredGroup(tasks, metrics)
                yield name
                return
        groups |= inner
        yield from leaves
        return
    named = [str(member.get("task") if isinstance(member, dict) else member) for member in members]
    problems.append(
        f"task group {name!r} gives its members settings of its own, which only plain lm-eval "
        f"scores; name its members with settings in their own files ({', '.join(named)})"
    )
