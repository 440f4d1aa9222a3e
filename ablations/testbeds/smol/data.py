"""The files of the testbed: rows for training and lm-eval tasks."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ablations.tasks.catalog import Floor, FunctionName
from ablations.testbeds.pocket.testbed_tasks import (
    generated,
    metric,
    task,
    write_rows,
    write_yaml,
)
from ablations.testbeds.smol.math_problems import (
    LANGUAGES,
    NEW,
    TARGETS,
    TRANSLATED,
    TextRow,
    draw_comprehension,
    draw_item,
    draw_pair,
    english_name,
    language_row,
    math_row,
    translation_row,
    with_calculation,
    word_blind_floor,
)

TRAIN_ROWS = 8000
"""Rows of each training file; an expert sees a part of them, drawn with its seed."""

TEST_ITEMS = 500

SEED = 20261122
"""Seed of all files. Experts differ in which rows they see, and in what order."""

_TRANSLATION = generated(
    64, {"without-full-stop": r"^\s*(.+?)\.?\s*$"}, "bleu", "exact_match", until="\n"
)
_ANY_RULE = Floor(name="any rule that does not read the verb", score=0.5)
# An answer is one line; whatever a model goes on with is not part of it.
_ONE_LINE = {"until": ["\n"], "do_sample": False, "max_gen_toks": 16}


def _pair_scoring(
    output_type: str, function: str, *metrics: str, generation_kwargs: Mapping[str, Any] | None
) -> dict[str, Any]:
    scoring: dict[str, Any] = {"output_type": output_type}
    if generation_kwargs is not None:
        scoring["generation_kwargs"] = generation_kwargs
    scoring["process_results"] = FunctionName(f"ablations.tasks.twins.{function}")
    scoring["metric_list"] = [
        {**metric(name), "higher_is_better": name != "swapped"} for name in metrics
    ]
    return scoring


_MEASURES = {
    "": _pair_scoring(
        "generate_until",
        "score_answers",
        "operation",
        "both_right",
        "swapped",
        generation_kwargs=_ONE_LINE,
    ),
    "_result": _pair_scoring(
        "generate_until", "score_result", "both_right", generation_kwargs=_ONE_LINE
    ),
    "_order": _pair_scoring(
        "loglikelihood", "score_order", "order", "both_right", generation_kwargs=None
    ),
}
"""Ending of a task's name -> its requests and scores; the first metric is the one of its floor."""


def write_data(folder: Path) -> None:
    """Write the rows that experts learn from, to an existing folder.

    Problems are in English only, so nobody can train on a target language's by mistake.
    """
    files: dict[str, Callable[[random.Random], TextRow]] = {"math": math_row}
    for code in TARGETS:
        files[code] = partial(language_row, language=code)
        files[f"{code}_permuted"] = partial(language_row, language=code, is_permuted=True)
    for name, draw in files.items():
        path = folder / f"twins_{name}.jsonl"
        rng = random.Random(f"{path.stem}/{SEED}")
        write_rows(path, (draw(rng) for _ in range(TRAIN_ROWS)))


def write_smol_tasks(folder: Path, home: Path) -> None:
    """Write the lm-eval tasks.

    Args:
        folder: existing folder to write to.
        home: absolute path under which `folder` will be read.
    """
    (folder / "data").mkdir()
    for language in LANGUAGES:
        _write_problems(folder, home, language)
        rng = random.Random(f"comprehension/{SEED}")
        items = [draw_comprehension(rng, language) for _ in range(TEST_ITEMS)]
        _write_pairs(folder, home, "comprehension_twins", language, items, "_order", _ANY_RULE)
    for language in TARGETS:
        for name, is_back in (f"en_{language}", False), (f"{language}_en", True):
            _write_translation(folder, home, name, language, is_back=is_back)


def _write(folder: Path, subject: str, language: str, content: dict[str, Any]) -> None:
    write_yaml(
        folder / f"{content['task']}.yaml",
        f"SmolLM2 testbed: {subject}, {english_name(language)}. Written by `layerswap smol build`",
        content,
    )


def _write_problems(folder: Path, home: Path, language: str) -> None:
    for verb_set, verbs in ("", TRANSLATED), ("_new_verbs", NEW):
        rng = random.Random(f"twins{verb_set}/{SEED}")  # the same contents in every language
        items = [draw_item(rng, language, verbs) for _ in range(TEST_ITEMS)]
        number_floor = word_blind_floor(
            [list(zip(item["texts"], item["answers"], strict=True)) for item in items]
        )
        for measure in _MEASURES:
            rows = map(with_calculation, items) if measure == "_result" else items
            floor = _ANY_RULE if measure == "_order" else number_floor
            name = f"math_twins{verb_set}{measure}"
            _write_pairs(folder, home, name, language, rows, measure, floor)


def _write_pairs(
    folder: Path,
    home: Path,
    name: str,
    language: str,
    rows: Iterable[Mapping[str, Any]],
    measure: str,
    floor: Floor,
) -> None:
    file = f"data/{name.removeprefix('math_')}_{language}.jsonl"
    write_rows(folder / file, rows)
    content = {
        "task": f"smol_{name}_{language}",
        "class": FunctionName("ablations.tasks.twins.TwinTask"),
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(home / file)}},
        "test_split": "test",
        "doc_to_text": "{{prompts[0]}}",
        "doc_to_target": "{{solutions | join}}",
        **_MEASURES[measure],
        "metadata": {"version": 1.0, "floor": floor.model_dump()},
    }
    _write(folder, "pairs of problems", language, content)


def _write_translation(
    folder: Path, home: Path, name: str, language: str, *, is_back: bool
) -> None:
    rng = random.Random(f"twins/translate/{SEED}")
    rows = []
    pairs = [draw_pair(rng, "test", things="train") for _ in range(TEST_ITEMS)]
    for problem in map(rng.choice, pairs):
        row = translation_row(problem.text("en"), problem.text(language), language, is_back=is_back)
        rows.append({**row, "answer": row["answer"].strip().removesuffix(".")})
    file = f"data/twins_translate_{name}.jsonl"
    write_rows(folder / file, rows)
    files = {"test": str(home / file), "train": str(home / file)}  # 0-shot: none is an example
    content = task(f"smol_translate_twins_{name}", files, _TRANSLATION)
    _write(folder, "translation of problems", language, content)
