"""The size of a task before an engine is started: items and tokens."""

import pytest

from ablations.engines.work_size import TaskSize, measure_tasks
from ablations.scoring.evaluation import EvaluationRequest

ITEMS = 24


def test_the_size_of_a_task_is_that_of_what_is_asked_and_how(model, tasks):
    def measured(task, limit=None, **protocol):
        request = EvaluationRequest(tasks=(task,), include_path=tasks, limit=limit, **protocol)
        found = measure_tasks([request], model, 128)[task]
        assert isinstance(found, TaskSize), found
        return found

    plain, five = measured("words_generate"), measured("words_generate", limit=5)
    assert (plain.items, five.items) == (ITEMS, 5)
    assert plain.prompt_tokens > five.prompt_tokens > 5
    assert plain.answer_tokens // ITEMS == five.answer_tokens // 5 > 0
    choose = measured("words_choose")
    assert (choose.items, choose.answer_tokens) == (ITEMS, 0)
    short = measured("words_generate", gen_kwargs={"max_gen_toks": 3})
    assert short.answer_tokens == 3 * ITEMS < plain.answer_tokens
    sampled = {"gen_kwargs": {"temperature": 1.0, "max_gen_toks": 3}, "repeats": 4}
    drawn = measured("words_generate", **sampled)
    assert (drawn.items, drawn.answer_tokens) == (4 * ITEMS, 4 * short.answer_tokens)
    assert drawn.prompt_tokens == pytest.approx(4 * short.prompt_tokens, abs=4)
    # What is scored without being generated is asked once.
    assert measured("words_choose", **sampled) == choose
    # More than half of the context, where the longest prompt leaves it.
    whole = measured("words_generate", gen_kwargs={"max_gen_toks": 1000})
    assert whole.answer_tokens // ITEMS > 64


def test_what_is_not_here_is_said(model, tasks, tmp_path):
    request = EvaluationRequest(tasks=("words_generate",), include_path=tasks)
    (found,) = measure_tasks([request], tmp_path, None).values()
    assert "no tokenizer on this machine" in str(found)
