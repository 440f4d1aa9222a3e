"""What a check found, and how it is shown: text, JSON, or annotations of GitHub Actions."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Literal

from layerswap_method.frozen import Frozen

Level = Literal["error", "warning", "note"]
"""`error`: the merge would fail or mean something else. `warning`: it may not be what is meant.
`note`: what could not be checked."""


class Finding(Frozen):
    """One thing that a check says of one recipe."""

    file: str
    """The recipe, as the user wrote it."""

    level: Level
    """How much it matters."""

    message: str
    """What, and what to do."""

    line: int | None = None
    """1-based; None where it is about the whole file."""


def line_of(text: str, message: str) -> int | None:
    """Return the line of a recipe that a message is about; None where it cannot be told.

    Args:
        text: the recipe.
        message: says ``line N``, or names a key or value that stands in one line only.
    """
    if (said := re.match(r"line (\d+)\b", message)) is not None:
        return int(said[1])
    lines = text.splitlines()
    words = [a or b.rstrip(".:") for a, b in re.findall(r"'([^']+)'|([\w./+@:-]+)", message)]
    # A key is named with the blocks that hold it: parameters.bottom_layers.
    for name in (part for word in words for part in dict.fromkeys((word, word.split(".")[-1]))):
        if len(name) < 3:
            continue
        pattern = re.compile(rf"(?<![\w./-]){re.escape(name)}(?![\w./-])")
        at = [
            number
            for number, line in enumerate(lines, 1)
            if not line.lstrip().startswith("#") and pattern.search(line)
        ]
        if len(at) == 1:
            return at[0]
    return None


def as_text(findings: Sequence[Finding], checked: int) -> str:
    """Return one line a finding and the sum."""
    lines = [f"{_place(found)}: {found.level}: {found.message}" for found in findings]
    counts = {level: sum(f.level == level for f in findings) for level in ("error", "warning")}
    recipes = "1 recipe" if checked == 1 else f"{checked} recipes"
    summed = ", ".join(f"{n} {level}{'' if n == 1 else 's'}" for level, n in counts.items())
    return "\n".join([*lines, f"{recipes}: {summed}"])


def as_json(findings: Sequence[Finding]) -> str:
    """Return the findings as a JSON list."""
    return json.dumps([found.model_dump() for found in findings], indent=2, ensure_ascii=False)


def as_github(findings: Sequence[Finding]) -> str:
    """Return the findings as workflow commands, which GitHub shows beside the lines."""
    commands = []
    for found in findings:
        place = f"file={_escaped(found.file, ',:')}"
        if found.line is not None:
            place += f",line={found.line}"
        kind = "notice" if found.level == "note" else found.level
        commands.append(f"::{kind} {place}::{_escaped(found.message)}")
    return "\n".join(commands)


def _place(found: Finding) -> str:
    return found.file if found.line is None else f"{found.file}:{found.line}"


def _escaped(text: str, more: str = "") -> str:
    """Return text with what ends a workflow command or a property written as %XX."""
    for character in f"%\r\n{more}":
        text = text.replace(character, f"%{ord(character):02X}")
    return text
