"""The files of the testbed: rows for training and lm-eval tasks."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from ablations.smol.exercises import FAMILIES, Exercise, Split, draw_rows
from ablations.smol.languages import LANGUAGES, TARGETS, language_name, table

TRAIN_ROWS = 3000
"""Rows of each training file; an expert sees a part of them, drawn with its seed."""

TEST_ITEMS = 500
EXAMPLES = 8
"""Solved examples of each task, for few-shot prompts; they are no test items."""

SEED = 20261122
"""Of all files. Experts differ in which rows they see, and in what order."""

_PHRASES = "|".join(re.escape(table()[language]["phrase"]) for language in LANGUAGES)
FINAL_NUMBER = rf"(?i:{_PHRASES}):?\s*\$?(-?\d+)"
"""The number after the phrase that ends a solution, in any of the languages."""
LAST_NUMBER = r"(-?\d+)"
FINAL_WORDS = rf"(?i:{_PHRASES}):?\s*(.+?)\.?\s*$"
WITHOUT_FULL_STOP = r"^\s*(.+?)\.?\s*$"


def write_data(folder: Path) -> None:
    """Write the rows that experts learn from: ``FAMILY_LANGUAGE.jsonl``.

    Problems are in English only, so nobody can train on a target language's by mistake.
    """
    files = [("math", "en"), ("comprehension", "en")]
    files += [(family, code) for code in TARGETS for family in FAMILIES if family != "math"]
    for family, language in files:
        rows = draw_rows(FAMILIES[family], language, "train", TRAIN_ROWS, f"{family}/{SEED}")
        _write_rows(
            folder / f"{family}_{language}.jsonl",
            [{"prompt": row.prompt, "answer": _after(row.prompt, row.solution)} for row in rows],
        )


def _after(prompt: str, answer: str) -> str:
    """Return an answer with the space that a model generates first after a prompt."""
    return f" {answer}" if prompt else answer


def write_tasks(folder: Path, home: Path) -> None:
    """Write the lm-eval tasks.

    Args:
        folder: existing folder to write to.
        home: absolute path under which `folder` will be read; lm-eval resolves relative paths
            against the working directory.
    """
    (folder / "data").mkdir()
    for family in ("math", "comprehension"):
        for language in LANGUAGES:
            _write_items(folder, family, language)
            _write_task(folder, home, f"smol_{family}_{language}", family, language, 0)
    for language in LANGUAGES:
        _write_task(folder, home, f"smol_math_{language}_4shot", "math", language, 4)
    for language in TARGETS:
        for family, pair in (
            ("translate", f"en_{language}"),
            ("translate_back", f"{language}_en"),
        ):
            _write_items(folder, family, language)
            _write_task(folder, home, f"smol_translate_{pair}", family, language, 0)


def _write_items(folder: Path, family: str, language: str) -> None:
    splits: tuple[tuple[str, Split, int], ...] = (
        ("test", "test", TEST_ITEMS),
        ("examples", "train", EXAMPLES),
    )
    for name, split, number in splits:
        # Not the seed of the training rows: nothing in a test may follow from their order.
        rows = draw_rows(FAMILIES[family], language, split, number, f"{family}/test/{SEED}")
        _write_rows(
            folder / "data" / f"{family}_{language}.{name}.jsonl",
            [_item(family, row) for row in rows],
        )


def _item(family: str, row: Exercise) -> dict[str, str]:
    is_translation = family.startswith("translate")
    answer = row.answer.removesuffix(".") if is_translation else row.answer
    return {"prompt": row.prompt, "solution": row.solution, "answer": answer}


def _filter(name: str, pattern: str, group: int = -1) -> dict[str, Any]:
    regex = {"function": "regex", "regex_pattern": pattern, "group_select": group}
    return {"name": name, "filter": [regex, {"function": "take_first"}]}


_SCORING: dict[str, tuple[int, list[dict[str, Any]], list[str]]] = {
    "math": (
        40,
        [_filter("strict-match", FINAL_NUMBER), _filter("flexible-extract", LAST_NUMBER)],
        ["exact_match"],
    ),
    "comprehension": (48, [_filter("strict-match", FINAL_WORDS)], ["exact_match"]),
    "translate": (64, [_filter("without-full-stop", WITHOUT_FULL_STOP)], ["bleu", "exact_match"]),
}
"""Family -> tokens of an answer, filters and metrics."""


def _write_task(
    folder: Path, home: Path, name: str, family: str, language: str, shots: int
) -> None:
    tokens, filters, metrics = _SCORING["translate" if "translate" in family else family]
    stem = home / "data" / f"{family}_{language}"
    content = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {
            "data_files": {"train": f"{stem}.examples.jsonl", "test": f"{stem}.test.jsonl"}
        },
        "fewshot_split": "train",
        "test_split": "test",
        "num_fewshot": shots,
        "doc_to_text": "{{prompt}}",
        "output_type": "generate_until",
        "doc_to_target": "{{answer}}",
        "fewshot_config": {"sampler": "first_n", "doc_to_target": "{{solution}}"},
        # An answer is one line; whatever a model goes on with is not part of it.
        "generation_kwargs": {"until": ["\n"], "do_sample": False, "max_gen_toks": tokens},
        "filter_list": filters,
        "metric_list": [
            {
                "metric": metric,
                "aggregation": "bleu" if metric == "bleu" else "mean",
                "higher_is_better": True,
            }
            for metric in metrics
        ],
        "metadata": {"version": 1.0},
    }
    what = f"{family.replace('_', ' ')}, {language_name(language)}, {shots} examples in the prompt"
    text = yaml.safe_dump(content, sort_keys=False, width=100, allow_unicode=True)
    (folder / f"{name}.yaml").write_text(
        f"# SmolLM2 testbed: {what}. Written by `layerswap smol build`.\n{text}", encoding="utf-8"
    )


def _write_rows(path: Path, rows: Sequence[dict[str, str]]) -> None:
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")
