"""An engine that loads weights wrongly is noticed: at its start, and when the base comes back."""

from __future__ import annotations

from typing import Any

import pytest

from ablations.engines import vllm_engine
from ablations.engines.in_place import HfEngine, SwapFailed
from ablations.engines.live import LiveEvaluator, open_live
from ablations.engines.probe import Baseline, ProbeAnswers
from tests.standins.merging import merge_of, merge_of_folder
from tests.standins.worlds import OPTIONS, World, make_world

WRONG = "model.layers.1.self_attn.o_proj.weight"
"""A square tensor of a module that nothing is fused into."""

CALM = ProbeAnswers((-2.0, -3.0), "w1 w2")
RESTLESS = ProbeAnswers((-2.03, -3.0), "w1 w3")


@pytest.mark.parametrize(
    ("second", "now", "mismatch"),
    [
        (CALM, CALM, None),
        (CALM, ((-2.009, -2.991), "w1 w2"), None),
        (CALM, ((-2.02, -3.0), "w1 w2"), "-2.0000 nats a token became -2.0200"),
        (CALM, ((float("nan"), -3.0), "w1 w2"), "became nan"),
        (CALM, ((-2.0, -3.0), "w9"), "answer 'w1 w2' became 'w9'"),
        # An engine that was untouched, and answered differently.
        (RESTLESS, ((-2.06, -3.0), "w4"), None),
        (RESTLESS, ((-2.08, -3.0), "w4"), "became -2.0800"),
        (RESTLESS, ((-2.0, -3.02), "w4"), "became -3.0200"),
    ],
)
def test_what_counts_as_equal(second: Any, now: Any, mismatch: str | None) -> None:
    found = Baseline(CALM, second).mismatch(ProbeAnswers(*now))
    assert found is None if mismatch is None else mismatch in str(found)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"), "llama")


@pytest.mark.slow
def test_a_load_that_gives_garbage_is_noticed_at_the_start(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = HfEngine.load

    def transposing(engine: HfEngine, mixes: Any) -> None:
        load(engine, mixes)
        engine._tensors[WRONG].data.copy_(engine._tensors[WRONG].data.T.clone())

    monkeypatch.setattr(HfEngine, "load", transposing)
    live = open_live(world.base, "hf", OPTIONS)
    for _ in range(2):
        with pytest.raises(SwapFailed, match=r"every tensor of the base loaded over itself.* nats"):
            live.swap(merge_of(world.cells["swap"]))
    assert live._lm is None
    monkeypatch.undo()
    with pytest.raises(SwapFailed) as raised:  # no try of this evaluator any more
        live.start()
    assert raised.value.lasting
    again = open_live(world.base, "hf", OPTIONS)
    again.start()
    again.close()


@pytest.mark.slow
def test_a_load_that_does_nothing_is_noticed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HfEngine, "load", lambda engine, mixes: None)
    with pytest.raises(SwapFailed, match=r"model\.norm\.weight was multiplied .*changes nothing"):
        open_live(world.base, "hf", OPTIONS).start()


@pytest.mark.slow
def test_a_base_that_does_not_come_back_is_noticed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = open_live(world.base, "hf", OPTIONS)
    live.check()  # nothing runs, and nothing is wrong
    assert live._lm is None
    live.swap(merge_of(world.cells["swap"]))
    live.check()
    live.swap(merge_of(world.cells["swap"]))
    load = HfEngine.load

    def forgetful(engine: HfEngine, mixes: Any) -> None:
        load(engine, {name: mix for name, mix in mixes.items() if name != WRONG})

    monkeypatch.setattr(HfEngine, "load", forgetful)
    with pytest.raises(SwapFailed, match="with the base's weights back in place") as raised:
        live.check()
    assert raised.value.lasting
    monkeypatch.undo()
    with pytest.raises(SwapFailed, match="with the base's weights back in place"):
        live.swap(merge_of_folder(world.base))


@pytest.fixture
def vllm_live(world: World) -> Any:
    live = open_live(world.base, "vllm", OPTIONS)
    yield live
    live.close()


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not vllm_engine.is_installed(), reason="vLLM is not installed")
def test_vllm_is_checked_alike(
    world: World, vllm_live: LiveEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = vllm_engine._tensors
    wrong = False

    def transposing(mixes: Any) -> Any:
        for name, tensor in read(mixes):
            yield name, tensor.T.contiguous() if wrong and name == WRONG else tensor

    monkeypatch.setattr(vllm_engine, "_tensors", transposing)
    vllm_live.swap(merge_of(world.cells["swap"]))
    vllm_live.check()
    vllm_live.swap(merge_of(world.cells["swap"]))
    wrong = True
    with pytest.raises(SwapFailed, match="base's weights back in place, vllm says other things"):
        vllm_live.check()
    other = open_live(world.base, "vllm", OPTIONS)
    with pytest.raises(SwapFailed, match="tensor of the base loaded over itself, vllm says other"):
        other.start()
