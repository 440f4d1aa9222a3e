"""The program in an answer, found by the names that the tests call."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Collection, Sequence

_FENCE = re.compile(r"^[ \t]*(?:```|~~~)[ \t]*(?P<language>[\w+.-]*)[ \t]*\r?$", re.MULTILINE)


def tested_names(tests: Sequence[str]) -> frozenset[str]:
    """Return the functions and classes that the tests call.

    Python's own are among them only where nothing else is called: MBPP has a problem whose
    function is named ``sum``.

    Raises:
        SyntaxError: for tests that are no Python.
    """
    tree = ast.parse("\n".join(tests))
    called = {
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    return frozenset(called - set(dir(builtins)) or called)


def extract_code(answer: str, names: Collection[str]) -> str:
    r"""Return the program in an answer to a prompt that ends with an opened block of code.

    What stands between two fences, before the first and after the last are its parts. The program
    is the first part that defines one of `names`: so prose before a block, prose after it, a
    second block with an example and a block that is opened once more do no harm. Where no part
    does, it is the first that is not blank.

    Args:
        answer: as the model gave it; vLLM may have put one space before it.
        names: what the tests call; see `tested_names`.
    """
    parts = [part for part in _split(answer) if part.strip()]
    if not parts:
        return ""
    defines = re.compile(
        rf"^[ \t]*(?:(?:async[ \t]+)?def|class)[ \t]+(?:{'|'.join(map(re.escape, names))})\b"
        rf"|^[ \t]*(?:{'|'.join(map(re.escape, names))})[ \t]*(?::[^=\n]+)?=(?!=)",
        re.MULTILINE,
    )
    chosen = next((part for part in parts if names and defines.search(part)), parts[0])
    return _unindent(chosen)


def _split(answer: str) -> list[str]:
    parts, start = [], 0
    for fence in _FENCE.finditer(answer):
        parts.append(answer[start : fence.start()])
        start = fence.end()
    return [*parts, answer[start:]]


def _unindent(code: str) -> str:
    """Return code that begins at the margin: the whole moved there, or its first line only."""
    lines = code.strip("\r\n").split("\n")
    while lines and not lines[0].strip():
        del lines[0]
    depth = _depth(lines[0])
    others = [_depth(line) for line in lines[1:] if line.strip()]
    if depth == 1 or any(other < depth for other in others):
        # One space before the first line: the tokenizer's, not the model's.
        lines[0] = lines[0].lstrip()
    else:
        lines = [line[depth:] for line in lines]
    return "\n".join(lines).rstrip()


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())
