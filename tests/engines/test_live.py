"""A live engine says of every cell what a cold engine says of mergekit's checkpoint of it.

The cold engines go first: two of vLLM in one process would take each other's surroundings down.
"""

import shutil
from itertools import pairwise, permutations
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from ablations.engines import live as live_module
from ablations.engines.live import LiveEvaluator, SwapFailed, ask_probe
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


def whole_and_partial(study, monkeypatch):
    """Return what the engine says of every cell loaded whole, and the names of each later load."""
    evaluator, answers, loads = study.evaluator, {}, []
    evaluator.swap(merge_of(study.world.cells["base"]))
    load = type(evaluator._lm).load

    def noted(engine, mixes, names):
        loads.append(list(names))
        load(engine, mixes, names)

    monkeypatch.setattr(type(evaluator._lm), "load", noted)
    for name, cell in study.world.cells.items():
        evaluator._loaded = None
        evaluator.swap(merge_of(cell))
        assert set(loads[-1]) == set(merge_of(cell).tensors)
        answers[name] = ask_probe(evaluator._lm)
    assert len({answer.log_likelihood for answer in answers.values()}) == len(answers)
    loads.clear()
    return answers, loads


def test_what_differs_is_loaded_and_gives_what_a_whole_load_gives_in_every_order(
    study, monkeypatch
):
    whole, loads = whole_and_partial(study, monkeypatch)
    cells = {name: merge_of(cell) for name, cell in study.world.cells.items()}
    names = [*cells]
    walk = [n for i, one in enumerate(names) for other in names[i + 1 :] for n in (one, other, one)]
    pairs = set(pairwise(walk))
    assert pairs >= set(permutations(names, 2))
    for name in walk:
        study.evaluator.swap(cells[name])
        assert ask_probe(study.evaluator._lm) == whole[name], name
        if study.backend == "hf":
            held = study.evaluator._lm.model.state_dict()
            for tensor, mix in cells[name].tensors.items():
                assert torch.equal(held[tensor], MixReader(mix).read()), (name, tensor)
    partial = [load for load in loads if len(load) < len(cells["base"].tensors)]
    assert len(partial) > 10  # the experts have little in common
    only_k = [name for name in cells["base"].tensors if ".layers.1." in name]
    assert only_k in loads  # from base to only_k, and back


def test_after_a_load_that_failed_everything_is_loaded(study, monkeypatch):
    whole, loads = whole_and_partial(study, monkeypatch)
    base, swap = (merge_of(study.world.cells[name]) for name in ("base", "swap"))
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
    loads.clear()
    study.evaluator.swap(swap)
    assert len(loads[-2]) == len(base.tensors)  # the engine is another, and proved itself
    assert ask_probe(study.evaluator._lm) == whole["swap"]
    study.evaluator.swap(base)
    assert ask_probe(study.evaluator._lm) == whole["base"]


def test_half_of_a_fused_module_is_never_loaded_alone(study, monkeypatch):
    if study.backend == "hf":
        pytest.skip("transformers fuses nothing here")
    whole, _ = whole_and_partial(study, monkeypatch)
    base, attention = (merge_of(study.world.cells[name]) for name in ("base", "attention"))
    study.evaluator.swap(base)
    monkeypatch.setattr(live_module, "_unit", lambda name: name)  # as if q, k and v were apart
    only_k = merge_of(study.world.cells["only_k"])
    study.evaluator.swap(only_k)
    assert ask_probe(study.evaluator._lm) == whole["only_k"]
    study.evaluator.swap(attention)
    assert ask_probe(study.evaluator._lm) == whole["attention"]


def test_a_model_that_overflows_leaves_nothing_in_the_engine(study, tmp_path):
    evaluator, request = study.evaluator, study.world.request
    folder = shutil.copytree(study.world.base, tmp_path / "overflowing")
    tensors = load_file(folder / "model.safetensors")
    for name in ("self_attn.v_proj", "mlp.up_proj"):
        tensors[f"model.layers.0.{name}.weight"] *= 3e37
    save_file(tensors, folder / "model.safetensors")
    for _ in range(2):
        with pytest.raises(LayerSwapError, match="log-likelihoods are not finite"):
            evaluator.evaluate(merge_of_folder(folder), request)
        for name in ("swap", "base"):
            live = evaluator.evaluate(merge_of(study.world.cells[name]), request)
            assert generations(live) == generations(study.cold[name])
            assert likelihoods(live) == pytest.approx(likelihoods(study.cold[name]), abs=1e-4)
