"""The suite on the real MGSM."""

import pytest

from ablations.engines import vllm_engine
from tests.evaluate.conftest import ask, samples_of
from tests.standins.scripted import PUBLISHED_MGSM

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.slow
def test_the_real_mgsm_runs_to_the_end(tiny_pocket, tmp_path):
    result = ask(
        tiny_pocket.task, PUBLISHED_MGSM, tmp_path, languages=("sw",), benchmarks=("mgsm",), limit=2
    )
    assert result.evaluations["layerswap_mgsm_sw"].score("layerswap_mgsm_sw").n == 2


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.skipif(not vllm_engine.is_installed(), reason="vLLM is not installed")
def test_both_backends_are_asked_the_same_of_the_real_mgsm(tiny_pocket, tmp_path):
    name = "layerswap_mgsm_sw"
    results = [
        ask(
            *(tiny_pocket.task, PUBLISHED_MGSM, tmp_path / backend),
            **{"languages": ("sw",), "benchmarks": ("mgsm",), "limit": 2, "backend": backend},
        )
        for backend in ("hf", "vllm")
    ]
    hf, vllm = (result.evaluations[name] for result in results)
    said = [samples_of(result, name) for result in results]
    assert (hf.backend, vllm.backend) == ("hf", "vllm")
    assert len(said[0]) == len(said[1]) == 2 * 2
    assert hf.notes == vllm.notes
    for one, other in zip(*said, strict=True):
        assert (one.doc_id, one.prompt_hash) == (other.doc_id, other.prompt_hash)
        assert one.prompts == other.prompts
        # lm-eval has vLLM write special tokens without a space before them.
        ours, theirs = (str(each.responses[0]).replace(" <unk>", "<unk>") for each in (one, other))
        assert ours == theirs
        assert one.values["prompt_truncated"] == other.values["prompt_truncated"] == 1
