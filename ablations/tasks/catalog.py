"""The shipped tasks by benchmark and language: protocol and source, from their files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from pydantic import Field, StrictStr

from ablations.tasks.suites import read_suites
from ablations.tasks.task_yaml import read_task_file, task_file_paths
from layerswap_method.errors import InputError, nearest, nearest_of
from layerswap_method.frozen import Described, Frozen
from layerswap_method.recipe.strict_yaml import read_yaml
from layerswap_method.recipe.validation import validated

PREFIX = "layerswap_"

SHIPPED_TASKS = Path(__file__).parent
"""Folder of the task files that this package brings."""

LANGUAGES = SHIPPED_TASKS / "languages.yml"
"""What the benchmarks have of each language, by its code."""

LANGUAGE_NAMES = SHIPPED_TASKS / "language_names.yml"
"""Name, script and other codes of each language, by its code."""

PAPER_LANGUAGES = ("en", "ja", "bn", "sw", "te")
"""Languages in the order of Table 5 of arXiv 2410.01335; others follow."""

PAPER_BENCHMARKS = ("mgsm", "belebele", "flores", "mbpp", "mmlu")
"""Benchmarks in the order of Table 5."""

TITLES = {
    "mgsm": "MGSM em@maj1, {shots}-shot",
    "belebele": "BELEBELE accuracy, {shots}-shot",
    "flores": "FLORES BLEU, {shots}-shot",
    "mbpp": "MBPP pass@1, {shots}-shot",
    "mmlu": "MMLU accuracy, {shots}-shot",
    "mgsm_rev2": "MGSM-Rev2 em@maj1, {shots}-shot",
    "msvamp": "MSVAMP em@maj1, {shots}-shot",
    "global_mgsm": "Global-MGSM em@maj1, {shots}-shot",
    "polymath_low": "PolyMath-low accuracy, {shots}-shot",
    "polymath_medium": "PolyMath-medium accuracy, {shots}-shot",
    "polymath_high": "PolyMath-high accuracy, {shots}-shot",
    "polymath_top": "PolyMath-top accuracy, {shots}-shot",
}
"""Benchmark -> its title, in the order of Table 5; benchmarks that are not in it follow."""


UNSEEN = ("mgsm_rev2", "global_mgsm")
"""Benchmarks whose data nobody here could open; their columns are known from other programs."""


class Floor(Described):
    """The score on a task of a rule that does not read the question."""

    name: StrictStr = Field(min_length=1)
    """The rule, such as ``the most frequent answer``."""

    score: float = Field(strict=True, ge=0, le=1)
    """Its score by the task's first metric, as a share of 1."""


class FunctionName(str):
    """The name of a function that lm-eval resolves: ``!function NAME`` in a task's file."""


class Task(Frozen):
    """One shipped task."""

    name: str
    benchmark: str
    language: str
    """Code of the language that the task is about: for translation the one that is not English."""

    label: str
    """Name in the paper's Table 5: ``Swahili``, ``Eng-Swh``."""

    num_fewshot: int
    metrics: tuple[str, ...]
    """lm-eval's metric names; the first one is shown."""

    filters: tuple[str, ...]
    """Filter names; the first one is shown. Empty where an answer is taken as it is."""

    max_gen_toks: int | None
    """Tokens that an answer may have; None where choices are scored."""

    prompt_language: str
    executes_code: bool
    source: str
    """Data set on the hub, which a data folder replaces."""

    configs: tuple[str, ...]

    @property
    def title(self) -> str:
        """Benchmark, metric and number of examples, as Table 5 has them."""
        return TITLES[self.benchmark].format(shots=self.num_fewshot)

    @property
    def protocol(self) -> str:
        """Examples, metrics, filters and the limit of an answer in words."""
        parts = [f"{self.num_fewshot}-shot", " and ".join(self.metrics), " or ".join(self.filters)]
        if self.max_gen_toks is not None:
            parts.append(f"up to {self.max_gen_toks} tokens")
        if self.prompt_language != self.language:
            parts.append(f"prompts in {self.prompt_language}")
        if self.executes_code:
            parts.append("runs code")
        return ", ".join(filter(None, parts))


@cache
def read_languages(file: Path) -> dict[str, dict[str, Any]]:
    """Return code -> entry of `LANGUAGES` or `LANGUAGE_NAMES`, in the order of the file."""
    table: dict[str, dict[str, Any]] = read_yaml(file)
    return table


def language_code(name: str) -> str | None:
    """Return the code of a language by its English name or its ISO 639-3 code; None for others."""
    for code, entry in read_languages(LANGUAGE_NAMES).items():
        if name.lower() in (entry["name"].lower(), *entry.get("iso_639_3", ())):
            return code
    return None


def as_code(language: str) -> str:
    """Return the code of a language that is written by its English name; other texts stay.

    A code of three letters stays, too: tasks of users may have it in their names.
    """
    return (language_code(language) if len(language) > 3 else None) or language


def nearest_language(name: str) -> str:
    """Return the hint of `nearest` for a misspelt English name of a language, or ``""``."""
    names = [entry["name"] for entry in read_languages(LANGUAGE_NAMES).values()]
    return nearest(name, names, 0.85) if len(name) > 3 else ""


