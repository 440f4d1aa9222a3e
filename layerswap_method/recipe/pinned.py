"""The commits of models of the hub, and a recipe's text with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from layerswap_method.recipe.references import Model, is_hub_id, is_there


def commits(models: Mapping[str, Model]) -> dict[str, str]:
    """Return hub id, as the recipe writes it -> commit, for the models that came from the hub."""
    found = {}
    for reference, model in models.items():
        for part, folder in zip(reference.split("+"), model.folders, strict=False):
            is_hub = is_hub_id(part) and not is_there(part)
            if is_hub and folder.parent.name == "snapshots":
                found[part] = folder.name
    return found


def with_commits(record: Mapping[str, Any], known: Mapping[str, str]) -> Mapping[str, Any]:
    """Return the content of a plan file with the `commits` of its models, if there is any."""
    return {**record, "commits": known} if record and known else record


def pinned_reference(reference: str, known: Mapping[str, str]) -> str:
    """Return a reference with the commits of its parts."""
    parts = reference.split("+")
    return "+".join(
        f"{part.partition('@')[0]}@{known[part]}" if part in known else part for part in parts
    )


def pinned_text(text: str, known: Mapping[str, str]) -> str:
    """Return a recipe's text whose hub ids name their commits; all else stays as it is."""
    for node in sorted(_values(yaml.compose(text)), key=lambda n: n.start_mark.index, reverse=True):
        start, end = node.start_mark.index, node.end_mark.index
        before, reference, after = text[start:end].rpartition(node.value)
        if reference and (pinned := pinned_reference(reference, known)) != reference:
            text = f"{text[:start]}{before}{pinned}{after}{text[end:]}"
    return text


def _values(node: yaml.Node | None) -> Iterator[yaml.ScalarNode]:
    """Yield the scalars of a document that are values, each once; aliases are left out."""
    seen, left = set(), [node]
    while left:
        node = left.pop()
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.ScalarNode):
            yield node
        elif isinstance(node, yaml.MappingNode):
            left += [value for _, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            left += node.value
