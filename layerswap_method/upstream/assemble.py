"""Writes the pull request for mergekit into a copy of mergekit.

The method is one file there. It is put together from this package's own sources, so there is no
second copy to keep in step. Knows source text and mergekit's folders; imports nothing of ours.

    python -m layerswap_method.upstream.assemble FOLDER

FOLDER holds the package `mergekit`: a clone of its repository, or a copy of what pip installed.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from layerswap_method.errors import InputError, LayerSwapError

_HERE = Path(__file__).parent
_PACKAGE = _HERE.parent

SOURCES = (
    "algorithm/layer_lists.py",
    "algorithm/tensor_names.py",
    "algorithm/plan.py",
    "algorithm/coefficients.py",
    "algorithm/average.py",
    "mergekit_plugin/layer_swap_kernel.py",
)
"""What the file is made of; later ones import earlier ones only."""

METHOD = "layer_swap"
"""The function that the file is for; what it does not use is left out."""

_HEADER = '''\
# Copyright (C) 2026 Arcee AI
# SPDX-License-Identifier: LGPL-3.0-only

"""Layer Swapping (arXiv 2410.01335): outer layers from one expert, the others from another.

Line 5 of the paper's Algorithm 1 as printed says ``l > b-1+t_b or l < L-u-t_u``; read literally
no layer would ever be averaged. It must be *and*, which is what is implemented here.
"""

from __future__ import annotations

'''

_SUPPRESSION = re.compile(r"[ ]*# (?:type: ignore|noqa)[^\n]*")
_GUIDE_HEADING = "### Passthrough (`passthrough`)\n"
_GUIDE_ENTRY = "  - [Passthrough (`passthrough`)](#passthrough-passthrough)\n"


def method_file() -> str:
    """Return the text of ``mergekit/merge_methods/layer_swap.py`` in mergekit's style.

    Raises:
        LayerSwapError: where two sources give one name to different things, or ruff, which
            formats it, is missing.
    """
    imports: list[str] = []
    pieces: list[tuple[set[str], set[str], str]] = []
    for source in SOURCES:
        text = (_PACKAGE / source).read_text(encoding="utf-8")
        found = _statements(text)
        imports += (ast.unparse(node) for node, _ in found if _is_foreign(node))
        pieces += _pieces(found)
    names = [name for defined, _, _ in pieces for name in defined]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise LayerSwapError(f"upstream: {', '.join(twice)} is defined in two of the sources")
    wanted = _reachable(METHOD, pieces)
    body = "\n\n".join(text for defined, _, text in pieces if defined & wanted)
    text = _SUPPRESSION.sub("", body)
    return formatted(_HEADER + "\n".join(dict.fromkeys(imports)) + "\n\n" + text + "\n")


def write(folder: Path) -> list[Path]:
    """Write the pull request into a folder that holds the package `mergekit`.

    A copy of what pip installed has no `docs` and no `tests`; what would change there is left out.
    mergekit's test of all methods gives no roles, which a swap cannot do without, so it gets them.

    Returns:
        What was written or changed.

    Raises:
        InputError: where it is no mergekit, one that has the method already, or one that another
            version of its registry or guide makes unfit.
    """
    registry = folder / "mergekit" / "merge_methods" / "registry.py"
    if not registry.is_file():
        raise InputError(f"{folder}: holds no mergekit/merge_methods/registry.py")
    guide = folder / "docs" / "merge_methods.md"
    changed = {registry: _registered(registry.read_text(encoding="utf-8"), registry)}
    regressions = folder / "tests" / "test_merge_method_regressions.py"
    if regressions.is_file():
        changed[regressions] = _with_roles(regressions.read_text(encoding="utf-8"), regressions)
    if guide.is_file():
        changed[guide] = _guided(guide.read_text(encoding="utf-8"), guide)
    changed[registry.with_name("layer_swap.py")] = method_file()
    for name in ("examples/layer_swap.yml", "tests/test_layer_swap.py"):
        changed[folder / name] = (_HERE / "new" / name).read_text(encoding="utf-8")
    for path, text in changed.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return list(changed)


def _statements(text: str) -> list[tuple[ast.stmt, str]]:
    """Return each statement at the top of a module, with its source from its comment on."""
    lines, found = text.splitlines(), []
    for node in ast.parse(text).body:
        decorators: list[ast.expr] = getattr(node, "decorator_list", [])
        start = min([node.lineno, *(each.lineno for each in decorators)])
        while lines[start - 2].startswith("#"):  # its comment
            start -= 1
        found.append((node, "\n".join(lines[start - 1 : node.end_lineno])))
    return found


def _is_foreign(node: ast.stmt) -> bool:
    """Return whether a statement imports what the file imports too."""
    if isinstance(node, ast.ImportFrom):
        return str(node.module).partition(".")[0] not in ("layerswap_method", "__future__")
    return isinstance(node, ast.Import)


def _pieces(statements: Iterable[tuple[ast.stmt, str]]) -> Iterator[tuple[set[str], set[str], str]]:
    """Yield (names it defines, names it uses, source); a text below a constant stays with it."""
    last: tuple[set[str], set[str], str] | None = None
    for node, text in statements:
        if isinstance(node, ast.Expr):
            if last is not None:
                last = (last[0], last[1], f"{last[2]}\n{text}")
            continue
        if last is not None:
            yield last
            last = None
        if isinstance(node, ast.Import | ast.ImportFrom):
            continue
        used = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        last = (_defined(node), used, text)
    if last is not None:
        yield last


def _defined(node: ast.stmt) -> set[str]:
    """Return the names that a function, a class or an assignment gives the module."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    stores = (each for each in ast.walk(node) if isinstance(each, ast.Name))
    return {each.id for each in stores if isinstance(each.ctx, ast.Store)}


