"""The same model on vLLM and on transformers: one set of answers. Needs vLLM (make test-vllm)."""

from pathlib import Path

import pytest

from ablations.engines import vllm_engine
from ablations.engines.backends import resolve_backend
from ablations.engines.options import EngineOptions
from ablations.scoring.records import EvaluationRequest
from layerswap_method.errors import LayerSwapError
from tests.standins.cold import evaluate_cold
from tests.standins.talkers import write_model

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # vLLM's imports warn a dozen times
    pytest.mark.skipif(not vllm_engine.is_installed(), reason="vLLM is not installed"),
]
TASKS = ("words_generate", "words_translate", "words_choose")
OPTIONS = EngineOptions(kv_cache_gib=1, gpu_memory_utilization=0.3)


def test_auto_takes_vllm_where_it_is_installed_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("INFO"):
        assert resolve_backend("auto") == "vllm"
    assert "backend: vLLM" in caplog.text


def test_nothing_of_one_model_shows_in_the_next_and_one_that_fails_spoils_none(
    model: Path, tasks: Path, tmp_path: Path
) -> None:
    request = EvaluationRequest(tasks=TASKS, include_path=tasks)
    first = evaluate_cold(model, request, "vllm", OPTIONS)
    assert first.scores == evaluate_cold(model, request, "hf", OPTIONS).scores
    other = write_model(tmp_path / "other", 1)
    assert evaluate_cold(other, request, "vllm", OPTIONS).samples != first.samples
    (other / "model.safetensors").unlink()
    with pytest.raises(LayerSwapError, match=r"vllm cannot load it: .*model weights"):
        evaluate_cold(other, request, "vllm", OPTIONS)
    again = evaluate_cold(model, request, "vllm", OPTIONS)
    assert again.samples == first.samples
