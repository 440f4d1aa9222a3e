"""What earlier records say of the time a run will take."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ablations.engines.work_size import TaskSize
from ablations.runner.loop import run_cells
from ablations.runner.rates import earlier_rates
from ablations.study.cost import Rates, Running, cost_lines
from ablations.study.files import read_study
from ablations.study.planning import StudyPlan, plan_study
from tests.runner.fakes import ITEMS, TASK, FakeEvaluator, InProcess, make_cells
from tests.standins.studies import study_document, write_yaml

WEIGHTS = 1000


def asked_for(**changes: Any) -> Any:
    """Return what is read of a plan."""
    known = {"backend": "hf", "num_weights": WEIGHTS}
    return SimpleNamespace(**{**known, "options": SimpleNamespace(dtype="float32"), **changes})


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    provenance = {"num_weights": WEIGHTS, "dtype": "float32"}
    executor = InProcess(FakeEvaluator())
    run_cells(tmp_path / "a", make_cells(2), executor, provenance=provenance, progress=False)
    for path in tmp_path.glob("a/records/*/record.json"):
        record = json.loads(path.read_text())
        record["timing_s"] |= {"evaluate": 4.0, "load": 1.0, "start": 2.0}
        path.write_text(json.dumps(record))
    return tmp_path


def test_the_rate_is_of_records_of_the_same_engine_and_size(runs: Path) -> None:
    assert earlier_rates(runs, asked_for()) == Rates({TASK: 4.0 / ITEMS}, 3.0, 2)
    assert earlier_rates(runs, asked_for(num_weights=WEIGHTS + 50)) is not None
    for other in ({"num_weights": 2000}, {"backend": "vllm"}):
        assert earlier_rates(runs, asked_for(**other)) is None
    other_dtype = SimpleNamespace(dtype="bfloat16")
    assert earlier_rates(runs, asked_for(options=other_dtype)) is None
    assert earlier_rates(runs / "nowhere", asked_for()) is None


def test_a_damaged_record_says_nothing(runs: Path) -> None:
    path = next(runs.glob("a/records/*/record.json"))
    path.write_text("{")
    found = earlier_rates(runs, asked_for())
    assert found is not None
    assert found.records == 1


def cost(plan: StudyPlan, sizes: dict[str, TaskSize | str], rates: Rates | None) -> str:
    todo, left = list(plan.cells[:2]), {"k1": "words", "k2": "words"}
    return "\n".join(cost_lines(plan, todo, left, 2, Running(False, 1), sizes, rates))


def test_the_cost_has_items_tokens_memory_and_time(tmp_path: Path, experts: Path) -> None:
    path = write_yaml(tmp_path / "study.yml", study_document())
    plan = plan_study(read_study(path), experts, backend="hf")
    sizes: dict[str, TaskSize | str] = {"words": TaskSize(600, 60_000, 6000, 110)}
    text = cost(plan, sizes, Rates({"words": 2.0}, 30.0, 7))
    assert "items: 1,200; tokens: about 120,000 in prompts and at most 12,000 in answers" in text
    weights = plan.num_weights * 4
    assert f"weights {weights / 1000:.1f} kB, and " in text
    assert "of cache for 8 sequences of 110 tokens" in text
    assert "time: about 41 minutes, from 7 records" in text  # 2 * 600 * 2 s + 2 * 30 s
    for rates in (None, Rates({"other": 1.0}, 1.0, 3)):
        assert "time: not known yet" in cost(plan, sizes, rates)
    assert "words: not counted: its data is away" in cost(plan, {"words": "its data is away"}, None)
