"""How far a task is, as both engines tell it."""

import pytest

from ablations.engines.options import EngineOptions
from ablations.engines.work_size import TaskSize, measure_tasks
from ablations.machine.progress import listening
from ablations.scoring.records import EvaluationRequest
from tests.engines.backends import BACKENDS
from tests.standins.cold import evaluate_cold

ITEMS = 24


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("task", ["words_generate", "words_choose"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_items_are_told_as_they_are_answered(model, tasks, task, backend):
    heard = []
    options = EngineOptions(batch_size=8, kv_cache_gib=1, gpu_memory_utilization=0.3)
    with listening(heard.append):
        request = EvaluationRequest(tasks=(task,), include_path=tasks)
        evaluate_cold(model, request, backend, options)
    steps = [step for step in heard if step.what == task]
    assert (steps[0].done, steps[-1].done, steps[-1].total) == (0, ITEMS, ITEMS)
    assert len({step.done for step in steps}) >= 4  # three batches of eight at the least


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
