"""A group that lm-eval scores by the mean over the items of all members is one task.

lm-eval's `aggregate_metric_list` with `weight_by_size` is that mean. So a group's items are those
of its members, one member after the other, and its score has an interval like any task's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

from ablations.scoring.observed import Key

Note = TypeVar("Note")


class ScoredGroup(NamedTuple):
    """A group that is one task."""

    members: tuple[str, ...]
    """Its tasks, in their order."""

    metrics: Mapping[str, tuple[str, ...]]
    """Metric -> filters under which the group has a score; () for all."""


def group_metrics(
    content: Mapping[str, Any], members: Sequence[Mapping[str, Any]]
) -> dict[str, tuple[str, ...]]:
    """Return the metrics of a group that are means over all items of its members; {} for none.

    Args:
        content: of the group's file.
        members: contents of the files of its tasks.
    """
    entries = content.get("aggregate_metric_list") or []
    metrics: dict[str, tuple[str, ...]] = {}
    for entry in entries if isinstance(entries, list) else [entries]:
        filters = entry.get("filter_list") or []
        is_mean = entry.get("aggregation", "mean") == "mean" and entry.get("weight_by_size", True)
        if not is_mean or not all(_has_mean(member, entry.get("metric")) for member in members):
            return {}
        metrics[entry["metric"]] = tuple([filters] if isinstance(filters, str) else filters)
    return metrics if members else {}


def _has_mean(content: Mapping[str, Any], metric: object) -> bool:
    """Return whether the score of a task by a metric is the mean over its items."""
    entries = [e for e in content.get("metric_list") or () if e.get("metric") == metric]
    plain = ("acc", "acc_norm", "exact_match")  # their aggregation in lm-eval's own table
    return bool(entries) and all(
        entry.get("aggregation", "mean" if metric in plain else None) == "mean" for entry in entries
    )


def item_starts(groups: Mapping[str, ScoredGroup], sizes: Mapping[str, int]) -> dict[str, int]:
    """Return task -> number of its first item in its group; `sizes` are items of tasks."""
    starts: dict[str, int] = {}
    for group in groups.values():
        ends = accumulate((sizes[member] for member in group.members), initial=0)
        starts |= zip(group.members, ends, strict=False)
    return starts


def with_groups(
    raw: Mapping[str, Any], groups: Mapping[str, ScoredGroup], starts: Mapping[str, int]
) -> dict[str, Any]:
    """Return a result of lm-eval with each group as a task in place of its members.

    Args:
        raw: the result, whose tasks are those of the groups and others.
        groups: name -> group.
        starts: `item_starts` of the groups.
    """
    result = {**raw}
    parts = ("samples", "results", "higher_is_better", "configs", "versions", "n-shot")
    result.update({name: dict(raw[name]) for name in parts})
    for group, (members, metrics) in groups.items():
        members = tuple(member for member in members if member in raw["samples"])
        if not members:
            continue
        result["samples"][group] = [
            {**logged, "doc_id": logged["doc_id"] + starts[member]}
            for member in members
            for logged in raw["samples"][member]
        ]
        sizes = [len({row["doc_id"] for row in raw["samples"][member]}) for member in members]
        keys = [
            key
            for key in raw["results"][members[0]]
            if (metric := key.partition(",")[0]) in metrics
            and key.partition(",")[2] in (metrics[metric] or (key.partition(",")[2],))
            and all(key in raw["results"][member] for member in members)
        ]
        result["results"][group] = {
            key: sum(
                size * raw["results"][member][key]
                for member, size in zip(members, sizes, strict=True)
            )
            / sum(sizes)
            for key in keys
        }
        for part in parts[2:]:
            result[part][group] = raw[part][members[0]]
        first = raw["configs"][members[0]]
        metadata = {k: v for k, v in (first.get("metadata") or {}).items() if k != "floor"}
        result["configs"][group] = {**first, "task": group, "metadata": metadata}
        for member in members:
            del result["samples"][member]
            del result["configs"][member]
    return result


def by_items_of_groups(
    notes: Mapping[Key, Note], groups: Mapping[str, ScoredGroup], starts: Mapping[str, int]
) -> dict[Key, Note]:
    """Return what was noted of each item by the items of groups; see `with_groups`."""
    names = {member: name for name, group in groups.items() for member in group.members}
    return {
        (names.get(task, task), item + starts.get(task, 0)): note
        for (task, item), note in notes.items()
    }
