"""Both engines, for tests that ask each."""

import pytest

from ablations.engines import vllm_engine

VLLM = [
    pytest.mark.vllm,
    pytest.mark.filterwarnings("ignore"),  # vLLM's imports warn a dozen times
    pytest.mark.skipif(not vllm_engine.is_installed(), reason="vLLM is not installed"),
]
BACKENDS = ["hf", pytest.param("vllm", marks=VLLM)]
