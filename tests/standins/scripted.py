"""A model that is told what to say, hand-written data, and ten published rows of MGSM."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ablations.engines.chat import chat_prompt
from ablations.engines.lm_eval_backend import score_tasks
from ablations.engines.task_loading import load_tasks
from ablations.requests.resolve import resolve
from ablations.scoring.evaluation import EvaluationRequest
from ablations.tasks.catalog import SHIPPED_TASKS as TASKS
from ablations.tasks.catalog import list_tasks
from tools.task_languages import load_languages

DATA = Path(__file__).parents[1] / "tasks" / "data"
PUBLISHED_MGSM = DATA / "mgsm_published"
LANGUAGES = ("sw", "te", "bn", "ja", "en")
"""Those of the paper, whose prompts are on file and of whose MGSM some rows are as published."""

TABLE = load_languages()
POLYMATH = ("polymath_low", "polymath_medium", "polymath_high", "polymath_top")
GENERATED = ("mgsm", "flores", "global_mgsm", *POLYMATH)
CHOSEN = ("belebele", "mmlu")
OURS = (*GENERATED, *CHOSEN)
BENCHMARKS = {task.name: task.benchmark for task in list_tasks()}
"""Task -> its benchmark."""

SPLITS = {"mgsm": ("train", "test"), "flores": ("devtest",), "belebele": ("test",)}
SPLITS |= {"mmlu": ("dev", "test")} | dict.fromkeys(("global_mgsm", *POLYMATH), ("test",))
"""Benchmark -> the splits that every language with this benchmark has hand-written data of."""

Say = Callable[[str, Mapping[str, Any]], str]
"""Task name and item → the text of the answer, or the letter of the choice."""


def ask(say, tasks, *, data_dir=DATA, include_path=TASKS, folder=None, **options):
    """Evaluate a model that answers with `say`; `folder` has its tokenizer, for a chat template."""
    from lm_eval.api.model import LM
    from transformers import AutoTokenizer

    class Scripted(LM):  # type: ignore[misc]
        def __init__(self, **_repeat):
            super().__init__()
            self.outcomes, self.stored_keys = {}, {}

        tokenizer = None if folder is None else AutoTokenizer.from_pretrained(folder)
        tokenizer_name = "scripted"

        def apply_chat_template(self, messages, add_generation_prompt=True):
            is_open = add_generation_prompt
            return chat_prompt(self.tokenizer, messages, {}, add_generation_prompt=is_open)

        def can_answer(self, requests):
            return True

        def generate_until(self, requests):
            return [say(request.task_name, request.doc) for request in requests]

        def loglikelihood(self, requests):
            return [
                (
                    0.0 if request.args[1] == f" {say(request.task_name, request.doc)}" else -1.0,
                    False,
                )
                for request in requests
            ]

        def loglikelihood_rolling(self, requests):
            raise AssertionError("no task asks for this")

    request = EvaluationRequest(
        tasks=tasks, include_path=include_path, data_dir=data_dir, **options
    )
    resolved = resolve(request)
    return score_tasks(Scripted, resolved, load_tasks(resolved), folder, "hf")


def gold(task, item):
    benchmark = BENCHMARKS[task]
    if benchmark in ("mgsm", "mgsm_rev2", "msvamp"):
        words = TABLE[task.rpartition("_")[2]].mgsm
        return f" 1 + 1 = 2. {words.phrases[0]} {item['answer_number']}."
    if benchmark == "global_mgsm":
        return f"1 + 1 = 2.\n{item['answer_prefix']}: {item['answer']}"
    if benchmark in POLYMATH:
        return f"1 + 1 = 2, so $\\boxed{{{item['answer'].strip('$')}}}$."
    if benchmark == "flores":
        return f" {item['target']}"
    if benchmark == "belebele":
        return "ABCD"[int(item["correct_answer_num"]) - 1]
    return str(item["answer"])


def perturbed(task, item):
    """Return an answer that looks like the right one and is wrong."""
    benchmark = BENCHMARKS[task]
    if benchmark in ("mgsm", "mgsm_rev2", "msvamp"):
        return gold(task, {"answer_number": int(item["answer_number"]) + 1})
    if benchmark == "global_mgsm":
        return gold(task, {**item, "answer": int(item["answer"]) + 1})
    if benchmark in POLYMATH:  # the first digit is another one
        wrong = re.sub(r"\d", lambda digit: str((int(digit[0]) + 1) % 10), item["answer"], count=1)
        return gold(task, {**item, "answer": wrong})
    if benchmark == "flores":
        # Nothing shared with any reference: neither a word nor a letter of any language here.
        return " " + " ".join("ж" * len(word) for word in item["target"].split())
    return chr(ord("A") + (ord(gold(task, item)) - ord("A") + 1) % 4)


def missing_data(code):
    """Return the files of hand-written data that a language of the table lacks."""
    files = [
        DATA / benchmark / f"{code}_{split}.jsonl"
        for benchmark in dict.fromkeys(t.benchmark for t in list_tasks() if t.language == code)
        for split in SPLITS.get(benchmark, ())
    ]
    return [str(path.relative_to(DATA.parents[2])) for path in files if not path.is_file()]


WITH_DATA = tuple(code for code in TABLE if not missing_data(code))
"""The languages that can be asked; `tests.tasks.test_languages` says what others lack."""

MGSM_LANGUAGES = tuple(code for code in WITH_DATA if TABLE[code].mgsm)


def task_names(*benchmarks):
    """Return the tasks of the benchmarks, in every language of the paper."""
    suffixes = {
        "flores": tuple(
            pair for code in LANGUAGES if code != "en" for pair in (f"en-{code}", f"{code}-en")
        )
    }
    return tuple(
        f"layerswap_{benchmark}_{suffix}"
        for benchmark in benchmarks
        for suffix in suffixes.get(benchmark, LANGUAGES)
    )


def read_jsonl(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def write_jsonl(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")
    return path
