"""Prefixes and fusions are evaluated beside the base's weights, by transformers."""

from pathlib import Path

import peft
import pytest
import torch
import transformers

from ablations.engines import vllm_engine
from ablations.train import fusion
from layerswap_method.errors import InputError
from tests.evaluate.conftest import ask, samples_of
from tests.standins.talkers import write_model
from tests.standins.tuned import train_adapter

pytestmark = pytest.mark.filterwarnings("ignore")

TASK = "layerswap_mgsm_sw"
MGSM = {"languages": ("sw",), "benchmarks": ("mgsm",), "limit": 3}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("base") / "base")


def load_base(base):
    return transformers.AutoModelForCausalLM.from_pretrained(base).eval()


def write_prefix(base, folder):
    config = peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=5)
    torch.manual_seed(0)
    model = peft.get_peft_model(load_base(base), config)
    with torch.no_grad():
        for parameter in model.prompt_encoder.parameters():
            parameter.mul_(3)
    model.save_pretrained(folder)
    return peft.PeftModel.from_pretrained(load_base(base), folder).eval()


def write_fusion(base, folder):
    experts = {
        name: train_adapter(base, folder.parent / name, seed, target_modules=["down_proj"])
        for seed, name in enumerate(("one", "two"), start=3)
    }
    model = load_base(base)
    fusion.build(model, base, experts).write(folder, str(base))
    return model


@pytest.mark.slow
@pytest.mark.parametrize("write", [write_prefix, write_fusion])
def test_answers_are_what_the_model_says_without_a_cache(base, tmp_path, write):
    model = write(base, tmp_path / "adapter")
    place = Path(f"{base}+{tmp_path / 'adapter'}")
    result = ask(place, tmp_path / "out", backend="auto", **MGSM)
    assert result.backend == "hf"
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    samples = samples_of(result, TASK)
    assert len(samples) == 6  # of two filters
    for sample in samples:
        (prompt,), (answer,) = sample.prompts, sample.responses
        ids = tokenizer(prompt, add_special_tokens=False)["input_ids"][-64:]
        said: list[int] = []
        while len(said) < 6 and tokenizer.eos_token_id not in said:
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([[*ids, *said]])).logits
            said.append(int(logits[0, -1].argmax()))
        wanted = tokenizer.decode(said, skip_special_tokens=True).split()
        assert wanted
        assert answer.split()[: len(wanted)] == wanted
    plain = ask(base, tmp_path / "plain", **MGSM)
    assert samples_of(plain, TASK) != samples


@pytest.mark.skipif(not vllm_engine.is_installed(), reason="vLLM is not installed")
def test_vllm_is_refused(base, tmp_path):
    write_prefix(base, tmp_path / "prefix")
    with pytest.raises(InputError, match="runs on transformers only; use --backend hf"):
        ask(f"{base}+{tmp_path / 'prefix'}", tmp_path / "out", backend="vllm")
