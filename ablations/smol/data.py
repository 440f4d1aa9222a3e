"""The files of the testbed: rows for training and lm-eval tasks."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ablations.pocket.task_files import generated, metric, task, write_rows, write_yaml
from ablations.smol import twins
from ablations.smol.exercises import FAMILIES, Exercise, draw_rows, join
from ablations.smol.languages import LANGUAGES, TARGETS, language_name, table
from ablations.tasks.catalog import FunctionName
from ablations.tasks.floors import Floor, word_blind_floor

TRAIN_ROWS = 3000
"""Rows of each training file; an expert sees a part of them, drawn with its seed."""

TWIN_ROWS = 8000
"""The same of the files of twins."""

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

_ANY_RULE = Floor(name="any rule that does not read the verb", score=0.5)


def _of_pairs(output: str, score: str, *metrics: str, **options: Any) -> dict[str, Any]:
    return {
        "output_type": output,
        **options,
        "process_results": FunctionName(f"ablations.tasks.twins.{score}"),
        "metric_list": [
            {**metric(name), "higher_is_better": name != "swapped"} for name in metrics
        ],
    }


_SHORT = {"until": ["\n"], "do_sample": False, "max_gen_toks": 16}
_TWINS = {
    "": _of_pairs(
        "generate_until",
        "score_answers",
        *("operation", "both_right", "swapped"),
        generation_kwargs=_SHORT,
    ),
    "_result": _of_pairs("generate_until", "score_result", "both_right", generation_kwargs=_SHORT),
    "_order": _of_pairs("loglikelihood", "score_order", "order", "both_right"),
}
"""Ending of a task's name -> how it asks and scores; the first metric is the one of its floor."""


def write_data(folder: Path) -> None:
    """Write the rows that experts learn from: ``FAMILY_LANGUAGE.jsonl``, and those of twins.

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
    _write_twins(folder / "twins_math.jsonl", twins.math_row)
    for code in TARGETS:
        _write_twins(folder / f"twins_{code}.jsonl", partial(twins.language_row, language=code))
        _write_twins(
            folder / f"twins_{code}_permuted.jsonl",
            partial(twins.language_row, language=code, is_permuted=True),
        )


def _write_twins(path: Path, draw: Callable[[random.Random], twins.Row]) -> None:
    rng = random.Random(f"{path.stem}/{SEED}")
    write_rows(path, (draw(rng) for _ in range(TWIN_ROWS)))


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
        _write_twin_tasks(folder, home, language)
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
    # Not the seed of the training rows: nothing in a test may follow from their order.
    drawn = {
        part: draw_rows(FAMILIES[family], language, split, number, f"{family}/test/{SEED}")
        for split, part, number in (("test", "test", TEST_ITEMS), ("train", "examples", EXAMPLES))
    }
    for part, rows in drawn.items():
        write_rows(folder / f"{stem}.{part}.jsonl", [_item(family, row) for row in rows])
    files = {"train": f"{home / stem}.examples.jsonl", "test": f"{home / stem}.test.jsonl"}
    what = f"{family.replace('_', ' ')}, {language_name(language)}, {shots} examples in the prompt"
    content = task(name, files, _SCORING[family], shots)
    if family == "math":
        floor = word_blind_floor([[(row.prompt, int(row.answer))] for row in drawn["test"]])
        content["metadata"]["floor"] = floor.model_dump()
    _write(folder, what, content)


def _write(folder: Path, what: str, content: Mapping[str, Any]) -> None:
    header = f"SmolLM2 testbed: {what}. Written by `layerswap smol build`"
    write_yaml(folder / f"{content['task']}.yaml", header, content)


def _item(family: str, row: Exercise) -> dict[str, str]:
    answer = row.answer.removesuffix(".") if family.startswith("translate") else row.answer
    return {"prompt": row.prompt, "solution": row.solution, "answer": answer}


def _write_twin_tasks(folder: Path, home: Path, language: str) -> None:
    """Write the tasks of twins in a language, and of translating such problems."""
    for part, verbs in ("", twins.TRANSLATED), ("_new_verbs", twins.NEW):
        rng = random.Random(f"twins{part}/{SEED}")  # the same contents in every language
        items = [twins.twin_item(rng, language, verbs) for _ in range(TEST_ITEMS)]
        least = word_blind_floor(
            [list(zip(item["texts"], item["answers"], strict=True)) for item in items]
        )
        for measure, scoring in _TWINS.items():
            name = f"twins{part}{measure}_{language}"
            rows = map(twins.with_calculation, items) if measure == "_result" else items
            write_rows(folder / f"data/{name}.jsonl", rows)
            floor = _ANY_RULE if measure == "_order" else least
            content = {
                "task": f"smol_math_{name}",
                "class": FunctionName("ablations.tasks.twins.TwinTask"),
                "dataset_path": "json",
                "dataset_kwargs": {"data_files": {"test": str(home / f"data/{name}.jsonl")}},
                "test_split": "test",
                "doc_to_text": "{{prompts[0]}}",
                "doc_to_target": "{{solutions | join}}",
                **scoring,
                "metadata": {"version": 1.0, "floor": floor.model_dump()},
            }
            _write(folder, f"pairs of problems, {language_name(language)}", content)
    for name, is_back in (f"en_{language}", False), (f"{language}_en", True):
        if language == "en":
            break
        rng = random.Random(f"twins/translate/{SEED}")
        drawn = [twins.draw_twins(rng, "test", things="train") for _ in range(TEST_ITEMS)]
        problems = [rng.choice(pair).sentences for pair in drawn]
        texts = [
            twins.translation(join(each, "en"), join(each, language), language, is_back)
            for each in problems
        ]
        file = f"data/twins_translate_{name}.jsonl"
        translations = [{**row, "answer": row["answer"].strip().removesuffix(".")} for row in texts]
        write_rows(folder / file, translations)
        files = {"test": str(home / file), "train": str(home / file)}  # 0-shot: none is an example
        content = task(f"smol_translate_twins_{name}", files, _TRANSLATION)
        _write(folder, f"translation of problems, {language_name(language)}", content)
