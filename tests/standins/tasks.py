"""Tasks of words, for lm-eval to ask random models."""

import json

import yaml

from tests.standins.word_models import WORDS

MEAN = {"aggregation": "mean", "higher_is_better": True}


def write_rows(folder, rows):
    """Write the items of a task below a new folder and return the file."""
    folder.mkdir(parents=True)
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return data


def write_task(folder, name, data, **changes):
    """Write an exact-match task; None takes a field away."""
    task = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{prompt}}",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["<eos>"], "do_sample": False, "max_gen_toks": 4},
        "metric_list": [{"metric": "exact_match", **MEAN}],
        "metadata": {"version": 1.0},
        **changes,
    }
    kept = {key: value for key, value in task.items() if value is not None}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(kept, sort_keys=False))


def write_tasks(folder, items=24):
    """Write a generation, a translation and a multiple-choice task."""
    rows = [
        {
            "prompt": " ".join(WORDS[(index * step) % len(WORDS)] for step in range(1, 7)),
            "answer": WORDS[index % len(WORDS)],
            "sentence": " ".join(WORDS[(index + step) % len(WORDS)] for step in range(6)),
            "choices": [WORDS[index % len(WORDS)], WORDS[(index + 7) % len(WORDS)]],
        }
        for index in range(1, items + 1)
    ]
    data = write_rows(folder, rows)
    common = {
        "dataset_kwargs": {"data_files": {"train": str(data), "test": str(data)}},
        "fewshot_split": "train",
        "fewshot_config": {"sampler": "first_n"},
        "generation_kwargs": {"until": ["<eos>"], "do_sample": False, "max_gen_toks": 8},
        "metadata": {"version": 3.0},
    }
    first = {"function": "take_first"}
    word = {"function": "regex", "regex_pattern": r"(w\d+)"}
    stripped = {"function": "remove_whitespace"}
    bleu = {"metric": "bleu", "aggregation": "bleu", "higher_is_better": True}
    tasks = {
        "words_generate": {
            "num_fewshot": 2,
            "filter_list": [{"name": "first-word", "filter": [word, first]}],
        },
        "words_translate": {
            "doc_to_target": "{{sentence}}",
            "filter_list": [{"name": "stripped", "filter": [stripped, first]}],
            "metric_list": [bleu],
        },
        "words_choose": {
            "output_type": "multiple_choice",
            "doc_to_choice": "{{choices}}",
            "doc_to_target": 0,
            "generation_kwargs": None,
            "metric_list": [{"metric": "acc_norm", **MEAN}, {"metric": "acc", **MEAN}],
        },
    }
    for name, task in tasks.items():
        write_task(folder, name, data, **{**common, **task})
    return folder


_DRAWING = """
import random

from datasets import Dataset
from lm_eval.tasks.ruler.common_utils import get_tokenizer, resolve_tokenizer_name


def load(**metadata):
    tokenizer = get_tokenizer(resolve_tokenizer_name(metadata))
    words = random.choices(sorted(tokenizer.get_vocab()), k=metadata.get("count", 2))
    return {"test": Dataset.from_list([{"prompt": word, "answer": "w1"} for word in words])}
"""


def write_coded_task(folder, name, code):
    """Write a task whose data the function `load` makes, in a module of its name with `code`."""
    write_task(folder, name, folder / "none.jsonl", dataset_path="", dataset_kwargs=None)
    with (folder / f"{name}.yaml").open("a") as file:
        file.write(f"custom_dataset: !function {name}.load\n")
    (folder / f"{name}.py").write_text(code)
    return folder


def write_drawing_task(folder, name="drawn"):
    """Write a task that reads a tokenizer as lm-eval's RULER does, and draws its items."""
    return write_coded_task(folder, name, _DRAWING)
