"""A model spread over several workers of vLLM's CPU build: each reads its own part of a tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ablations.engines import vllm_engine
from ablations.engines.live import open_live
from ablations.scoring.records import Evaluation
from tests.standins.merging import merge_of
from tests.standins.worlds import OPTIONS, make_world

pytestmark = [
    pytest.mark.slow,
    pytest.mark.vllm,
    pytest.mark.filterwarnings("ignore"),  # vLLM's imports warn a dozen times
    pytest.mark.skipif(not vllm_engine.is_cpu_build(), reason="vLLM's CPU build is not installed"),
]


def _answers(found: Evaluation) -> tuple[list[Any], list[float]]:
    chosen = [response for each in found.samples_of("words_choose") for response in each.responses]
    said = [each.responses for each in found.samples_of("words_prefix")]
    return said, [float(response[0]) for response in chosen]


def test_two_workers_swap_and_say_what_transformers_says(tmp_path: Path) -> None:
    """The vocabulary is so small that the second worker's part of it is padding alone."""
    world = make_world(tmp_path, "llama")
    request = world.request.model_copy(update={"limit": 4})
    cells = ("swap", "only_k", "base")

    def said(backend: Any, workers: int) -> list[Any]:
        options = OPTIONS.model_copy(update={"tensor_parallel_size": workers})
        live = open_live(world.base, backend, options)
        try:
            found = [live.evaluate(merge_of(world.cells[name]), request) for name in cells]
            live.check()
        finally:
            live.close()
        return [_answers(each) for each in found]

    wanted, given = said("hf", 1), said("vllm", 2)
    assert len({str(each) for each in wanted}) == len(cells)
    for (answers, likelihoods), (same, close) in zip(wanted, given, strict=True):
        assert same == answers
        assert close == pytest.approx(likelihoods, abs=1e-4)
