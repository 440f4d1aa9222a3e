"""The files of the testbed: rows for training and lm-eval tasks."""

from __future__ import annotations

import re
from pathlib import Path

from ablations.pocket.task_files import generated, task, write_rows, write_yaml
from ablations.smol.exercises import FAMILIES, Exercise, draw_rows
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

# An answer is one line; whatever a model goes on with is not part of it.
_NUMBERS = {"strict-match": FINAL_NUMBER, "flexible-extract": LAST_NUMBER}
_WORDS = {"strict-match": FINAL_WORDS}
_TRANSLATION = generated(
    64, {"without-full-stop": WITHOUT_FULL_STOP}, "bleu", "exact_match", until="\n"
)
_SCORING = {
    "math": generated(40, _NUMBERS, "exact_match", until="\n"),
    "comprehension": generated(48, _WORDS, "exact_match", until="\n"),
    "translate": _TRANSLATION,
    "translate_back": _TRANSLATION,
}


def write_data(folder: Path) -> None:
    """Write the rows that experts learn from: ``FAMILY_LANGUAGE.jsonl``.

    Problems are in English only, so nobody can train on a target language's by mistake.
    """
    files = [("math", "en"), ("comprehension", "en")]
    files += [(family, code) for code in TARGETS for family in FAMILIES if family != "math"]
    for family, language in files:
        rows = draw_rows(FAMILIES[family], language, "train", TRAIN_ROWS, f"{family}/{SEED}")
        write_rows(
            folder / f"{family}_{language}.jsonl",
            # After a prompt a model generates a space first.
            [{"prompt": r.prompt, "answer": " " * bool(r.prompt) + r.solution} for r in rows],
        )


def write_tasks(folder: Path, home: Path) -> None:
    """Write the lm-eval tasks.

    Args:
        folder: existing folder to write to.
        home: absolute path under which `folder` will be read.
    """
    (folder / "data").mkdir()
    for language in LANGUAGES:
        for family in ("math", "comprehension"):
            _write_task(folder, home, f"smol_{family}_{language}", family, language)
        _write_task(folder, home, f"smol_math_{language}_4shot", "math", language, shots=4)
    for language in TARGETS:
        for name, family in (
            (f"smol_translate_en_{language}", "translate"),
            (f"smol_translate_{language}_en", "translate_back"),
        ):
            _write_task(folder, home, name, family, language)


def _write_task(
    folder: Path, home: Path, name: str, family: str, language: str, shots: int = 0
) -> None:
    """Write a task and its items, which several tasks may share."""
    stem = f"data/{family}_{language}"
    for split, part, number in (("test", "test", TEST_ITEMS), ("train", "examples", EXAMPLES)):
        # Not the seed of the training rows: nothing in a test may follow from their order.
        rows = draw_rows(FAMILIES[family], language, split, number, f"{family}/test/{SEED}")
        write_rows(folder / f"{stem}.{part}.jsonl", [_item(family, row) for row in rows])
    files = {"train": f"{home / stem}.examples.jsonl", "test": f"{home / stem}.test.jsonl"}
    what = f"{family.replace('_', ' ')}, {language_name(language)}, {shots} examples in the prompt"
    write_yaml(
        folder / f"{name}.yaml",
        f"SmolLM2 testbed: {what}. Written by `layerswap smol build`",
        task(name, files, _SCORING[family], shots),
    )


def _item(family: str, row: Exercise) -> dict[str, str]:
    answer = row.answer.removesuffix(".") if family.startswith("translate") else row.answer
    return {"prompt": row.prompt, "solution": row.solution, "answer": answer}
