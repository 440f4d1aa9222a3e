"""The commits of models of the hub, and a recipe's text with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from layerswap_method.recipe.references import Model, is_hub_id, is_there


def commits(models: Mapping[str, Model]) -> dict[str, str]:
    """Return hub id, as the recipe writes it -> commit, for the models that came from the hub."""
    commit_of = {}
    for reference, model in models.items():
        for part, folder in zip(reference.split("+"), model.folders, strict=False):
            is_hub = is_hub_id(part) and not is_there(part)
            if is_hub and folder.parent.name == "snapshots":
                commit_of[part] = folder.name
    return commit_of


def with_commits(record: Mapping[str, Any], commit_of: Mapping[str, str]) -> Mapping[str, Any]:
    """Return the content of a plan file with the `commits` of its models, if there is any."""
    return {**record, "commits": commit_of} if record and commit_of else record


def pinned_reference(reference: str, commit_of: Mapping[str, str]) -> str:
    """Return a reference with the commits of its parts."""
    parts = reference.split("+")
    return "+".join(
        f"{part.partition('@')[0]}@{commit_of[part]}" if part in commit_of else part
        for part in parts
    )


def pinned_text(text: str, commit_of: Mapping[str, str]) -> str:
    """Return a recipe's text whose hub ids name their commits; all else stays as it is."""
    nodes = sorted(_values(yaml.compose(text)), key=lambda node: node.start_mark.index)
    for node in reversed(nodes):  # from the end, so that the marks before stay valid
        start, end = node.start_mark.index, node.end_mark.index
        before, reference, after = text[start:end].rpartition(node.value)
        if reference and (pinned := pinned_reference(reference, commit_of)) != reference:
            text = f"{text[:start]}{before}{pinned}{after}{text[end:]}"
    return text


def _values(node: yaml.Node | None) -> Iterator[yaml.ScalarNode]:
    """Yield the scalars of a document that are values, each once; aliases are left out."""
    visited, waiting = set(), [node]
    while waiting:
        node = waiting.pop()
        if node is None or id(node) in visited:
            continue
        visited.add(id(node))
        if isinstance(node, yaml.ScalarNode):
            yield node
        elif isinstance(node, yaml.MappingNode):
            waiting += [value for _, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value
