"""MBPP for lm-eval: its problems, the program in an answer, and whether it passes the tests.

lm-eval loads this through `_mbpp.yaml`. Programs are run by the filter, which is given all answers
at once and so can run several at a time; the metric then reads their verdicts.
"""

from __future__ import annotations

import ast
import builtins
import itertools
import platform
import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablations.machine.progress import Step, show_step
from ablations.sandbox import Isolation, ProgramVerdict, probe, run_program
from ablations.tasks.data import DataSource, make_dataset, read_data_rows
from layerswap_method.errors import InputError
from layerswap_method.threads import usable_cores

if TYPE_CHECKING:
    from datasets import Dataset

TIME_S = 15.0
"""CPU seconds of a program. MBPP's own solution of problem 123 takes three on a fast machine."""

MEMORY_BYTES = 1 << 30
OUTPUT_BYTES = 1 << 20

_TEST_IDS = range(11, 511)
"""MBPP's test split (its README); the Japanese dataset has all splits in one."""

_MAX_AT_ONCE = 8
_FENCE = re.compile(
    r"^[ \t]*(?:```|~~~)[ \t]*[\w+.-]*(?:[ \t{][^`\r\n]*)?\r?$"  # perhaps with a title
    r"|^[ \t]*\[(?:BEGIN|DONE|/?PYTHON)\]|\[(?:DONE|/PYTHON)\][ \t]*\r?$",
    re.MULTILINE,
)
"""Lines between the parts of an answer; in brackets those of MBPP's authors and of Code Llama."""


class NoIsolation(InputError):
    """No sandbox for generated programs works on this machine."""


class RunCode(str):
    """The text of a program that was run; lm-eval passes on nothing but text."""

    verdict: ProgramVerdict

    def __new__(cls, code: str, verdict: ProgramVerdict) -> RunCode:
        """Return `code` with its `verdict`."""
        program = super().__new__(cls, code)
        program.verdict = verdict
        return program


def check_isolation(isolation: Isolation) -> None:
    """Check that programs can be isolated on this machine, by trying it.

    Raises:
        NoIsolation: when it is bwrap and that does not work.
    """
    if isolation == "bwrap" and (failure := probe()) is not None:
        raise NoIsolation(
            f"generated code cannot be isolated on this machine ({failure}), so it is not run; "
            "install bubblewrap (bwrap 0.8 or newer) where Linux allows user namespaces, or use "
            "--code-isolation none if this container is the sandbox"
        )


def describe_isolation(isolation: Isolation) -> str:
    """Return the Python of the programs and how they are isolated, in one line."""
    words = {
        "bwrap": "generated code runs under bwrap: no network, no files, no processes",
        "none": "generated code runs WITHOUT ISOLATION, only with limits (--code-isolation none)",
    }
    return f"Python {platform.python_version()}: {words[isolation]}"


def load_mbpp(
    *,
    hub_id: str,
    configs: Mapping[str, str],
    split: str,
    column: str,
    data_dir: Path | str | None = None,
    **_metadata: Any,
) -> dict[str, Dataset]:
    """Return MBPP's split ``test``: task_id, text, test_list, test_setup_code.

    On the hub the test problems are in `split`, and `column` has the text of a problem. See
    `ablations.tasks.data` for the rest.
    """
    ((language, config),) = configs.items()
    columns = ("task_id", column, "test_list")
    source = DataSource("mbpp", columns, texts=(column,), optional=("test_setup_code",))
    source_split = split if data_dir is None else "test"
    items, problems = [], []
    for row in read_data_rows(source, source_split, language, config, hub_id, data_dir):
        if row["task_id"] not in _TEST_IDS:
            continue
        tests, setup = row["test_list"], row.get("test_setup_code") or ""
        if not (isinstance(tests, list) and all(isinstance(test, str) for test in [*tests, setup])):
            problems.append(f"task_id {row['task_id']}: its tests are not a list of texts")
            continue
        try:
            tested_names([setup, *tests])
        except SyntaxError as error:
            problems.append(f"task_id {row['task_id']}: its tests are not valid Python: {error}")
        items.append(
            {
                "task_id": row["task_id"],
                "text": row[column].strip(),
                "test_list": [test.strip() for test in tests],
                "test_setup_code": setup,
            }
        )
    if not (items or problems):
        problems.append("no task_id from 11 to 510, which are MBPP's test problems")
    return {"test": make_dataset(f"mbpp {language} ({source_split})", items, problems)}


