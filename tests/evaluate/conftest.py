"""A model and data for the suite; one evaluation that several tests look at."""

import json
import shutil

import pytest

from ablations.engines.options import EngineOptions
from ablations.evaluate.run import evaluate_model
from ablations.runner.records import load_run
from ablations.study.schema import Evaluate
from tests.standins.scripted import DATA
from tests.standins.talkers import write_model

OPTIONS = EngineOptions(kv_cache_gib=1, gpu_memory_utilization=0.3)


@pytest.fixture(scope="module")
def expert(tmp_path_factory):
    """A random model with 128 tokens of context, to which most words are unknown."""
    return write_model(tmp_path_factory.mktemp("suite") / "task")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return shutil.copytree(DATA, tmp_path_factory.mktemp("suite") / "data")


def ask(expert, data, out, **changes):
    how = {"languages": ("sw", "te"), "backend": "hf", "isolation": None}
    how |= {name: changes.pop(name) for name in how if name in changes}
    fields = {
        "benchmarks": ("mgsm", "mbpp"),
        "options": OPTIONS,
        "data_dir": data and str(data),
        **changes,
    }
    return evaluate_model(str(expert), Evaluate.model_validate(fields), out=out, **how)


@pytest.fixture(scope="module")
def first(expert, data, tmp_path_factory):
    return ask(expert, data, tmp_path_factory.mktemp("suite") / "out")


def samples_of(result, task):
    """Return the items of a task as they are on disk, with the texts of the stored answers."""
    (cell,) = load_run(result.out).cells
    record = next(record for record in cell.tasks if record.task == task)
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
