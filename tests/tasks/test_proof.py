"""Every task, on hand-written data: gold answers score 1, wrong ones 0, and nothing is lost."""

from collections.abc import Mapping
from typing import Any

import pytest

from ablations.scoring.records import Evaluation
from tests.standins.scripted import CHOSEN, GENERATED, OURS, ask, gold, perturbed, task_names

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
SHOTS = {"mgsm": 8, "flores": 0, "belebele": 5, "mmlu": 5}
METRICS = {
    "mgsm": {("exact_match", "strict-match"), ("exact_match", "flexible-extract")},
    "flores": {("bleu", "stripped"), ("chrf++", "stripped")},
    "belebele": {("acc", "none")},
    "mmlu": {("acc", "none")},
}


def _own_scores(evaluation: Evaluation) -> dict[tuple[str, str, str], float]:
    """Return task, metric, filter → score, for the metrics that the task files name."""
    return {
        (each.task, each.metric, each.filter): each.value
        for each in evaluation.scores
        if (each.metric, each.filter) in METRICS[each.task.split("_")[1]]
    }


def test_gold_answers_score_one(right: Evaluation) -> None:
    scores = _own_scores(right)
    assert {(task, metric, filtered) for task, metric, filtered in scores} == {
        (task, *pair) for task in task_names(*OURS) for pair in METRICS[task.split("_")[1]]
    }
    assert scores == dict.fromkeys(scores, pytest.approx(1.0))


def test_perturbed_answers_score_zero() -> None:
    scores = _own_scores(ask(perturbed, task_names(*OURS)))
    assert len(scores) == 5 * 2 + 8 * 2 + 5 + 5
    assert scores == dict.fromkeys(scores, 0.0)


@pytest.mark.parametrize("nothing", ["", " ", "\n"])
def test_empty_answers_score_zero(nothing: str) -> None:
    scores = _own_scores(ask(lambda task, item: nothing, task_names(*GENERATED)))
    assert len(scores) == 5 * 2 + 8 * 2
    assert scores == dict.fromkeys(scores, 0.0)


def test_examples_in_the_prompt_are_counted(right: Evaluation) -> None:
    seen = set()
    for sample in right.samples:
        benchmark = sample.task.split("_")[1]
        seen.add(benchmark)
        for prompt in sample.prompts:
            assert prompt.count("\n\n") == SHOTS[benchmark] == right.num_fewshot[sample.task]
            if benchmark in CHOSEN:
                assert prompt.count("\nAnswer:") == SHOTS[benchmark] + 1
                assert prompt.endswith("\nAnswer:")
    assert seen == set(OURS)


def test_belebele_skips_the_item_and_keeps_the_order(right: Evaluation) -> None:
    samples = right.samples_of("layerswap_belebele_sw")
    assert len(samples) == 7
    items = [sample.prompts[0].split("\n\n")[-1] for sample in samples]
    for index, sample in enumerate(samples):
        expected = [item for item in items if item != items[index]][:5]
        shown = [block.rsplit(" ", 1)[0] for block in sample.prompts[0].split("\n\n")[:-1]]
        assert shown == expected


def test_mmlu_shows_the_first_five_of_the_subject(right: Evaluation) -> None:
    samples = right.samples_of("layerswap_mmlu_en")
    assert len(samples) == 4
    for sample in samples:
        *examples, item = sample.prompts[0].split("\n\n")
        is_geography = "cities" in item
        assert [("cities" in example) for example in examples] == [is_geography] * 5
    # In the order of the dev split, with its answers.
    assert "What is 3 + 5?\nA. 8\nB. 9\nC. 10\nD. 11\nAnswer: A\n\n" in samples[0].prompts[0]


def test_records_say_what_was_asked_said_and_read(right: Evaluation) -> None:
    (strict, *_) = right.samples_of("layerswap_mgsm_bn")
    assert (strict.filter, strict.doc_id, strict.target) == ("strict-match", 0, "32")
    assert strict.responses == (" 1 + 1 = 2. উত্তর হল 32.",)
    assert strict.answers == ("32",)
    assert strict.values["exact_match"] == 1.0
    assert len(strict.prompt_hash) == len(strict.doc_hash) == 64
    (pair,) = [s for s in right.samples_of("layerswap_flores_en-ja") if s.doc_id == 1]
    assert pair.values["bleu"] == ("1998年、その町の人口はおよそ12,500人でした。",) * 2
    assert Evaluation.model_validate_json(right.model_dump_json()) == right


def test_two_runs_ask_the_same(right: Evaluation) -> None:
    def wrong_half(task: str, item: Mapping[str, Any]) -> str:
        return (gold if hash_of(item) % 2 else perturbed)(task, item)

    again = ask(wrong_half, task_names(*OURS))
    assert [(s.task, s.filter, s.doc_id, s.prompt_hash, s.doc_hash) for s in again.samples] == [
        (s.task, s.filter, s.doc_id, s.prompt_hash, s.doc_hash) for s in right.samples
    ]
    # Part of each is right: what is derived from the records must then agree with lm-eval, too.
    scores = _own_scores(again)
    assert any(0 < value < 1 for (task, *_), value in scores.items() if "flores" in task)


def hash_of(item: Mapping[str, Any]) -> int:
    return sum(map(ord, "".join(str(value) for value in item.values())))
