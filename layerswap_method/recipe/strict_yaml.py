"""The one place that reads YAML: plain values only, every key once. Knows text, not its meaning.

Of two equal keys YAML readers keep the last and drop the first without a word; here that is an
error, and so is a tag that stands for anything but plain values (``!!python/...``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import yaml

from layerswap_method.errors import InputError, first_line

_MERGE = "tag:yaml.org,2002:merge"
"""Of the key ``<<``: YAML puts the keys of the block that it names in its place."""


def read_yaml(path: Path, *, tags: Collection[str] = ()) -> Any:
    """Return the content of the YAML file `path`; None where it is empty.

    Args:
        path: the file, in UTF-8.
        tags: further tags, such as ``!function``; what they mark is read as text.

    Raises:
        InputError: where it cannot be read, or with every key that stands in it twice.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: cannot be read: it is no text in UTF-8 ({error})") from error
    return parse_yaml(text, str(path), tags=tags)


def parse_yaml(text: str, where: str, *, tags: Collection[str] = ()) -> Any:
    """Return the content of `text`, one YAML document; None where it is empty.

    Args:
        text: the document.
        where: where it is from, for messages.
        tags: as for `read_yaml`.

    Raises:
        InputError: as `read_yaml` does.
    """
    try:
        loader = _loader(tags)(text)
        node = loader.get_single_node()
        problems = [] if node is None else [*_problems(loader, node, set())]
        if problems:
            raise InputError.from_problems(where, problems)
        return None if node is None else loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        said = ", ".join(each for each in (error.context, error.problem) if each)
        line = "" if error.problem_mark is None else f"line {error.problem_mark.line + 1}: "
        raise InputError(f"{where}: cannot be read: {line}{said}") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: no such day, too many digits
        raise InputError(f"{where}: cannot be read: {first_line(error)}") from error
    except RecursionError:
        raise InputError(f"{where}: cannot be read: its blocks are nested too deeply") from None


def _loader(tags: Collection[str]) -> type[yaml.SafeLoader]:
    class Loader(yaml.SafeLoader):
        """A safe loader that knows `tags` too."""

    for tag in tags:
        Loader.add_constructor(tag, lambda loader, node: loader.construct_scalar(node))  # type: ignore[arg-type]
    return Loader


def _problems(loader: yaml.SafeLoader, node: yaml.Node, seen: set[int]) -> Iterator[str]:
    """Yield every key that stands twice in one block, and every unknown tag, from `node` down."""
    if id(node) in seen:  # an alias: `*name`
        return
    seen.add(id(node))
    if not _is_known(loader, node):
        tag = node.tag.replace("tag:yaml.org,2002:", "!!")
        yield f"line {_line(node)}: the tag {tag} is not read here; write plain values"
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _problems(loader, item, seen)
    elif isinstance(node, yaml.MappingNode):
        yield from _repeated(loader, node)
        for pair in node.value:
            for part in pair:
                yield from _problems(loader, part, seen)


def _repeated(loader: yaml.SafeLoader, block: yaml.MappingNode) -> Iterator[str]:
    lines: dict[Any, int] = {}
    for name, _ in block.value:
        if not isinstance(name, yaml.ScalarNode) or not _is_known(loader, name):
            continue
        key = "<<" if name.tag == _MERGE else loader.construct_object(name)  # 1 and 0x1 are one
        if key in lines:
            yield (
                f"line {_line(name)} has the key {name.value!r} again (first in line "
                f"{lines[key]}), and YAML keeps only the last: drop one of them"
            )
        lines.setdefault(key, _line(name))


def _is_known(loader: yaml.SafeLoader, node: yaml.Node) -> bool:
    return node.tag == _MERGE or node.tag in loader.yaml_constructors


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
