"""MGSM as it is published, in all five languages. None of its text is in the repository.

The files are read from where the workplace keeps them; without them every test here skips.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ablations.scoring.records import Evaluation
from ablations.tasks.generate import TASKS
from tests.standins.scripted import (
    LANGUAGES,
    REAL_MGSM,
    TABLE,
    ask,
    gold,
    needs_real_mgsm,
    perturbed,
    read_jsonl,
    task_names,
    write_jsonl,
)

pytestmark = [needs_real_mgsm, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
FILTERS = ("strict-match", "flexible-extract")

PROMPT_HASHES = {
    "sw": "056cb7944e9fd396",
    "te": "ce318e2a4b9363fe",
    "bn": "2799b24b6e92a715",
    "ja": "386e45b893cba1ca",
    "en": "fbaa09d727556ff5",
}
"""First 16 digits of the SHA-256 of all 250 prompts of a language, one after the other."""


def _words(code: str) -> Any:
    words = TABLE[code].mgsm
    assert words is not None
    return words


def _scores(evaluation: Evaluation) -> dict[tuple[str, str], float]:
    return {
        (score.task.removeprefix("layerswap_mgsm_"), score.filter): score.value
        for score in evaluation.scores
        if score.metric == "exact_match"
    }


@pytest.fixture(scope="module")
def right() -> Evaluation:
    return ask(gold, task_names("mgsm"), data_dir=REAL_MGSM)


def test_gold_answers_score_one_in_every_language(right: Evaluation) -> None:
    assert _scores(right) == {(code, name): 1.0 for code in LANGUAGES for name in FILTERS}
    assert all(score.n == 250 for score in right.scores)


def test_wrong_answers_score_zero_in_every_language() -> None:
    def wrong(task: str, item: Mapping[str, Any]) -> str:
        digits = item["answer_number"]
        if int(digits) % 2:
            return perturbed(task, item)
        # 3.5 for 35, and .8 for 8: the digits are right, the number is not.
        return gold(task, {**item, "answer_number": f"{digits[:-1]}.{digits[-1]}"})

    scores = _scores(ask(wrong, task_names("mgsm"), data_dir=REAL_MGSM))
    assert scores == {(code, name): 0.0 for code in LANGUAGES for name in FILTERS}


def test_empty_answers_score_zero_in_every_language() -> None:
    scores = _scores(ask(lambda task, item: "", task_names("mgsm"), data_dir=REAL_MGSM))
    assert scores == {(code, name): 0.0 for code in LANGUAGES for name in FILTERS}


def test_the_same_number_written_otherwise_is_right() -> None:
    def rewritten(task: str, item: Mapping[str, Any]) -> str:
        number = int(item["answer_number"])
        other = (f"{number:,}", f"{number}.0", f"{number:,}.00", f"${number}")[number % 4]
        return gold(task, {**item, "answer_number": other})

    scores = _scores(ask(rewritten, task_names("mgsm"), data_dir=REAL_MGSM))
    assert scores == {(code, name): 1.0 for code in LANGUAGES for name in FILTERS}


def test_the_exemplars_own_solutions_are_read(tmp_path: Path) -> None:
    """The items are the eight exemplars; the answers are their solutions, letter for letter."""
    solutions = {}
    for code in LANGUAGES:
        exemplars = read_jsonl(REAL_MGSM / f"{code}_train.jsonl")
        words = _words(code)
        items = []
        for row in exemplars:
            question = row["question"].removeprefix(words.question)
            assert question != row["question"]
            solution = row["answer"].removeprefix(words.answer)
            assert solution != row["answer"]
            solutions[code, question] = solution
            items.append({**row, "question": question, "answer": None})
        write_jsonl(tmp_path / f"{code}_train.jsonl", exemplars)
        write_jsonl(tmp_path / f"{code}_test.jsonl", items)

    def say(task: str, item: Mapping[str, Any]) -> str:
        return solutions[task.removeprefix("layerswap_mgsm_"), item["question"]]

    evaluation = ask(say, task_names("mgsm"), data_dir=tmp_path)
    assert _scores(evaluation) == {(code, name): 1.0 for code in LANGUAGES for name in FILTERS}
    assert all(score.n == 8 for score in evaluation.scores)


@pytest.mark.parametrize("code", LANGUAGES)
def test_the_prompt_holds_the_exemplars_whole(right: Evaluation, code: str) -> None:
    words = _words(code)
    train = read_jsonl(REAL_MGSM / f"{code}_train.jsonl")
    test = read_jsonl(REAL_MGSM / f"{code}_test.jsonl")
    assert (len(train), len(test)) == (8, 250)
    exemplars = [f"{row['question']}\n{row['answer']}\n\n" for row in train]
    samples = right.samples_of(f"layerswap_mgsm_{code}")
    assert len(samples) == len(FILTERS) * 250
    for sample in samples:
        item = f"{words.question}{test[sample.doc_id]['question']}\n{words.answer}"
        assert sample.prompts == ("".join(exemplars) + item,)
        assert sample.prompts[0].count(words.answer) == 9
    assert right.num_fewshot[f"layerswap_mgsm_{code}"] == 8


@pytest.mark.parametrize("code", LANGUAGES)
def test_no_stop_string_is_in_a_gold_solution(code: str) -> None:
    from lm_eval.tasks import TaskManager

    manager = TaskManager(
        include_path=str(TASKS), include_defaults=False, metadata={"data_dir": str(REAL_MGSM)}
    )
    (task,) = manager.load([f"layerswap_mgsm_{code}"])["tasks"].values()
    generation = task.config.generation_kwargs
    assert generation["max_gen_toks"] >= 1024
    words = _words(code)
    rows = read_jsonl(REAL_MGSM / f"{code}_train.jsonl")
    assert words.question.strip() in generation["until"]
    for row in rows:
        # Where the next question begins, generation does stop.
        assert row["question"].startswith(words.question.strip())
        assert not [stop for stop in generation["until"] if stop in row["answer"]]


def test_all_languages_ask_the_same_numbers(right: Evaluation) -> None:
    targets = {
        code: [sample.target for sample in right.samples_of(f"layerswap_mgsm_{code}")]
        for code in LANGUAGES
    }
    assert all(each == targets["en"] for each in targets.values())


@pytest.mark.parametrize("code", LANGUAGES)
def test_the_prompts_are_those_on_file(right: Evaluation, code: str) -> None:
    samples = right.samples_of(f"layerswap_mgsm_{code}")
    prompts = [sample.prompts[0] for sample in samples if sample.filter == "strict-match"]
    assert len(prompts) == 250
    digest = hashlib.sha256(json.dumps(prompts).encode()).hexdigest()
    assert digest[:16] == PROMPT_HASHES[code]
