"""The tasks under lm-eval itself: an oracle scores 1, a liar 0, and nothing needs the network."""

import json
import re
from typing import Any

import pytest
from lm_eval import simple_evaluate
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager

from ablations.pocket.exercises import split_of
from ablations.pocket.pretraining import vocabulary
from ablations.pocket.tasks import TASK_NAMES, draw_items, write_tasks
from ablations.pocket.world import say

ITEMS = 12
FAMILIES = ("math", "translate", "comprehension", "facts")


@pytest.fixture(scope="module")
def tasks_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    write_tasks(folder, folder, ITEMS)
    return folder


def read_rows(tasks_dir):
    """Return prompt → row over all test files."""
    return {
        row["prompt"]: row
        for path in sorted((tasks_dir / "data").glob("*.test.jsonl"))
        for row in map(json.loads, path.read_text().splitlines())
    }


class Scripted(LM):
    """Answers each prompt with `answer` of its row, and remembers the contexts it saw."""

    def __init__(self, tasks_dir, answer):
        super().__init__()
        self.rows = read_rows(tasks_dir)
        self.answer = answer
        self.contexts: list[str] = []

    def reply(self, context):
        self.contexts.append(context)
        return self.answer(self.rows[context.split("\n\n")[-1]])

    def generate_until(self, requests):
        return [" " + self.reply(request.args[0]) for request in requests]

    def loglikelihood(self, requests):
        chosen = [self.reply(request.args[0]) for request in requests]
        return [
            (0.0 if request.args[1].strip() == reply else -1.0, False)
            for request, reply in zip(requests, chosen, strict=True)
        ]

    def loglikelihood_rolling(self, requests):
        raise AssertionError("no task of the testbed asks for this")


def evaluate(model, tasks_dir):
    manager = TaskManager(include_path=str(tasks_dir), include_defaults=False)
    found = simple_evaluate(
        model=model, tasks=["pocket"], task_manager=manager, bootstrap_iters=0, log_samples=False
    )
    assert found is not None
    assert {found["n-samples"][name]["effective"] for name in TASK_NAMES} == {ITEMS}
    scores: dict[str, dict[str, Any]] = found["results"]
    return {name: scores[name] for name in TASK_NAMES}


def gold(row):
    return str(row["answer"] if "choices" in row else row["solution"])


def wrong(row):
    if row["prompt"].endswith("solve :"):
        return gold(row).replace(f"{row['answer']} .", "zebra .")
    if "choices" in row:
        return next(str(choice) for choice in row["choices"] if choice != row["answer"])
    return "zebra zebra ."


@pytest.mark.parametrize(("answer", "score"), [(gold, 1), (wrong, 0)])
def test_an_oracle_scores_one_and_a_liar_zero(answer, score, tasks_dir, monkeypatch):
    monkeypatch.chdir(tasks_dir.parent)
    model = Scripted(tasks_dir, answer)
    scores = evaluate(model, tasks_dir)
    assert len(scores) == 8
    for name, metrics in scores.items():
        values = {k: value for k, value in metrics.items() if "," in k and "stderr" not in k}
        assert values, name
        for key, value in values.items():
            assert value == pytest.approx(score * (100 if "bleu" in key else 1)), (name, key)
    known = set(vocabulary())
    assert all(set(context.split()) <= known for context in model.contexts)
    examples = sorted((tasks_dir / "data").glob("*.train.jsonl"))
    assert len(examples) == 8
    for path in examples:  # for few-shot prompts: no test items
        assert not model.rows.keys() & {
            json.loads(line)["prompt"] for line in path.read_text().splitlines()
        }


@pytest.mark.parametrize("family", FAMILIES)
def test_items_are_distinct_test_content_and_the_same_in_both_languages(family):
    english = draw_items(family, "en", "test", 200, 1)
    swahili = draw_items(family, "sw", "test", 200, 1)
    assert english == draw_items(family, "en", "test", 200, 1)
    assert english != draw_items(family, "en", "test", 200, 2)
    prompts = [row["prompt"] for row in english]
    assert len(set(prompts)) == 200
    for one, other in zip(english, swahili, strict=True):
        if family == "math":
            assert say(one["answer"], "sw") == other["answer"]
            assert one["solution"].split("the")[0] == other["solution"].split("jibu")[0]
        frame = r"^(.*) (?:solve|answer|swahili) :$"
        content = re.search(frame, one["prompt"])
        assert content is not None
        assert split_of(content[1]) == "test"