@cache
def list_tasks() -> tuple[Task, ...]:
    """Return every shipped task, in the order of Table 5."""
    languages = read_languages(LANGUAGES)
    tasks: list[Task] = []
    for path in sorted((SHIPPED_TASKS / "generated").glob("*.yaml")):
        content = read_task_file(path).content
        if "group" not in content:
            tasks.append(_task(content, languages))
    benchmarks = list(TITLES)
    codes = list(dict.fromkeys([*PAPER_LANGUAGES, *languages]))

    def place(task: Task) -> tuple[int, int, bool]:
        # A pair begins with its translation from English.
        is_back = not task.label.startswith("Eng")
        return benchmarks.index(task.benchmark), codes.index(task.language), is_back

    return tuple(sorted(tasks, key=place))


def language_of_metadata(metadata: Any) -> str | None:
    """Return the code of the language that the metadata of a task name; None where they do not."""
    if not isinstance(metadata, Mapping) or metadata.get("language") is None:
        return None
    language = metadata["language"]
    return (
        "no" if language is False else as_code(str(language))
    )  # YAML reads Norwegian's code as false


def languages_of(folders: Iterable[Path]) -> dict[str, str]:
    """Return task -> code of its language, for the tasks in folders whose metadata name one."""
    languages: dict[str, str] = {}
    for path in chain(*map(task_file_paths, folders)):
        content = read_task_file(path).content
        language = language_of_metadata(content.get("metadata"))
        if language is not None and "task" in content:
            languages.setdefault(str(content["task"]), language)
    return languages


def floor_of(metadata: Any) -> Floor | None:
    """Return the floor that the metadata of a task state; None where they state none.

    Raises:
        InputError: for a floor without a name, or with a score that is not a number from 0 to 1.
    """
    if not isinstance(metadata, Mapping) or "floor" not in metadata:
        return None
    return validated(Floor, metadata["floor"], "metadata: floor")


def may_be_published(metadata: Any) -> bool:
    """Return whether items of a task may be shown to others: not if it says ``publish: false``."""
    return not isinstance(metadata, Mapping) or metadata.get("publish", True) is True


def choose(
    tasks: Iterable[Task],
    languages: Sequence[str] = (),
    benchmarks: Sequence[str] = (),
    others: Iterable[str] = (),
) -> tuple[Task, ...]:
    """Return the tasks of these languages and benchmarks; of all where none is named.

    `others` are languages of other tasks, of which none need be here.

    Raises:
        InputError: naming every unknown language and benchmark with the nearest known one, and a
            language or benchmark of which no task is left.
    """
    tasks, others = tuple(tasks), tuple(others)
    problems = []
    for field, names, more in (("language", languages, others), ("benchmark", benchmarks, ())):
        values = dict.fromkeys((*(str(getattr(task, field)) for task in tasks), *more))
        for name in dict.fromkeys(names):
            if name not in values:
                code = language_code(name) if field == "language" else None
                hint = f"; write {code}" if code in values else nearest_of(name, values)
                problems.append(f"no {field} {name!r}{hint}")
    chosen = tuple(
        task
        for task in tasks
        if (not languages or task.language in languages)
        and (not benchmarks or task.benchmark in benchmarks)
    )
    if not problems and not chosen and not {*languages} & {*others}:
        problems.append(f"no task of {', '.join(benchmarks)} in {', '.join(languages)}")
        for name in benchmarks:
            codes = dict.fromkeys(task.language for task in tasks if task.benchmark == name)
            problems[-1] += f"; {name} is in {', '.join(codes)}"
    if problems:
        suites = [
            name
            for name, suite in read_suites().items()
            if {*languages} & {*suite.codes} and name.startswith(tuple(f"{b}_" for b in benchmarks))
        ]
        if suites:
            problems[-1] += f"; lm-eval's own tasks in it: {', '.join(suites)} (--tasks)"
        raise InputError("\n".join(problems))
    return chosen


def _task(content: dict[str, Any], languages: dict[str, dict[str, Any]]) -> Task:
    metadata = content["metadata"]
    benchmark, target = metadata["benchmark"], metadata["language"]
    source = metadata.get("source_language")
    language = source if source is not None and target == "en" else target
    if source is None:
        label = languages[language]["name"]
    else:
        label = "-".join(languages[code]["flores"][:3].title() for code in (source, target))
    return Task(
        name=content["task"],
        benchmark=benchmark,
        language=language,
        label=label,
        num_fewshot=content["num_fewshot"],
        metrics=tuple(metric["metric"].split(".")[-1] for metric in content["metric_list"]),
        filters=tuple(entry["name"] for entry in content.get("filter_list", ())),
        max_gen_toks=(content.get("generation_kwargs") or {}).get("max_gen_toks"),
        prompt_language=metadata.get("prompt_language", language),
        executes_code=bool(content.get("unsafe_code")),
        source=content["dataset_path"],
        configs=tuple(content["dataset_kwargs"]["configs"].values()),
    )
