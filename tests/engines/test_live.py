"""A live engine says of every cell what a cold engine says of mergekit's checkpoint of it.

The cold engines go first: two of vLLM in one process would take each other's surroundings down.
"""

from types import SimpleNamespace

import pytest

from ablations.engines.live import LiveEvaluator
from tests.engines.backends import BACKENDS
from tests.engines.test_processes import likelihoods
from tests.engines.test_processes import texts as generations
from tests.standins.merging import merge_of
from tests.standins.worlds import FAMILIES, OPTIONS, make_world

ORDER = ("swap", "only_k", "base", "attention", "reverted", "soup", "swap", "reverted", "base")
"""Every kind of change, forth and back."""

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*torch_dtype.*")]


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request):
    return request.param


@pytest.fixture(scope="module", params=FAMILIES)
def study(request, backend, tmp_path_factory):
    """All cells of a world, evaluated twice."""
    world = make_world(tmp_path_factory.mktemp(f"{backend}-{request.param}"), request.param)
    cold = {name: world.cold(backend, name) for name in world.cells}
    evaluator = LiveEvaluator(world.base, backend, OPTIONS)
    live = [
        (name, evaluator.evaluate(merge_of(world.cells[name]), world.request)) for name in ORDER
    ]
    yield SimpleNamespace(world=world, backend=backend, cold=cold, live=live, evaluator=evaluator)
    evaluator.close()


def test_answers_scores_and_records_are_those_of_a_cold_engine(study):
    def identity(sample):
        return (sample.task, sample.doc_id, sample.doc_hash, sample.prompt_hash, sample.prompts)

    for found in (generations, likelihoods):
        assert len({str(found(each)) for each in study.cold.values()}) == len(study.world.cells)
    for name, live in study.live:
        cold = study.cold[name]
        assert generations(live) == generations(cold), name
        assert likelihoods(live) == pytest.approx(likelihoods(cold), abs=1e-4), name
        assert (len(generations(live)), len(likelihoods(live))) == (24, 48)
        assert live.scores == cold.scores, name
        assert list(map(identity, live.samples)) == list(map(identity, cold.samples))
        assert (live.backend, live.versions) == (study.backend, cold.versions)


def test_without_the_reset_the_prefix_cache_would_speak_for_the_model_before(study, monkeypatch):
    if study.backend == "hf":
        pytest.skip("transformers keeps no prefix cache")
    first, second = (merge_of(study.world.cells[name]) for name in ("base", "swap"))
    study.evaluator.evaluate(first, study.world.request)
    monkeypatch.setattr(study.evaluator._lm, "reset_cache", lambda: None)
    stale = study.evaluator.evaluate(second, study.world.request)
    monkeypatch.undo()
    assert generations(stale) != generations(study.cold["swap"])
    study.evaluator.swap(first)
    again = study.evaluator.evaluate(second, study.world.request)
    assert generations(again) == generations(study.cold["swap"])
