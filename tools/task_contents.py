"""The content of a task file that depends on its language.

What all languages share stands in the template that each task includes: `_mgsm.yaml` and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from ablations.tasks.catalog import FunctionName
from tools.task_languages import Language, MbppProblems, MgsmWords

VERSION = 1.0
"""Version of the protocol: raised with every change that can change a score."""

MGSM_VERSION = 1.2
"""The version of MGSM and MGSM-Rev2; 1.1: in a chat, exemplars are asked as items are; 1.2: numbers
are read as the language writes them, also in bold text and in a box."""

GLOBAL_MGSM_VERSION = 1.1
"""The version of Global-MGSM; 1.1: numbers are read as for MGSM 1.2."""

SPECIAL_STOPS = ("</s>", "<|im_end|>", "<|eot_id|>")
"""Ends of a turn that an engine shows as text when they are not the tokenizer's own."""

HUB_IDS = {
    "mgsm": "juletxara/mgsm",
    "mgsm_rev2": "lightonai/mgsm-rev2",
    "msvamp": "Mathoctopus/MSVAMP",
    "belebele": "facebook/belebele",
    "flores": "openlanguagedata/flores_plus",  # facebook/flores is a script: datasets 4 loads none
    "mmlu": "CohereForAI/Global-MMLU",  # as lm-eval 0.4.13 has it
    "global_mgsm": "CohereLabs/global-mgsm",
    "polymath": "Qwen/PolyMath",
}
"""Where the data is. No revision: none of these could be opened from where this was written."""

Languages = Mapping[str, Language]


def mgsm_tasks(benchmark: str, languages: Languages) -> Iterator[dict[str, Any]]:
    """Yield MGSM in every language that has it: native questions, words and exemplars.

    MGSM-Rev2 and MSVAMP have other questions; their exemplars are those of MGSM.
    """
    for code, language in languages.items():
        if (words := language.mgsm) is None:
            continue
        config = language.msvamp if benchmark == "msvamp" else words.config
        if config is None:
            continue
        data = _data(benchmark, {code: config})
        data["dataset_kwargs"]["before_question"] = words.question
        data["dataset_kwargs"]["before_solution"] = f"{words.answer}{words.delimiter}"
        if benchmark != "mgsm":
            data["dataset_kwargs"]["exemplars"] = HUB_IDS["mgsm"]
        yield {
            **_head(benchmark, code, language, template="mgsm"),
            **data,
            "doc_to_text": f"{words.question}{{{{question}}}}\n{words.answer}",
            "target_delimiter": words.delimiter,
            "generation_kwargs": _greedy([words.question.strip(), *SPECIAL_STOPS]),
            "filter_list": number_filters("NumberAfterPhrase", language, **_phrases(words)),
            "metadata": {
                **_metadata(benchmark, code, language),
                "version": VERSION if benchmark == "msvamp" else MGSM_VERSION,
            },
        }


def global_mgsm_tasks(languages: Languages) -> Iterator[dict[str, Any]]:
    """Yield Global-MGSM in every language that has it: all its words are columns of the data."""
    for code, language in languages.items():
        if language.global_mgsm is not None:
            yield {
                **_head("global_mgsm", code, language),
                **_data("global_mgsm", {code: language.global_mgsm}),
                "generation_kwargs": _greedy([*SPECIAL_STOPS]),
                "filter_list": number_filters("NumberAfterPrefix", language),
                "metadata": {
                    **_metadata("global_mgsm", code, language),
                    "version": GLOBAL_MGSM_VERSION,
                },
            }


def number_filters(strict: str, language: Language, **options: Any) -> list[dict[str, Any]]:
    """Return the filters of an answer that is a number: after words, and the last one.

    `strict` is the name of a filter of `ablations.tasks.numbers`, with its `options`.
    """
    steps = {
        "strict-match": _number_filter(strict, language, **options),
        "flexible-extract": _number_filter("LastNumber", language),
    }
    return [
        {"name": name, "filter": [step, {"function": "take_first"}]} for name, step in steps.items()
    ]


def _number_filter(name: str, language: Language, **options: Any) -> dict[str, Any]:
    digits = language.digits.model_dump(mode="json", exclude_defaults=True)
    return {"function": FunctionName(f"ablations.tasks.numbers.{name}"), **options, **digits}


def _phrases(words: MgsmWords) -> dict[str, Any]:
    phrases: dict[str, Any] = {"phrases": [*words.phrases]}
    return {**phrases, "not_after": words.before_phrase} if words.before_phrase else phrases


def polymath_tasks(level: str, languages: Languages) -> Iterator[dict[str, Any]]:
    """Yield one level of PolyMath in every language that has it."""
    hub_id, benchmark = HUB_IDS["polymath"], f"polymath_{level}"
    for code, language in languages.items():
        if language.polymath is not None:
            yield {
                **_head(benchmark, code, language, template="polymath"),
                "dataset_path": hub_id,
                "dataset_kwargs": {"hub_id": hub_id, "configs": {code: code}, "level": level},
                "doc_to_text": f"{{{{question}}}}\n{language.polymath}",
            }


