"""On both engines: a base with an adapter scores as the merged model, and prompts are the same."""

import logging

import pytest

from ablations.engines import vllm_engine
from ablations.runner.engines import run_mergekit
from tests.evaluate.conftest import ask, samples_of
from tests.standins.scripted import PUBLISHED_MGSM
from tests.standins.tuned import write_adapter

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]
SW = "layerswap_mgsm_sw"
no_vllm = pytest.mark.skipif(not vllm_engine.is_installed(), reason="vLLM is not installed")


@pytest.mark.parametrize("backend", ["hf", pytest.param("vllm", marks=[pytest.mark.vllm, no_vllm])])
def test_a_base_with_an_adapter_scores_as_the_merged_checkpoint(expert, tmp_path, caplog, backend):
    # Not of the attention: to this model most words are one, and attention to equal ones is equal.
    adapter = write_adapter(tmp_path / "adapter", "model.layers.1.mlp.down_proj", 96, 64)
    reference = f"{expert}+{adapter}"
    recipe = tmp_path / "recipe.yml"
    recipe.write_text(f"merge_method: passthrough\nmodels: [{{model: '{reference}'}}]\n")
    run_mergekit(recipe, tmp_path / "merged", log=tmp_path / "log")
    benchmarks = ("mgsm", "belebele", "flores") if backend == "hf" else ("mgsm",)
    how = {"backend": backend, "limit": 3}
    streamed = ask(reference, tmp_path / "streamed", benchmarks=benchmarks, **how)
    cold = ask(tmp_path / "merged", tmp_path / "cold", benchmarks=benchmarks, **how)
    assert len(streamed.evaluations) == len(cold.evaluations) == (8 if backend == "hf" else 2)
    for name, each in streamed.evaluations.items():
        assert (each.model, each.backend) == (reference, backend)
        assert each.scores == cold.evaluations[name].scores
        assert samples_of(streamed, name) == samples_of(cold, name)
    assert "task+adapter" in streamed.report().partition("Task  ")[2].splitlines()[0]
    # The adapter is a part of the model: nothing is asked again, unless it has changed.
    for model, is_asked in ((reference, False), (expert, True)):
        caplog.clear()
        with caplog.at_level(logging.INFO, "ablations"):
            alone = ask(model, streamed.out, benchmarks=("mgsm",), **how)
        assert ("evaluated in" in caplog.text) == is_asked
    assert samples_of(alone, SW) != samples_of(cold, SW)


@pytest.mark.vllm
@no_vllm
def test_both_backends_are_asked_the_same_of_the_real_mgsm(tiny_pocket, tmp_path):
    how = {"languages": ("sw",), "benchmarks": ("mgsm",), "limit": 2}
    results = [
        ask(tiny_pocket.task, tmp_path / backend, PUBLISHED_MGSM, backend=backend, **how)
        for backend in ("hf", "vllm")
    ]
    hf, vllm = (result.evaluations[SW] for result in results)
    assert (hf.backend, vllm.backend, hf.notes) == ("hf", "vllm", vllm.notes)
    both = [samples_of(result, SW) for result in results]
    assert len(both[0]) == len(both[1]) == 2 * 2
    for one, other in zip(*both, strict=True):
        assert (one.doc_id, one.prompt_hash) == (other.doc_id, other.prompt_hash)
        assert one.prompts == other.prompts
        # lm-eval has vLLM write special tokens without a space before them.
        ours, theirs = (str(each.responses[0]).replace(" <unk>", "<unk>") for each in (one, other))
        assert ours == theirs
        assert one.values["prompt_truncated"] == other.values["prompt_truncated"] == 1
