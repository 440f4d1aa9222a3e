"""The same model on vLLM and on transformers: one set of answers. Needs vLLM (make test-vllm)."""

from pathlib import Path

import pytest

from ablations.engines import vllm_engine
from ablations.engines.backends import resolve_backend
from ablations.engines.options import EngineOptions
from ablations.machine.mergekit_program import merge
from ablations.scoring.records import Evaluation, EvaluationRequest
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


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A layer swap of two random models, by mergekit-yaml."""
    folder = tmp_path_factory.mktemp("merge")
    task, language = write_model(folder / "task", 0), write_model(folder / "language", 1)
    recipe = folder / "recipe.yml"
    recipe.write_text(
        f"""
merge_method: layer_swap
models:
  - model: {task}
    parameters: {{role: task}}
  - model: {language}
    parameters: {{role: language}}
base_model: {task}
parameters: {{bottom_layers: 1, top_layers: 0, bottom_transition: 0, top_transition: 0}}
dtype: float32
"""
    )
    merge(recipe, folder / "merged", fingerprint="test")
    return folder / "merged"


@pytest.fixture(scope="module")
def both(merged: Path, model: Path, tasks: Path) -> dict[str, list[Evaluation]]:
    """Each backend on: the merged model, another model, the merged model again."""
    request = EvaluationRequest(tasks=TASKS, include_path=tasks)
    found = {}
    for backend in ("hf", "vllm"):
        models = (merged, model, merged)
        found[backend] = [evaluate_cold(each, request, backend, OPTIONS) for each in models]
    return found


def test_both_were_asked_and_say_the_same(both: dict[str, list[Evaluation]]) -> None:
    for hf, vllm in zip(both["hf"], both["vllm"], strict=True):
        assert (hf.backend, vllm.backend) == ("hf", "vllm")
        assert hf.scores == vllm.scores
        assert len(hf.samples) == len(vllm.samples) == 3 * 24
        assert len({sample.answers for sample in hf.samples_of("words_generate")}) > 1
        for one, other in zip(hf.samples, vllm.samples, strict=True):
            assert (one.prompts, one.target) == (other.prompts, other.target)
            if one.task != "words_choose":
                assert (one.answers, one.responses) == (other.answers, other.responses)
                continue
            for ours, theirs in zip(one.responses, other.responses, strict=True):
                # float32 in both: vLLM's own `auto` would run bfloat16, which is off by 1e-2.
                assert ours[0] == pytest.approx(theirs[0], abs=1e-4)


def test_nothing_of_one_model_shows_in_the_next(both: dict[str, list[Evaluation]]) -> None:
    for first, between, again in both.values():
        assert first.samples == again.samples
        assert first.samples != between.samples


def test_auto_takes_vllm_where_it_is_installed_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("INFO"):
        assert resolve_backend("auto") == "vllm"
    assert "backend: vLLM" in caplog.text


def test_a_model_that_cannot_be_loaded_does_not_spoil_the_next(
    both: dict[str, list[Evaluation]], merged: Path, tasks: Path, tmp_path: Path
) -> None:
    broken = write_model(tmp_path / "broken")
    (broken / "model.safetensors").unlink()
    request = EvaluationRequest(tasks=TASKS, include_path=tasks)
    with pytest.raises(LayerSwapError, match=r"vllm cannot load it: .*model weights"):
        evaluate_cold(broken, request, "vllm", OPTIONS)
    again = evaluate_cold(merged, request, "vllm", OPTIONS)
    assert again.samples == both["vllm"][0].samples
