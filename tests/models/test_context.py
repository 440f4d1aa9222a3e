"""How long a context may be, on both engines."""

import pytest

from ablations.engines.lm_eval_backend import start_model
from ablations.engines.options import EngineOptions
from ablations.models.context import check_context
from layerswap_method.errors import InputError

STRETCHED = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
TRAINED_LONG = {
    **{"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0},
    "original_max_position_embeddings": 32,
}


@pytest.mark.parametrize(
    ("kind", "settings", "most"),
    [
        ("llama", {"max_position_embeddings": 128}, 128),
        ("llama", {"max_position_embeddings": 128, "rope_parameters": STRETCHED}, 512),
        ("llama", {"max_position_embeddings": 128, "rope_parameters": TRAINED_LONG}, 128),
        ("gpt2", {"n_positions": 64}, 64),
    ],
)
def test_a_context_beyond_the_positions_is_refused(kind, settings, most, tmp_path):
    from transformers import AutoConfig

    AutoConfig.for_model(kind, **settings).save_pretrained(tmp_path)
    check_context(str(tmp_path), None)
    check_context(str(tmp_path), most)
    with pytest.raises(InputError) as refused:
        check_context(str(tmp_path), most + 1)
    assert refused.value.message == (
        f"{tmp_path}: a context of {most + 1} tokens (--max-model-len) is more than it has "
        f"positions for ({most})"
    )


@pytest.mark.parametrize("backend", ["hf", pytest.param("vllm", marks=pytest.mark.vllm)])
def test_no_engine_is_started_for_it(backend, tmp_path):
    from transformers import AutoConfig

    AutoConfig.for_model("gpt2", n_positions=64).save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"positions for \(64\)"):
        start_model(str(tmp_path), backend, EngineOptions(max_model_len=65))
