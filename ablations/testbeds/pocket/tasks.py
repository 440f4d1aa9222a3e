"""The lm-eval tasks of the testbed.

Both languages hold the same content in the same order. Test items belong to the `test` split of
`exercises.split_of`, which no training stream draws; the solved examples to the `train` split.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ablations.pocket_world import exercises as ex
from ablations.pocket_world.exercises import Exercise
from ablations.pocket_world.world import DEGREES, Language, WordSource
from ablations.testbeds.pocket.testbed_tasks import (
    generated,
    metric,
    task,
    write_rows,
    write_yaml,
)

FINAL_ANSWER = r"(?:the answer is|jibu ni) (.+?) \."
"""The number after the phrase that ends a solution, in either language: a digit or a word."""
WITHOUT_FULL_STOP = r"^\s*(.+?)(?: \.)?\s*$"
"""An answer without its last token. (sacrebleu warns of translations that end with " ." at every
bootstrap sample, hundreds of times a run.)"""

_PLAIN = {"without-full-stop": WITHOUT_FULL_STOP}
_COMPREHENSION = {
    "output_type": "multiple_choice",
    "doc_to_choice": "{{choices}}",
    "doc_to_target": "{{choices.index(answer)}}",
    "fewshot_config": {"sampler": "first_n"},
    "metric_list": [metric("acc")],
}
_FAMILIES: dict[str, tuple[Callable[[WordSource, Language], Exercise], dict[str, Any]]] = {
    "math": (ex.math, generated(24, {"strict-match": FINAL_ANSWER}, "exact_match", until="<eos>")),
    "comprehension": (lambda words, lang: ex.draw_story(words).exercise(lang), _COMPREHENSION),
    "facts": (
        lambda words, lang: ex.draw_facts(words).exercise(lang),
        generated(4, _PLAIN, "exact_match", until="<eos>"),
    ),
    "translate": (
        ex.translation_exercise,
        generated(32, _PLAIN, "bleu", "exact_match", until="<eos>"),
    ),
}
"""Family of exercises -> the function that draws one, and the scoring of its answers."""

_LANGUAGES: dict[Language, str] = {"en": "English", "sw": "the target language"}
_NAMES: dict[str, tuple[str, Language]] = {
    f"pocket_{family}_{language}": (family, language)
    for family in _FAMILIES
    if family != "translate"
    for language in _LANGUAGES
}
_NAMES |= {
    "pocket_translate_en_sw": ("translate", "en"),
    "pocket_translate_sw_en": ("translate", "sw"),
}
"""Task -> family, and language of the prompt."""

TASK_NAMES = tuple(_NAMES)
"""Names of the tasks; the group `pocket` holds them all."""

EXAMPLES = 8
"""Solved examples of each task, for few-shot prompts; never test documents."""

SEED = 90210
"""Seed of the items. It does not follow the base's seed: every testbed has one test."""


def draw_items(family: str, language: Language, split: str, number: int, seed: int) -> list[Any]:
    """Return `number` different rows of a family of tasks, with prompts in `language`."""
    words = WordSource(random.Random(f"{family}/{split}/{seed}"))
    draw, _ = _FAMILIES[family]
    rows: dict[str, Any] = {}
    while len(rows) < number:
        exercise = ex.draw_from(split, lambda: draw(words, language))
        row: dict[str, Any] = {"prompt": exercise.prompt, "solution": exercise.answer}
        if family == "math":
            match = re.search(FINAL_ANSWER, exercise.answer)
            row["answer"] = match[1] if match else ""
        else:
            row["answer"] = exercise.answer.removesuffix(" .")
        if family == "comprehension":
            row["choices"] = [*(DEGREES if language == "en" else DEGREES.values())]
        rows.setdefault(exercise.key, row)
    return list(rows.values())


def write_pocket_tasks(folder: Path, home: Path, items: int) -> None:
    """Write the task files.

    Args:
        folder: existing folder to write to.
        home: absolute path under which `folder` will be read; a testbed that was moved is repaired
            by building it again, which trains nothing.
        items: test documents of each task.
    """
    (folder / "data").mkdir()
    for name, (family, language) in _NAMES.items():
        for split, number in (("test", items), ("train", EXAMPLES)):
            rows = draw_items(family, language, split, number, SEED)
            write_rows(folder / "data" / f"{family}_{language}.{split}.jsonl", rows)
        stem = home / "data" / f"{family}_{language}"
        files = {split: f"{stem}.{split}.jsonl" for split in ("train", "test")}
        subject = "translation out of" if family == "translate" else f"{family} in"
        write_yaml(
            folder / f"{name}.yaml",
            f"Pocket testbed: {subject} {_LANGUAGES[language]}",
            task(name, files, _FAMILIES[family][1]),
        )
    group = {"group": "pocket", "task": list(TASK_NAMES), "metadata": {"version": 1.0}}
    write_yaml(folder / "pocket.yaml", "Pocket testbed: all tasks", group)
