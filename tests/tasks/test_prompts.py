"""The prompt of the first item of every task, letter for letter, on hand-written data.

To accept a change on purpose: ``LAYERSWAP_WRITE_PROMPTS=1 pytest tests/tasks/test_prompts.py``,
then read the difference. It changes scores, so raise `tools.task_contents.VERSION` with it.
"""

import os
from pathlib import Path

import pytest

from ablations.scoring.records import Evaluation
from tests.standins.scripted import OURS, task_names

PROMPTS = Path(__file__).parent / "prompts"
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def check_prompt(evaluation: Evaluation, task: str) -> None:
    """Compare the first prompt of a task with the one on file."""
    prompt = evaluation.samples_of(task)[0].prompts[0]
    path = PROMPTS / f"{task}.txt"
    if os.environ.get("LAYERSWAP_WRITE_PROMPTS") == "1":
        path.write_text(prompt, encoding="utf-8")
    assert prompt == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("task", task_names(*OURS))
def test_the_prompt_is_the_one_on_file(right: Evaluation, task: str) -> None:
    check_prompt(right, task)


def test_no_prompt_on_file_is_of_another_task() -> None:
    ours = {f"{task}.txt" for task in task_names(*OURS)}
    assert {path.name for path in PROMPTS.iterdir() if "mbpp" not in path.name} == ours


@pytest.mark.parametrize("task", task_names(*OURS))
def test_prompts_end_where_the_answer_begins(right: Evaluation, task: str) -> None:
    # A space at the end would be a token of its own, which no answer in training followed.
    for sample in right.samples_of(task):
        assert all(prompt == prompt.rstrip() for prompt in sample.prompts)
        assert all(prompt[-1] in ":：" for prompt in sample.prompts)
