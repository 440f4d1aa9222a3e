"""A model and data for the suite."""

import json

import pytest

from ablations.engines.options import EngineOptions
from ablations.evaluate import evaluate_model
from ablations.runner.run import RunOptions
from ablations.runs.run import load_run
from tests.standins.scripted import DATA
from tests.standins.word_models import write_model

OPTIONS = EngineOptions(kv_cache_gib=1, gpu_memory_utilization=0.3)


@pytest.fixture(scope="module")
def expert(tmp_path_factory):
    """A random model with 128 tokens of context, to which most words are unknown."""
    return write_model(tmp_path_factory.mktemp("suite") / "task")


def ask(model, out, data=DATA, languages=("sw", "te"), backend="hf", isolation=None, **block):
    block = {"benchmarks": ("mgsm", "mbpp"), "options": OPTIONS, "data_dir": str(data)} | block
    options = RunOptions(out=out, backend=backend, isolation=isolation, settings=block)
    return evaluate_model(str(model), options, languages)


def samples_of(result, task):
    """Return the items of a task as they are on disk, with the texts of the stored answers."""
    (cell,) = load_run(result.out).cells
    record = next(record for record in cell.task_records if record.task == task)
    answers, prompts = (
        {row["item"]: row for row in map(json.loads, (result.out / text).open(encoding="utf-8"))}
        for text in record.provenance["texts"]
    )
    found = []
    for sample in record.samples():
        said = answers[sample.doc_id]["response"] if sample.doc_id in answers else ""
        texts = {"prompts": tuple(prompts[sample.doc_id]["prompts"]), "responses": (said,)}
        found.append(sample.model_copy(update=texts))
    return found