def choice_tasks(benchmark: str, languages: Languages) -> Iterator[dict[str, Any]]:
    """Yield Belebele or MMLU in every language that has it."""
    for code, language in languages.items():
        if (config := getattr(language, benchmark)) is not None:
            yield {**_head(benchmark, code, language), **_data(benchmark, {code: config})}


def flores_tasks(languages: Languages) -> Iterator[dict[str, Any]]:
    """Yield FLORES from English into every other language, and back."""
    for code in languages:
        if code == "en" or languages[code].bleu is None:
            continue
        for source, target in (("en", code), (code, "en")):
            into = languages[target]
            yield {
                **_head("flores", f"{source}-{target}", into),
                **_data("flores", {code: languages[code].flores for code in (source, target)}),
                "doc_to_text": (
                    f"Translate this from {languages[source].name} to {into.name}:\n"
                    f"{languages[source].name}: {{{{source}}}}\n{into.name}:"
                ),
                "metric_list": [
                    _metric("bleu", f"ablations.tasks.translation.bleu_{into.bleu}"),
                    _metric("chrf++", "ablations.tasks.translation.chrf_plus_plus"),
                ],
                "metadata": {
                    **_metadata("flores", target, into),
                    "source_language": source,
                    "bleu_tokenizer": into.bleu,
                    "publish": False,  # the conditions of FLORES+ on the hub
                },
            }


def mbpp_tasks(languages: Languages) -> Iterator[dict[str, Any]]:
    """Yield MBPP for every language that has an entry, in the language of its prompt."""
    for code, language in languages.items():
        prompt = language.mbpp if isinstance(language.mbpp, str) else code
        problems = languages[prompt].mbpp
        if language.mbpp is None or not isinstance(problems, MbppProblems):
            continue
        yield {
            **_head("mbpp", code, language),
            "dataset_path": problems.hub_id,
            "dataset_kwargs": {
                "hub_id": problems.hub_id,
                "configs": {prompt: problems.config},
                "split": problems.split,
                "column": problems.column,
            },
            "doc_to_text": (
                f"{problems.task}{{{{text}}}}{problems.tests}\n\n"
                "{{test_list | join('\\n')}}\n```python\n"
            ),
            # A blank line after the end of a block: none that opens one has that. And the next
            # task of a model that goes on with one.
            "generation_kwargs": _greedy(
                ["\n```\n\n", f"\n{problems.task.strip()}", *SPECIAL_STOPS]
            ),
            "metadata": {**_metadata("mbpp", code, language), "prompt_language": prompt},
        }


BENCHMARKS: dict[str, Callable[[Languages], Iterator[dict[str, Any]]]] = {
    "mgsm": partial(mgsm_tasks, "mgsm"),
    "belebele": partial(choice_tasks, "belebele"),
    "flores": flores_tasks,
    "mbpp": mbpp_tasks,
    "mmlu": partial(choice_tasks, "mmlu"),
    "mgsm_rev2": partial(mgsm_tasks, "mgsm_rev2"),
    "msvamp": partial(mgsm_tasks, "msvamp"),
    "global_mgsm": global_mgsm_tasks,
    "polymath_low": partial(polymath_tasks, "low"),
    "polymath_medium": partial(polymath_tasks, "medium"),
    "polymath_high": partial(polymath_tasks, "high"),
    "polymath_top": partial(polymath_tasks, "top"),
}
"""Benchmark → its tasks, in the order of the paper's Table 5; what it does not have follows."""


def _head(
    benchmark: str, suffix: str, language: Language, template: str | None = None
) -> dict[str, Any]:
    return {
        "include": f"../_{template or benchmark}.yaml",
        "task": f"layerswap_{benchmark}_{suffix}",
        "metadata": _metadata(benchmark, suffix, language),
    }


def _data(benchmark: str, configs: dict[str, str]) -> dict[str, Any]:
    """Return the source, for lm-eval's records and for our loader (which it gives no path)."""
    hub_id = HUB_IDS[benchmark]
    return {"dataset_path": hub_id, "dataset_kwargs": {"hub_id": hub_id, "configs": configs}}


def _metadata(benchmark: str, code: str, language: Language) -> dict[str, Any]:
    """Return what readers of a result need: `language` is the one the model should answer in."""
    return {
        "version": VERSION,
        "benchmark": benchmark,
        "language": code,
        "script": language.script,
    }


def _greedy(until: list[str]) -> dict[str, Any]:
    return {"until": until, "do_sample": False, "temperature": 0.0, "max_gen_toks": 1024}


def _metric(name: str, aggregation: str) -> dict[str, Any]:
    return {
        "metric": name,
        "aggregation": FunctionName(aggregation),
        "higher_is_better": True,
    }
