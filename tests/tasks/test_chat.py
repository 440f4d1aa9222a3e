"""Prompts of every task as chats: they are on file, and examples are asked as the item is.

Written by the template of ChatML, which leaves every turn as it is. To accept a change on purpose,
see `tests.tasks.test_scores`.
"""

import re
import shutil

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from tests.standins.scripted import (
    BENCHMARKS,
    CHOSEN,
    DATA,
    LANGUAGES,
    MGSM_LANGUAGES,
    OURS,
    TABLE,
    ask,
    read_jsonl,
    task_names,
    write_jsonl,
)
from tests.tasks.test_scores import SHOTS, check_prompt

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MGSM = tuple(f"layerswap_mgsm_{code}" for code in MGSM_LANGUAGES)
ON_FILE = task_names(*OURS, "mbpp")


@pytest.fixture(scope="module")
def chats(tmp_path_factory):
    """Return a function that gives the evaluation of tasks whose prompts are chats."""
    folder = tmp_path_factory.mktemp("tokenizer")
    words = Tokenizer(WordLevel({"?": 0}, unk_token="?"))
    PreTrainedTokenizerFast(tokenizer_object=words, chat_template=CHATML).save_pretrained(folder)

    def ask_in_chats(tasks, data_dir=DATA):
        options = {"apply_chat_template": True, "isolation": "none", "folder": folder}
        return ask(lambda *_: "", tasks, data_dir=data_dir, **options)

    return ask_in_chats


@pytest.fixture(scope="module")
def on_file(chats):
    return chats(ON_FILE)


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    """Return a folder of data whose items are the examples, those of MGSM without native words."""
    folder = tmp_path_factory.mktemp("examples")
    shutil.copytree(DATA, folder, dirs_exist_ok=True)
    for code in LANGUAGES:
        shutil.copy(folder / f"mmlu/{code}_dev.jsonl", folder / f"mmlu/{code}_test.jsonl")
    for task in MGSM:
        words = TABLE[code := task.rpartition("_")[2]].mgsm
        rows = read_jsonl(DATA / f"mgsm/{code}_train.jsonl")
        items = [{**row, "question": row["question"].removeprefix(words.question)} for row in rows]
        write_jsonl(folder / f"mgsm/{code}_test.jsonl", items)
    return folder


def turns(prompt):
    """Return the messages of a chat, and the turn that it opens."""
    *messages, opened = re.findall(r"<\|im_start\|>(\w+)\n(.*?)(?:<\|im_end\|>\n|$)", prompt, re.S)
    assert opened == ("assistant", "")
    assert [role for role, _ in messages] == ["user", "assistant"] * (len(messages) // 2) + ["user"]
    return [text for _, text in messages]


@pytest.mark.parametrize("task", ON_FILE)
def test_the_chat_is_the_one_on_file(on_file, task):
    check_prompt(on_file, task, ".chat")
    assert len(turns(on_file.samples_of(task)[0].prompts[0])) // 2 == SHOTS[BENCHMARKS[task]]


def test_examples_are_asked_as_the_same_questions_are_when_they_are_items(chats, examples):
    tasks = (*MGSM, *task_names(*CHOSEN))
    evaluation = chats(tasks, examples)
    for task in tasks:
        messages = [turns(sample.prompts[0]) for sample in evaluation.samples_of(task)]
        items = {chat[-1] for chat in messages}
        assert len(items) >= SHOTS[BENCHMARKS[task]]
        for *shots, _ in messages:
            assert set(shots[::2]) <= items


@pytest.mark.parametrize("task", MGSM)
def test_the_answer_of_an_exemplar_is_its_solution(chats, task):
    words = TABLE[code := task.rpartition("_")[2]].mgsm
    rows = read_jsonl(DATA / f"mgsm/{code}_train.jsonl")
    solutions = [row["answer"].removeprefix(words.answer).strip() for row in rows]
    for sample in chats((task,)).samples:
        assert turns(sample.prompts[0])[1::2] == solutions
