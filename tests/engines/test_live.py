"""A live engine says of every cell what a cold engine says of mergekit's checkpoint of it.

The cold engines go first: two of vLLM in one process would take each other's surroundings down.
"""

import shutil
from itertools import pairwise, permutations
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from ablations.engines.live import LiveEvaluator, SwapFailed, ask_probe
from ablations.machine.progress import listening
from layerswap_method.errors import LayerSwapError
from layerswap_method.mix_reader import MixReader
from tests.engines.backends import BACKENDS
from tests.engines.test_processes import likelihoods
from tests.engines.test_processes import texts as generations
from tests.standins.live_cells import FAMILIES, OPTIONS, make_world
from tests.standins.merging import merge_of, merge_of_folder

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
    live = [(name, evaluator.evaluate(merge_of(world.cells[name]), world.tasks)) for name in ORDER]
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
    study.evaluator.evaluate(first, study.world.tasks)
    monkeypatch.setattr(study.evaluator._engine, "reset_cache", lambda: None)
    stale = study.evaluator.evaluate(second, study.world.tasks)
    monkeypatch.undo()
    assert generations(stale) != generations(study.cold["swap"])
    study.evaluator.swap(first)
    again = study.evaluator.evaluate(second, study.world.tasks)
    assert generations(again) == generations(study.cold["swap"])


def test_a_model_answers_alike_whichever_was_there_before(study):
    cells = {name: merge_of(cell) for name, cell in study.world.cells.items()}
    names, answers = [*cells], {}
    walk = [n for i, one in enumerate(names) for other in names[i + 1 :] for n in (one, other, one)]
    assert set(pairwise(walk)) >= set(permutations(names, 2))
    for name in walk:
        study.evaluator.swap(cells[name])
        now = ask_probe(study.evaluator._engine)
        assert answers.setdefault(name, now) == now, name
        if study.backend == "hf":
            held = study.evaluator._engine.model.state_dict()
            for tensor, mix in cells[name].tensors.items():
                assert torch.equal(held[tensor], MixReader(mix).read()), (name, tensor)
    assert len({answer.log_likelihood for answer in answers.values()}) == len(answers)


def test_a_probe_counts_as_no_task(study):
    steps = []
    with listening(steps.append):
        ask_probe(study.evaluator._engine)
    assert {(step.activity, step.scope) for step in steps} >= {("the probe", None)}
    assert all(step.scope is None for step in steps)


def test_after_a_load_that_failed_another_engine_starts(study, monkeypatch):
    base, swap = (merge_of(study.world.cells[name]) for name in ("base", "swap"))
    expected = []
    for merge in (base, swap):
        study.evaluator.swap(merge)
        expected.append(ask_probe(study.evaluator._engine))
    study.evaluator.swap(base)
    fill = MixReader.fill

    def fail(reader, out, first=0, buffers=None):
        if "layers.1.mlp.up_proj" in reader._mix.terms[0].stored.name:
            raise OSError("the disk is gone")
        fill(reader, out, first, buffers)

    with monkeypatch.context() as patch:
        patch.setattr(MixReader, "fill", fail)
        with pytest.raises(SwapFailed, match="the disk is gone"):
            study.evaluator.swap(swap)
    for merge, answers in ((swap, expected[1]), (base, expected[0])):
        study.evaluator.swap(merge)
        assert ask_probe(study.evaluator._engine) == answers


def test_a_model_that_overflows_leaves_nothing_in_the_engine(study, tmp_path):
    evaluator, tasks = study.evaluator, study.world.tasks
    folder = shutil.copytree(study.world.base, tmp_path / "overflowing")
    tensors = load_file(folder / "model.safetensors")
    for name in ("self_attn.v_proj", "mlp.up_proj"):
        tensors[f"model.layers.0.{name}.weight"] *= 3e37
    save_file(tensors, folder / "model.safetensors")
    for _ in range(2):
        with pytest.raises(LayerSwapError, match="log-likelihoods are not finite"):
            evaluator.evaluate(merge_of_folder(folder), tasks)
        for name in ("swap", "base"):
            live = evaluator.evaluate(merge_of(study.world.cells[name]), tasks)
            assert generations(live) == generations(study.cold[name])
            assert likelihoods(live) == pytest.approx(likelihoods(study.cold[name]), abs=1e-4)
