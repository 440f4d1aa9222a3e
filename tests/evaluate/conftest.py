"""A model and data for the suite; one evaluation that several tests look at."""

import shutil
from pathlib import Path

import pytest

from ablations.engines.options import EngineOptions
from ablations.evaluate.run import SuiteRequest, SuiteResult, evaluate_model
from ablations.runner.records import load_run
from ablations.scoring.records import Sample
from tests.standins.scripted import DATA
from tests.standins.talkers import write_model

OPTIONS = EngineOptions(kv_cache_gib=1, gpu_memory_utilization=0.3)


@pytest.fixture(scope="module")
def expert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with 128 tokens of context, to which most words are unknown."""
    return write_model(tmp_path_factory.mktemp("suite") / "task")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shutil.copytree(DATA, tmp_path_factory.mktemp("suite") / "data")


def ask(expert: Path, data: Path | None, out: Path | None, **changes: object) -> SuiteResult:
    request = {"languages": ("sw", "te"), "benchmarks": ("mgsm", "mbpp"), "backend": "hf"}
    fields = {**request, "options": OPTIONS, "data_dir": data, **changes}
    return evaluate_model(str(expert), SuiteRequest.model_validate(fields), out)


@pytest.fixture(scope="module")
def first(expert: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> SuiteResult:
    return ask(expert, data, tmp_path_factory.mktemp("suite") / "out")


def samples_of(result: SuiteResult, task: str) -> list[Sample]:
    """Return the records of a task, as they are on disk."""
    (cell,) = load_run(result.out).cells
    return [sample for sample in cell.samples() if sample.task == task]
