"""MBPP for lm-eval: its problems, and whether answers solve them.

lm-eval loads this through `_mbpp.yaml`. Programs are run by the filter, which is given all answers
at once and so can run several at a time; the metric then reads what came of them.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablations.machine.progress import Step, tell
from ablations.sandbox import Isolation, ProgramVerdict, probe, run_program
from ablations.tasks.code import extract_code, tested_names
from ablations.tasks.data import Source, make_dataset, read_rows
from layerswap_method.errors import InputError

if TYPE_CHECKING:
    from datasets import Dataset

TIME_S = 15.0
"""CPU seconds of a program. MBPP's own solution of problem 123 takes three on a fast machine."""

MEMORY_BYTES = 1 << 30
OUTPUT_BYTES = 1 << 20

_TEST_IDS = range(11, 511)
"""MBPP's test split (its README); the Japanese dataset has all splits in one."""

_MAX_AT_ONCE = 8
_isolation: ContextVar[Isolation] = ContextVar("isolation", default="bwrap")


class NoIsolation(InputError):
    """Nothing on this machine can hold a generated program."""


class RunCode(str):
    """The text of a program that was run; lm-eval passes on nothing but text."""

    verdict: ProgramVerdict

    def __new__(cls, code: str, verdict: ProgramVerdict) -> RunCode:
        """Return `code` with its `verdict`."""
        made = super().__new__(cls, code)
        made.verdict = verdict
        return made


@contextlib.contextmanager
def code_isolation(isolation: Isolation) -> Iterator[None]:
    """Have programs held by `isolation` while the body runs (in this thread)."""
    token = _isolation.set(isolation)
    try:
        yield
    finally:
        _isolation.reset(token)


def find_isolation(isolation: Isolation | None = None) -> Isolation:
    """Return what holds programs, proven to work; None takes that of `code_isolation`.

    Raises:
        NoIsolation: when it is bwrap and that does not work here.
    """
    isolation = isolation or _isolation.get()
    if isolation == "bwrap" and (failure := probe()) is not None:
        raise NoIsolation(
            f"generated code cannot be isolated on this machine ({failure}), so it is not run; "
            "install bubblewrap (bwrap 0.8 or newer) where Linux allows user namespaces, or use "
            "--code-isolation none if this container is the sandbox"
        )
    return isolation


def describe_isolation(isolation: Isolation) -> str:
    """Return the Python of the programs and what holds them, in one line."""
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

    Args:
        hub_id: the dataset.
        configs: language of the prompts → config.
        split: where the test problems are on the hub; local files are named ``test``.
        column: with the text of a problem; `text` afterwards.
        data_dir: folder of local files; None for the hub.

    Raises:
        InputError: when the data is not there, or not MBPP's.
    """
    ((language, config),) = configs.items()
    source = Source(
        benchmark="mbpp",
        columns=("task_id", column, "test_list"),
        texts=(column,),
        optional=("test_setup_code",),
    )
    where = split if data_dir is None else "test"
    rows = read_rows(source, where, language, config, hub_id, data_dir)
    kept = [row for row in rows if row["task_id"] in _TEST_IDS]
    problems = [] if kept else ["no task_id from 11 to 510, which are MBPP's test problems"]
    items = []
    for row in kept:
        tests, setup = row["test_list"], row.get("test_setup_code") or ""
        if not (isinstance(tests, list) and all(isinstance(t, str) for t in [*tests, setup])):
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
    return {"test": make_dataset(f"mbpp {language} ({where})", items, problems)}


def run_answers(
    answers: Iterable[Sequence[str]], items: Sequence[Mapping[str, Any]]
) -> list[RunCode]:
    """Run the program of each item's first answer against its tests, several at a time.

    The filter of `_mbpp.yaml`.

    Args:
        answers: of each item, as the model gave them.
        items: as `load_mbpp` made them.

    Raises:
        InputError: when this machine can hold no program (see `find_isolation`).
    """
    isolation = find_isolation()
    at_once = max(1, min(os.cpu_count() or 1, _MAX_AT_ONCE))
    tell(Step(f"running {len(items)} generated programs"))
    with ThreadPoolExecutor(at_once) as pool:
        firsts = [given[0] for given in answers]
        return list(pool.map(_run_answer, firsts, items, itertools.repeat(isolation)))


def score(item: Mapping[str, Any], results: Sequence[RunCode]) -> dict[str, float]:
    """Return ``pass@1`` of one item: 1 where its program passed every test, else 0."""
    (program,) = results
    return {"pass@1": float(program.verdict.status == "passed")}


def _run_answer(answer: str, item: Mapping[str, Any], isolation: Isolation) -> RunCode:
    # The code that sets tests up follows the program, whose classes it may use.
    tests = "\n".join([item["test_setup_code"], *item["test_list"]])
    code = extract_code(answer, tested_names([tests]))
    if not code:
        return RunCode("", ProgramVerdict(status="failed", detail="there is no code in the answer"))
    held = isolation == "bwrap"
    return RunCode(code, run_program(code, tests, TIME_S, MEMORY_BYTES, OUTPUT_BYTES, held=held))
