"""Every task, on hand-written data: gold answers score 1, wrong ones 0, and prompts are on file.

To accept a change of prompts on purpose: ``LAYERSWAP_WRITE_PROMPTS=1 pytest tests/tasks``, then
read the difference. It changes scores, so raise `tools.task_contents.VERSION` with it.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ablations.scoring.evaluation import Evaluation
from ablations.scoring.observed import zero_reasons
from ablations.tasks.catalog import SHIPPED_TASKS, list_tasks
from tests.standins.scripted import (
    BENCHMARKS,
    CHOSEN,
    DATA,
    GENERATED,
    OURS,
    POLYMATH,
    ask,
    gold,
    perturbed,
    task_names,
)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
PROMPTS = Path(__file__).parent / "prompts"
ASKED = {"global_mgsm": 1} | dict.fromkeys(POLYMATH, 0)
"""Benchmarks whose prompt is a request, to which an answer is a reply and no continuation -> the
blank lines in it."""

SHOTS = {"mgsm": 8, "belebele": 5, "mmlu": 5} | dict.fromkeys(("flores", "mbpp", *ASKED), 0)
_NUMBERS = {("exact_match", "strict-match"), ("exact_match", "flexible-extract")}
METRICS = {
    "mgsm": _NUMBERS,
    "global_mgsm": _NUMBERS,
    "flores": {("bleu", "stripped"), ("chrf++", "stripped")},
    "belebele": {("acc", "none")},
    "mmlu": {("acc", "none")},
}
METRICS |= {name: {("boxed_match", "boxed")} for name in POLYMATH}


@pytest.fixture(scope="module")
def right():
    """Every task of ours, answered with the gold text."""
    return ask(gold, task_names(*OURS))


def check_prompt(evaluation, task, form=""):
    prompt = evaluation.samples_of(task)[0].prompts[0]
    path = PROMPTS / f"{task}{form}.txt"
    if os.environ.get("LAYERSWAP_WRITE_PROMPTS") == "1":
        path.write_text(prompt, encoding="utf-8")
    assert prompt == path.read_text(encoding="utf-8")


def own_scores(evaluation):
    """Return task, metric, filter → score, for the metrics that the task files name."""
    return {
        (each.task, each.metric, each.filter): each.value
        for each in evaluation.scores
        if (each.metric, each.filter) in METRICS[BENCHMARKS[each.task]]
    }


def test_gold_answers_score_one(right):
    scores = own_scores(right)
    metrics = {(t, *pair) for t in task_names(*OURS) for pair in METRICS[BENCHMARKS[t]]}
    assert scores == dict.fromkeys(metrics, pytest.approx(1.0))


@pytest.mark.parametrize("answer", [None, "", " ", "\n"])
def test_wrong_and_empty_answers_score_zero(answer):
    names = task_names(*(OURS if answer is None else GENERATED))
    scores = own_scores(ask(perturbed if answer is None else lambda *_: answer, names))
    assert len(scores) == 5 * 2 + 8 * 2 + 5 * 2 + 5 * 4 + (10 if answer is None else 0)
    assert scores == dict.fromkeys(scores, 0.0)


@pytest.mark.parametrize("first", [gold, lambda *_: "no number"])
def test_empty_answers_are_counted(first):
    def say(task, item):
        return first(task, item) if item["answer_number"] == "32" else " "

    evaluation = ask(say, ("layerswap_mgsm_sw",))
    (note,) = (note for note in evaluation.notes if "empty" in note)
    assert note.startswith("layerswap_mgsm_sw: 3 of 4 answers are empty; compare its prompts")
    reasons = zero_reasons(evaluation)
    assert bool(reasons) is (first is not gold)
    for name in reasons:
        told = f"the filter {name} finds no answer in any of the 4 responses, of which 3 are empty"
        assert reasons[name].startswith(told)


@pytest.mark.parametrize("task", task_names(*OURS))
def test_the_prompt_is_the_one_on_file_and_ends_where_the_answer_begins(right, task):
    check_prompt(right, task)
    benchmark = BENCHMARKS[task]
    assert right.num_fewshot[task] == SHOTS[benchmark]
    for sample in right.samples_of(task):
        for prompt in sample.prompts:
            # A space at the end would be a token of its own, which no answer in training followed.
            assert prompt == prompt.rstrip()
            if benchmark in ASKED:
                assert prompt.count("\n\n") == ASKED[benchmark]
                continue
            assert prompt[-1] in ":："
            assert prompt.count("\n\n") == SHOTS[benchmark]
            if benchmark in CHOSEN:
                assert prompt.count("\nAnswer:") == SHOTS[benchmark] + 1


def test_no_prompt_on_file_is_of_another_task():
    ours = {f"{task}{form}.txt" for task in task_names(*OURS, "mbpp") for form in ("", ".chat")}
    assert {path.name for path in PROMPTS.iterdir()} == ours


def test_belebele_skips_the_item_and_keeps_the_order(right):
    samples = right.samples_of("layerswap_belebele_sw")
    assert len(samples) == 7
    items = [sample.prompts[0].split("\n\n")[-1] for sample in samples]
    for index, sample in enumerate(samples):
        expected = [item for item in items if item != items[index]][:5]
        shown = [block.rsplit(" ", 1)[0] for block in sample.prompts[0].split("\n\n")[:-1]]
        assert shown == expected


def test_mmlu_shows_the_first_five_of_the_subject(right):
    samples = right.samples_of("layerswap_mmlu_en")
    assert len(samples) == 4
    for sample in samples:
        *examples, item = sample.prompts[0].split("\n\n")
        assert [("cities" in example) for example in examples] == ["cities" in item] * 5
    # In the order of the dev split, with its answers.
    assert "What is 3 + 5?\nA. 8\nB. 9\nC. 10\nD. 11\nAnswer: A\n\n" in samples[0].prompts[0]


def test_samples_hold_target_response_and_what_was_read_from_it(right):
    (strict, *_) = right.samples_of("layerswap_mgsm_bn")
    assert (strict.filter, strict.doc_id, strict.target) == ("strict-match", 0, "32")
    assert (strict.responses, strict.answers) == ((" 1 + 1 = 2. উত্তর হল 32.",), ("32",))
    assert strict.values["exact_match"] == 1.0
    assert len(strict.prompt_hash) == len(strict.doc_hash) == 64
    (pair,) = [s for s in right.samples_of("layerswap_flores_en-ja") if s.doc_id == 1]
    assert pair.values["bleu"] == ("1998年、その町の人口はおよそ12,500人でした。",) * 2
    assert Evaluation.model_validate_json(right.model_dump_json()) == right


@pytest.mark.slow
def test_plain_lm_eval_runs_every_group_from_the_shell(tmp_path):
    groups = ",".join(f"layerswap_{benchmark}" for benchmark in OURS)
    command = [sys.executable, "-m", "lm_eval", "run", "--model", "dummy", "--limit", "1"]
    command += ["--include_path", str(SHIPPED_TASKS), "--tasks", groups]
    command += ["--metadata", json.dumps({"data_dir": str(DATA)}), "--output_path", "out"]
    subprocess.run(command, cwd=tmp_path, env=os.environ | {"HF_HUB_OFFLINE": "1"}, check=True)
    (path,) = (tmp_path / "out").rglob("results_*.json")
    results = json.loads(path.read_text(encoding="utf-8"))["results"]
    ours = {task.name for task in list_tasks() if task.benchmark in OURS}
    assert {*results} - {*groups.split(",")} == ours
    assert ours > {*task_names(*OURS)}
    assert results["layerswap_mgsm_te"]["exact_match,flexible-extract"] == 0
    assert {"bleu,stripped", "chrf++,stripped"} <= set(results["layerswap_flores_ja-en"])
    assert 0 <= results["layerswap_mmlu_bn"]["acc,none"] <= 1