def run_answers(
    answers: Iterable[Sequence[str]],
    items: Sequence[Mapping[str, Any]],
    isolation: Isolation = "bwrap",
) -> list[RunCode]:
    """Run the program of each item's first answer against its tests: the filter of `_mbpp.yaml`.

    `isolation` is that of the request, which is set where the task is made of its file.

    Raises:
        NoIsolation: when no sandbox works on this machine.
    """
    check_isolation(isolation)
    # Of 64 cores a job may have two: programs that wait for a core run out of wall time.
    threads = min(usable_cores(), _MAX_AT_ONCE)
    show_step(Step(f"running {len(items)} generated programs"))
    # The code that sets tests up follows the program, whose classes it may use.
    tests = ["\n".join([item["test_setup_code"], *item["test_list"]]) for item in items]
    programs = [
        extract_code(item_answers[0], tested_names([text]))
        for item_answers, text in zip(answers, tests, strict=True)
    ]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(_run, programs, tests, itertools.repeat(isolation)))


def score(item: Mapping[str, Any], results: Sequence[RunCode]) -> dict[str, float]:
    """Return ``pass@1`` of one item: 1 where its program passed every test, else 0."""
    (program,) = results
    return {"pass@1": float(program.verdict.status == "passed")}


def _run(code: str, tests: str, isolation: Isolation) -> RunCode:
    if not code:
        return RunCode("", ProgramVerdict(status="failed", detail="there is no code in the answer"))
    verdict = run_program(
        code, tests, TIME_S, MEMORY_BYTES, OUTPUT_BYTES, sandboxed=isolation == "bwrap"
    )
    return RunCode(code, verdict)


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

    Its parts are the texts between two fences, before the first and after the last. The program is
    the first part that defines one of `names`: so prose before a block, prose after it, a
    second block with an example and a block that is opened once more do no harm. Where no part
    does, it is the first that is not blank. Functions, classes, values and imports that it uses and
    another part has stand before it.

    Args:
        answer: as the model gave it; vLLM may have put one space before it.
        names: what the tests call; see `tested_names`.
    """
    parts = [part for part in _FENCE.split(answer) if part.strip()]
    if not parts:
        return ""
    defines = re.compile(
        rf"^[ \t]*(?:(?:async[ \t]+)?def|class)[ \t]+(?:{'|'.join(map(re.escape, names))})\b"
        rf"|^[ \t]*(?:{'|'.join(map(re.escape, names))})[ \t]*(?::[^=\n]+)?=(?!=)",
        re.MULTILINE,
    )
    chosen = next((part for part in parts if names and defines.search(part)), parts[0])
    code = _unindent(chosen)
    helpers = _helpers(code, [_unindent(part) for part in parts if part is not chosen])
    return "\n\n".join([*helpers, code])


def _helpers(code: str, others: Iterable[str]) -> list[str]:
    """Return the statements of `others` that define what `code` uses, in their order."""
    definitions: dict[str, str] = {}
    for other in others:
        for name, statement in _definitions(other).items():
            definitions.setdefault(name, statement)
    used, left = set[str](), [code]
    while left:
        new = _undefined_names(left.pop()) & (definitions.keys() - used)
        used |= new
        left += [definitions[name] for name in new]
    return list(dict.fromkeys(text for name, text in definitions.items() if name in used))


def _definitions(code: str) -> dict[str, str]:
    """Return name -> the statement at the margin of `code` that defines it."""
    lines, definitions = re.split(r"\r\n|\r|\n", code), dict[str, str]()
    for node in _parse(code).body:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        statement = "\n".join(lines[first - 1 : node.end_lineno])
        for name in _defined_names([node]):
            definitions.setdefault(name, statement)
    return definitions


def _defined_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the names that statements define: of functions, classes, imports and values."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def _undefined_names(code: str) -> set[str]:
    """Return the names that `code` reads and neither defines nor takes from Python."""
    nodes = [*ast.walk(_parse(code))]
    names = [node for node in nodes if isinstance(node, ast.Name)]
    read = {node.id for node in names if isinstance(node.ctx, ast.Load)}
    defined = {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    defined |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    return read - defined - set(_defined_names(nodes)) - set(dir(builtins))


def _parse(code: str) -> ast.Module:
    """Return the tree of a program, an empty one of what is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as on an escape that Python does not know
            return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def _unindent(code: str) -> str:
    """Return code that begins at the margin: the whole moved there, or its first line only."""
    lines = code.strip("\r\n").split("\n")
    while lines and not lines[0].strip():
        del lines[0]
    depth = _depth(lines[0])
    later_depths = [_depth(line) for line in lines[1:] if line.strip()]
    if depth == 1 or any(later_depth < depth for later_depth in later_depths):
        # One space before the first line: the tokenizer's, not the model's.
        lines[0] = lines[0].lstrip()
    else:
        lines = [line[depth:] for line in lines]
    return "\n".join(lines).rstrip()


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())
