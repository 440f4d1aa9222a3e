"""A live engine says of every cell what a cold engine says of mergekit's checkpoint of it.

The cold engines go first: two of vLLM in one process would take each other's surroundings down.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from ablations.engines.live import LiveEvaluator, open_live
from ablations.scoring.records import Evaluation, Sample
from tests.engines.backends import BACKENDS
from tests.standins.merging import merge_of
from tests.standins.worlds import FAMILIES, OPTIONS, World, make_world

ORDER = ("swap", "only_k", "base", "attention", "reverted", "soup", "swap", "reverted", "base")
"""Every kind of change, forth and back."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*torch_dtype.*"),
]


@dataclass(frozen=True)
class Study:
    """All cells of a world, evaluated twice."""

    world: World
    backend: str
    cold: dict[str, Evaluation]
    live: list[tuple[str, Evaluation]]
    evaluator: LiveEvaluator


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=FAMILIES)
def study(
    request: pytest.FixtureRequest, backend: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Study]:
    world = make_world(tmp_path_factory.mktemp(f"{backend}-{request.param}"), request.param)
    cold = {name: world.cold(backend, name) for name in world.cells}
    evaluator = open_live(world.base, backend, OPTIONS)  # type: ignore[arg-type]
    live = []
    for name in ORDER:
        stream = merge_of(world.cells[name])
        live.append((name, evaluator.evaluate(stream, world.request)))
    yield Study(world, backend, cold, live, evaluator)
    evaluator.close()


def generations(evaluation: Evaluation) -> list[Any]:
    return [sample.responses for sample in evaluation.samples_of("words_prefix")]


def likelihoods(evaluation: Evaluation) -> list[float]:
    return [
        float(response[0])
        for sample in evaluation.samples_of("words_choose")
        for response in sample.responses
        if not isinstance(response, str)
    ]


def test_the_cells_differ_in_everything_compared(study: Study) -> None:
    said = [str(generations(each)) for each in study.cold.values()]
    assert len(set(said)) == len(study.world.cells)
    assert len({str(likelihoods(each)) for each in study.cold.values()}) == len(study.world.cells)
    assert all(len(set(map(str, generations(each)))) > 3 for each in study.cold.values())


def test_answers_scores_and_records_are_those_of_a_cold_engine(study: Study) -> None:
    def identity(sample: Sample) -> tuple[Any, ...]:
        return (sample.task, sample.doc_id, sample.doc_hash, sample.prompt_hash, sample.prompts)

    for name, live in study.live:
        cold = study.cold[name]
        assert generations(live) == generations(cold), name
        assert likelihoods(live) == pytest.approx(likelihoods(cold), abs=1e-4), name
        assert (len(generations(live)), len(likelihoods(live))) == (24, 48)
        assert live.scores == cold.scores, name
        assert list(map(identity, live.samples)) == list(map(identity, cold.samples))
        assert (live.backend, live.versions) == (study.backend, cold.versions)


def test_without_the_reset_the_prefix_cache_would_speak_for_the_model_before(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    if study.backend == "hf":
        pytest.skip("transformers keeps no prefix cache")
    first, second = (merge_of(study.world.cells[name]) for name in ("base", "swap"))
    study.evaluator.evaluate(first, study.world.request)
    monkeypatch.setattr(study.evaluator._engine, "reset_cache", lambda: None)
    stale = study.evaluator.evaluate(second, study.world.request)
    monkeypatch.undo()
    assert generations(stale) != generations(study.cold["swap"])
    study.evaluator.swap(first)
    again = study.evaluator.evaluate(second, study.world.request)
    assert generations(again) == generations(study.cold["swap"])
