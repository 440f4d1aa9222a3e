"""The one place that reads YAML: plain values only, every key once.

Of two equal keys YAML readers silently keep only the last; here that is an error, and so is a tag
for anything but plain values (``!!python/...``). An alias (``*name``) is read after ``<<:`` only:
elsewhere a few of them can make a document of enormous size.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from layerswap_method.errors import InputError, first_line, nearest


def read_yaml(path: Path) -> Any:
    """Return the content of the YAML file `path`, in UTF-8; None where it is empty.

    Raises `InputError` where it cannot be read, or with every key that stands in it twice.
    """
    return read_text_and_yaml(path)[1]


def read_text_and_yaml(path: Path) -> tuple[str, Any]:
    """Return the text of the YAML file `path` and what `read_yaml` returns of it."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        hint = ""
        if isinstance(error, FileNotFoundError):
            hint = nearest(path.name, [neighbour.name for neighbour in path.parent.glob("*")])
        raise InputError(f"{path}: cannot be read: {error.strerror or error}{hint}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: cannot be read: it is not UTF-8 text ({error})") from error
    return text, parse_yaml(text, str(path))


def plain_document(document: Mapping[str, Any], kind: str) -> Any:
    """Return what a program wrote as a mapping as YAML would give it; paths become strings.

    `kind` is for the message. Raises `InputError` where YAML has no plain value for a part of it.
    """
    try:
        return json.loads(json.dumps(document, default=os.fspath))
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{kind}: holds a value that no {kind} can hold: {error}") from error


def parse_yaml(text: str, where: str) -> Any:
    """Return the content of one YAML document; `where` it is from is for messages."""
    problems: list[str] = []
    try:
        content = _StrictLoader(text, problems).get_single_data()
    except yaml.MarkedYAMLError as error:
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        line = "" if error.problem_mark is None else f"line {error.problem_mark.line + 1}: "
        raise InputError(f"{where}: cannot be read: {line}{reason}") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: no such day, too many digits
        raise InputError(f"{where}: cannot be read: {first_line(error)}") from error
    except RecursionError:
        raise InputError(f"{where}: cannot be read: its blocks are nested too deeply") from None
    InputError.raise_any(where, problems)
    return content


_MERGE = "tag:yaml.org,2002:merge"
"""Tag of the key ``<<``."""


class _StrictLoader(yaml.SafeLoader):
    """A safe loader that notes every key that stands twice in one block, and unknown tags."""

    def __init__(self, text: str, problems: list[str]) -> None:
        super().__init__(text)
        constructors: dict[Any, Any] = {**self.yaml_constructors, None: _StrictLoader._refuse}
        self.yaml_constructors = constructors  # type: ignore[misc]
        self._problems = problems
        self._checked: set[int] = set()
        """Ids of the nodes whose keys were looked at."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose the next node; refuse an alias that stands for a value."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        merges = isinstance(index, yaml.ScalarNode) and index.tag == _MERGE
        if isinstance(event, yaml.AliasEvent) and not merges:
            mark: Any = event.start_mark
            raise yaml.composer.ComposerError(
                None, None, f"the alias *{event.anchor} is not read here; write the value out", mark
            )
        return super().compose_node(parent, index)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Put the keys of ``<<`` in their place, as YAML does; before that, look at its own."""
        names = [] if id(node) in self._checked else [name for name, _ in node.value]
        self._checked.add(id(node))
        lines: dict[Any, int] = {}
        for name in names:
            if not isinstance(name, yaml.ScalarNode):
                continue
            key = "<<" if name.tag == _MERGE else self.construct_object(name)  # 1 and 0x1 are one
            line = name.start_mark.line + 1
            if key in lines:
                self._problems.append(
                    f"line {line} has the key {name.value!r} again (first in line {lines[key]}), "
                    "and YAML keeps only the last: drop one of them"
                )
            lines.setdefault(key, line)
        super().flatten_mapping(node)

    def _refuse(self, node: yaml.Node) -> None:
        tag, line = node.tag.replace("tag:yaml.org,2002:", "!!"), node.start_mark.line + 1
        self._problems.append(f"line {line}: the tag {tag} is not read here; write plain values")
