"""An engine that loads weights wrongly is noticed: at its start, and when the base comes back."""

import pytest

from ablations.engines import vllm_engine
from ablations.engines.hf_model import HfModel
from ablations.engines.live import Baseline, LiveEvaluator, ProbeAnswers, SwapFailed
from tests.engines.backends import VLLM
from tests.standins.merging import merge_of, merge_of_folder
from tests.standins.worlds import OPTIONS, make_world

WRONG = "model.layers.1.self_attn.o_proj.weight"
"""A square tensor of a module that nothing is fused into."""

CALM = ProbeAnswers(-2.0, "w1 w2")
RESTLESS = ProbeAnswers(-2.03, "w1 w3")
BACK = "with the base's weights back in place"
OVER_ITSELF = "with every tensor of the base loaded over itself"


@pytest.mark.parametrize(
    ("second", "now", "mismatch"),
    [
        (CALM, CALM, None),
        (CALM, (-2.009, "w1 w2"), None),
        (CALM, (-2.02, "w1 w2"), "-2.0000 nats a token became -2.0200"),
        (CALM, (float("nan"), "w1 w2"), "became nan"),
        (CALM, (-2.0, "w9"), "answer 'w1 w2' became 'w9'"),
        # An engine that was untouched, and answered differently.
        (RESTLESS, (-2.06, "w4"), None),
        (RESTLESS, (-2.08, "w4"), "became -2.0800"),
    ],
)
def test_what_counts_as_equal(second, now, mismatch):
    found = Baseline(CALM, second).mismatch(ProbeAnswers(*now))
    assert found is None if mismatch is None else mismatch in found


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"), "llama")


@pytest.mark.slow
def test_a_load_that_gives_garbage_is_noticed_at_the_start(world, monkeypatch):
    load = HfModel.load

    def transposing(engine, mixes):
        load(engine, mixes)
        weight = engine.model.get_parameter(WRONG).data
        weight.copy_(weight.T.clone())

    monkeypatch.setattr(HfModel, "load", transposing)
    live = LiveEvaluator(world.base, "hf", OPTIONS)
    with pytest.raises(SwapFailed, match=f"{OVER_ITSELF}.* nats"):
        live.swap(merge_of(world.cells["swap"]))
    assert live._lm is None
    monkeypatch.undo()
    with pytest.raises(SwapFailed, match=OVER_ITSELF):  # no try of this evaluator any more
        live.start()


@pytest.mark.slow
def test_a_load_that_does_nothing_is_noticed(world, monkeypatch):
    monkeypatch.setattr(HfModel, "load", lambda engine, mixes: None)
    with pytest.raises(SwapFailed, match=r"model\.norm\.weight was multiplied .*changes nothing"):
        LiveEvaluator(world.base, "hf", OPTIONS).start()


@pytest.mark.slow
def test_a_base_that_does_not_come_back_is_noticed(world, monkeypatch):
    live = LiveEvaluator(world.base, "hf", OPTIONS)
    live.check()  # nothing runs, and nothing is wrong
    assert live._lm is None
    for _ in range(2):
        live.swap(merge_of(world.cells["swap"]))
        live.check()
    live.swap(merge_of(world.cells["swap"]))
    load = HfModel.load

    def forgetful(engine, mixes):
        load(engine, {name: mix for name, mix in mixes.items() if name != WRONG})

    monkeypatch.setattr(HfModel, "load", forgetful)
    with pytest.raises(SwapFailed, match=BACK):
        live.check()
    monkeypatch.undo()
    with pytest.raises(SwapFailed, match=BACK):
        live.swap(merge_of_folder(world.base))


@pytest.mark.slow
@pytest.mark.parametrize("backend", [pytest.param("vllm", marks=VLLM)])
def test_vllm_is_checked_alike(world, backend, monkeypatch):
    read, wrong = vllm_engine._tensors, []

    def transposing(mixes):
        for name, tensor in read(mixes):
            yield name, tensor.T.contiguous() if name in wrong else tensor

    monkeypatch.setattr(vllm_engine, "_tensors", transposing)
    live = LiveEvaluator(world.base, backend, OPTIONS)
    live.swap(merge_of(world.cells["swap"]))
    live.check()
    live.swap(merge_of(world.cells["swap"]))
    wrong.append(WRONG)
    with pytest.raises(SwapFailed, match=f"{BACK}, vllm says other things"):
        live.check()
    with pytest.raises(SwapFailed, match=f"{OVER_ITSELF}, vllm says other things"):
        LiveEvaluator(world.base, backend, OPTIONS).start()