def _reachable(name: str, pieces: Iterable[tuple[set[str], set[str], str]]) -> set[str]:
    """Return every name that the definition of `name` needs, itself among them."""
    uses = {defined: used for names, used, _ in pieces for defined in names}
    found: set[str] = set()
    waiting = [name]
    while waiting:
        each = waiting.pop()
        if each in uses and each not in found:
            found.add(each)
            waiting += uses[each]
    return found


def formatted(text: str) -> str:
    """Return the text with sorted imports and mergekit's line length, as black has it."""
    ruff = [sys.executable, "-m", "ruff"]
    first_party = ["--config", 'lint.isort.known-first-party=["mergekit", "tests"]']
    where = ["--isolated", "--line-length", "88", "--target-version", "py310", *first_party]
    for step in (["check", "--select", "I,F401", "--fix"], ["format"]):
        done = subprocess.run(
            [*ruff, *step, *where, "-q", "-"],
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise LayerSwapError(
                f"upstream: ruff {step[0]} failed (pip install ruff): {done.stderr.strip()}"
            )
        text = done.stdout
    return text


def _registered(text: str, path: Path) -> str:
    """Return mergekit's registry with the import and the entry of the method."""
    if f"import {METHOD}\n" in text:
        raise InputError(f"{path}: has {METHOD} already")
    before, entry = "from mergekit.merge_methods.linear import", "    nearswap_merge,\n"
    if text.count(before) != 1 or text.count(entry) != 1:
        raise InputError(f"{path}: is not the registry of mergekit 0.1.5")
    line = f"from mergekit.merge_methods.{METHOD} import {METHOD}\n"
    return text.replace(before, line + before).replace(entry, f"    {METHOD},\n{entry}")


def _guided(text: str, path: Path) -> str:
    """Return mergekit's guide with the section of the method and its line of the contents."""
    if text.count(_GUIDE_HEADING) != 1 or text.count(_GUIDE_ENTRY) != 1:
        raise InputError(f"{path}: has no section on passthrough to stand before")
    section = (_HERE / "new" / "docs" / "section.md").read_text(encoding="utf-8")
    entry = f"  - [Layer Swapping (`{METHOD}`)](#layer-swapping-{METHOD})\n"
    text = text.replace(_GUIDE_ENTRY, entry + _GUIDE_ENTRY)
    return text.replace(_GUIDE_HEADING, f"{section}\n{_GUIDE_HEADING}")


def _with_roles(text: str, path: Path) -> str:
    """Return mergekit's test of all methods with the roles of this one."""
    after = "    parameters.update(overrides)\n"
    if text.count(after) != 1:
        raise InputError(f"{path}: is not the test of mergekit 0.1.5")
    roles = '        parameters["role"] = ["task", "language"]\n'
    return text.replace(after, f'    if method_name == "{METHOD}":\n{roles}{after}')


def main(arguments: list[str]) -> int:
    """Write the pull request into the one folder that is named; return the exit code."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        sys.stderr.write("usage: python -m layerswap_method.upstream.assemble FOLDER\n")
        return 2
    try:
        written = write(Path(arguments[0]))
    except LayerSwapError as error:
        sys.stderr.write(f"Error: {error}\n")
        return 2 if isinstance(error, InputError) else 1
    sys.stdout.write("".join(f"{path}\n" for path in written))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
