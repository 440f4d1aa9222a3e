"""What a study's engine does cell by cell: the starts, loads and merges that the plan says."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import ablations.machine.mergekit_program
from ablations.engines import in_place as live_engines
from ablations.engines import lm_eval_backend
from ablations.runner.engines import EngineSetup
from ablations.runner.loop import items_of
from ablations.runner.work import Done
from ablations.study.cost import cost_of
from ablations.study.files import read_study
from ablations.study.planning import StudyPlan, plan_study
from tests.standins.studies import study_document, write_expert, write_yaml

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*torch_dtype.*")]

Evaluated = tuple[Counter[str], dict[str, Done], Counter[str]]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Path:
    """Return an experts file: the base and a task expert in float16, the language in bfloat16."""
    folder = tmp_path_factory.mktemp("mixed")
    dtypes = {"base": torch.float16, "math": torch.float16, "swahili": torch.bfloat16}
    for seed, (name, dtype) in enumerate(dtypes.items()):
        write_expert(folder / name, seed, dtype=dtype)
    setting = {"experts": {name: str(folder / name) for name in dtypes}}
    return write_yaml(folder / "experts.yml", setting | {"include_path": str(models / "tasks")})


@pytest.fixture
def evaluate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Evaluated]:
    """Return a function that evaluates every cell in this process and counts what that takes."""
    counts: Counter[str] = Counter()

    def counting(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            counts[name] += 1
            return original(*arguments, **options)

        return call

    start = counting("starts", lm_eval_backend.start_model)
    monkeypatch.setattr(lm_eval_backend, "start_model", start)
    monkeypatch.setattr(live_engines, "start_model", start)
    monkeypatch.setattr(
        ablations.machine.mergekit_program,
        "merge",
        counting("merges", ablations.machine.mergekit_program.merge),
    )

    def run(plan: StudyPlan, *, materialize: bool = False) -> Evaluated:
        counts.clear()
        engine = EngineSetup.of(plan, tmp_path / "work", materialize=materialize)()
        firsts = [group[0] for group in plan.groups()]
        done = {cell.label: engine.evaluate(next(items_of(cell))) for cell in firsts}
        engine.close()
        counts["loads"] = sum("loaded_tensors" in each.provenance for each in done.values())
        cost = cost_of(plan, firsts, materialize=materialize, jobs=1)
        planned = Counter(starts=cost.engine_starts, loads=cost.loads, merges=cost.checkpoints)
        return +planned, done, +counts

    return run


def said(done: dict[str, Done]) -> dict[str, Any]:
    return {label: each.evaluation.samples for label, each in done.items()}


KINDS = ["base", "task_expert", "language_expert", "soup", "ties"]


def test_models_of_all_dtypes_are_run_in_that_of_the_study(
    tmp_path: Path, mixed: Path, evaluate: Callable[..., Evaluated]
) -> None:
    document = study_document(baseline=KINDS, vary={"bottom_layers": [1]})
    path = write_yaml(tmp_path / "study.yml", document)
    plan = plan_study(read_study(path), mixed, backend="hf")
    cost, live, counts = evaluate(plan)
    assert counts == cost == Counter(starts=1, loads=6, merges=1)
    assert not any("fallback" in each.provenance for each in live.values())
    cost, cold, counts = evaluate(plan, materialize=True)
    assert counts == cost == Counter(starts=6, merges=3)
    assert said(live) == said(cold)
    assert len({str(each) for each in said(live).values()}) > 4  # the cells do differ


def test_a_cell_that_no_live_engine_takes_starts_one_and_is_merged_once(
    tmp_path: Path, other_generation: Path, evaluate: Callable[..., Evaluated]
) -> None:
    """Config and tokenizer of `linear` and `slerp` come from an expert of other settings."""
    recipe = study_document()["recipe"] | {"base_model": "task", "merge_method": "slerp"}
    recipe["parameters"] = {"t": 0.5}
    document = study_document(baseline=["base", "soup"], recipe=recipe, vary={"t": [0.3]})
    path = write_yaml(tmp_path / "study.yml", document)
    plan = plan_study(read_study(path), other_generation, backend="hf")
    _, done, counts = evaluate(plan)
    assert counts == Counter(starts=3, loads=1, merges=2)
    unlike = [each.provenance for each in done.values() if "fallback" in each.provenance]
    assert len(unlike) == 2
    assert all("json (bos_token_id)" in provenance["fallback"] for provenance in unlike)
