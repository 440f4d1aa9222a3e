"""MGSM as it is published, in the paper's five languages: its exemplars and two items of each."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ablations.scoring.records import Evaluation
from tests.standins.scripted import (
    LANGUAGES,
    PUBLISHED_MGSM,
    TABLE,
    ask,
    gold,
    read_jsonl,
    task_names,
    write_jsonl,
)
from tools.task_contents import SPECIAL_STOPS

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
FILTERS = ("strict-match", "flexible-extract")

PROMPT_HASHES = {
    "sw": "1c89cce7b04b032a",
    "te": "7dd0d4fbfcd3e364",
    "bn": "c5a0096573390550",
    "ja": "00681fb0c542481f",
    "en": "36a93ab1e83f7259",
}
"""First 16 digits of the SHA-256 of the two prompts of a language, one after the other."""


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
    return ask(gold, task_names("mgsm"), data_dir=PUBLISHED_MGSM)


def test_gold_answers_score_one_in_every_language(right: Evaluation) -> None:
    assert _scores(right) == {(code, name): 1.0 for code in LANGUAGES for name in FILTERS}
    assert all(score.n == 2 for score in right.scores)


def test_the_exemplars_own_solutions_are_read(tmp_path: Path) -> None:
    """The items are the eight exemplars; the answers are their solutions, letter for letter."""
    solutions = {}
    for code in LANGUAGES:
        exemplars = read_jsonl(PUBLISHED_MGSM / f"{code}_train.jsonl")
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
def test_prompts_hold_the_exemplars_whole_and_are_those_on_file(
    right: Evaluation, code: str
) -> None:
    words = _words(code)
    train = read_jsonl(PUBLISHED_MGSM / f"{code}_train.jsonl")
    test = read_jsonl(PUBLISHED_MGSM / f"{code}_test.jsonl")
    assert (len(train), len(test)) == (8, 2)
    exemplars = [f"{row['question']}\n{row['answer']}\n\n" for row in train]
    stops = (*SPECIAL_STOPS, words.question.strip())
    assert not [row for row in train if any(stop in row["answer"] for stop in stops)]
    samples = right.samples_of(f"layerswap_mgsm_{code}")
    assert len(samples) == len(FILTERS) * 2
    for sample in samples:
        item = f"{words.question}{test[sample.doc_id]['question']}\n{words.answer}"
        assert sample.prompts == ("".join(exemplars) + item,)
        assert sample.prompts[0].count(words.answer) == 9
    assert right.num_fewshot[f"layerswap_mgsm_{code}"] == 8
    prompts = [sample.prompts[0] for sample in samples if sample.filter == "strict-match"]
    digest = hashlib.sha256(json.dumps(prompts).encode()).hexdigest()
    assert digest[:16] == PROMPT_HASHES[code]
