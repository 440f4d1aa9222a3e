"""The lm-eval tasks of the testbed: plain YAML files and JSON lines.

English and target-language twins hold the same content in the same order. Test items belong to the
`test` split of `exercises.split_of`, which no training stream ever draws; the solved examples
for few-shot prompts are drawn from the `train` split.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field

from ablations.pocket import exercises as ex
from ablations.pocket.exercises import Exercise, Split
from ablations.pocket.lexicon import DEGREES, Language, WordSource
from layerswap_method.frozen import Frozen

Make = Callable[[WordSource, Language], Exercise]
FINAL_ANSWER = r"(?:the answer is|jibu ni) (.+?) \."
"""The number after the phrase that ends a solution, in either language: a digit or a word."""
WITHOUT_FULL_STOP = r"^\s*(.+?)(?: \.)?\s*$"
"""An answer without its last token. (sacrebleu warns of translations that end with " ." at every
bootstrap sample, hundreds of times a run.)"""

_FAMILIES: dict[str, Make] = {
    "math": ex.math,
    "translate": ex.translation,
    "comprehension": ex.comprehension,
    "facts": ex.facts,
}
_TWINS: dict[Language, str] = {"en": "English", "sw": "the target language"}


class Evaluation(Frozen):
    """The lm-eval tasks."""

    items: int = Field(500, ge=1)
    """Test documents of each task."""
    examples: int = Field(8, ge=2)
    """Solved examples of each task, for few-shot prompts; never test documents."""
    seed: int = 90210
    """Seed of the items. It does not follow the base's seed: every testbed has one test."""


def draw_items(family: str, language: Language, split: Split, number: int, seed: int) -> list[Any]:
    """Return `number` different rows of one task family.

    Args:
        family: `math`, `translate` (out of `language`), `comprehension` or `facts`.
        language: language of the prompt; the content does not depend on it.
        split: which part of the world's content to draw from.
        number: rows.
        seed: seed of the draw.
    """
    words = WordSource(random.Random(f"{family}/{split}/{seed}"))
    rows: dict[str, Any] = {}
    while len(rows) < number:
        exercise = ex.draw_from(split, lambda: _FAMILIES[family](words, language))
        row: dict[str, Any] = {"prompt": exercise.prompt, "solution": exercise.answer}
        if family == "math":
            found = re.search(FINAL_ANSWER, exercise.answer)
            row["answer"] = found[1] if found else ""
        else:
            row["answer"] = exercise.answer.removesuffix(" .")
        if family == "comprehension":
            row["choices"] = [*(DEGREES if language == "en" else DEGREES.values())]
        rows.setdefault(exercise.key, row)
    return list(rows.values())


def _metric(name: str) -> dict[str, Any]:
    return {
        "metric": name,
        "aggregation": "bleu" if name == "bleu" else "mean",
        "higher_is_better": True,
    }


def _extract(name: str, pattern: str) -> dict[str, Any]:
    regex = {"function": "regex", "regex_pattern": pattern, "group_select": -1}
    return {"name": name, "filter": [regex, {"function": "take_first"}]}


def _generated(max_tokens: int, filters: dict[str, str], *metrics: str) -> dict[str, Any]:
    """Return how a generated answer is made, filtered (name -> regular expression) and scored."""
    return {
        "output_type": "generate_until",
        "doc_to_target": "{{answer}}",
        "fewshot_config": {"sampler": "first_n", "doc_to_target": "{{solution}}"},
        "generation_kwargs": {"until": ["<eos>"], "do_sample": False, "max_gen_toks": max_tokens},
        "filter_list": [_extract(*each) for each in filters.items()],
        "metric_list": [_metric(name) for name in metrics],
    }


_PLAIN = {"without-full-stop": WITHOUT_FULL_STOP}
_SCORING: dict[str, dict[str, Any]] = {
    "math": _generated(24, {"strict-match": FINAL_ANSWER}, "exact_match"),
    "translate": _generated(32, _PLAIN, "bleu", "exact_match"),
    "comprehension": {
        "output_type": "multiple_choice",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{choices.index(answer)}}",
        "fewshot_config": {"sampler": "first_n"},
        "metric_list": [_metric("acc")],
    },
    "facts": _generated(4, _PLAIN, "exact_match"),
}


def _names() -> dict[str, tuple[str, Language]]:
    """Return task name → family and language of the prompt."""
    languages: tuple[Language, Language] = ("en", "sw")
    names: dict[str, tuple[str, Language]] = {
        f"pocket_{family}_{language}": (family, language)
        for family in ("math", "comprehension", "facts")
        for language in languages
    }
    names["pocket_translate_en_sw"] = ("translate", "en")
    names["pocket_translate_sw_en"] = ("translate", "sw")
    return names


TASK_NAMES = tuple(_names())
"""Names of the tasks; the group `pocket` holds them all."""


def write_tasks(folder: Path, home: Path, evaluation: Evaluation) -> None:
    """Write the task files.

    Args:
        folder: existing folder to write to.
        home: absolute path under which `folder` will be read. lm-eval resolves relative data
            paths against the working directory, so absolute ones are written; a testbed that
            was moved is repaired by building it again, which trains nothing.
        evaluation: numbers of items and their seed.
    """
    (folder / "data").mkdir()
    for family, language in _names().values():
        for split, number in (("test", evaluation.items), ("train", evaluation.examples)):
            rows = draw_items(family, language, split, number, evaluation.seed)  # type: ignore[arg-type]
            text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            (folder / "data" / f"{family}_{language}.{split}.jsonl").write_text(text)
    for name, (family, language) in _names().items():
        stem = home / "data" / f"{family}_{language}"
        files = {split: f"{stem}.{split}.jsonl" for split in ("train", "test")}
        task = {
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": files},
            "fewshot_split": "train",
            "test_split": "test",
            "num_fewshot": 0,
            "doc_to_text": "{{prompt}}",
            **_SCORING[family],
            "metadata": {"version": 1.0},
        }
        what = "translation out of" if family == "translate" else f"{family} in"
        header = f"Pocket testbed: {what} {_TWINS[language]}"
        _write_yaml(folder / f"{name}.yaml", header, task)
    _write_yaml(
        folder / "pocket.yaml",
        "Pocket testbed: all tasks",
        {"group": "pocket", "task": list(TASK_NAMES), "metadata": {"version": 1.0}},
    )


def _write_yaml(path: Path, header: str, content: dict[str, Any]) -> None:
    text = yaml.safe_dump(content, sort_keys=False, width=100, allow_unicode=True)
    path.write_text(f"# {header}.\n{text}")
