"""AdapterFusion against its formulas in NumPy, and, as prefixes, evaluated beside the base."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import peft
import pytest
import torch
import transformers

from ablations.engines import vllm_engine
from ablations.train import fusion
from layerswap_method.errors import InputError
from tests.evaluate.conftest import ask, samples_of
from tests.standins.scripted import DATA
from tests.standins.talkers import write_model
from tests.standins.tuned import train_adapter
from tests.standins.zoo import LAYERS, make_model

CONFIGS = {
    "math": {"target_modules": ["q_proj", "v_proj", "down_proj"], "r": 2, "lora_alpha": 4},
    "swahili": {"target_modules": ["q_proj", "gate_proj"], "r": 3, "use_rslora": True},
}
IDS = torch.tensor([[3, 11, 12, 13, 40, 41], [5, 60, 61, 7, 8, 9]])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a base and two LoRA experts of other ranks and modules."""
    root = tmp_path_factory.mktemp("fusion")
    base = make_model("llama", root / "base", 0, dtype=torch.float32)
    experts = {
        name: train_adapter(base, root / name, seed, **config)
        for seed, (name, config) in enumerate(CONFIGS.items())
    }
    return SimpleNamespace(base=base, experts=experts)


def load_base(folder, dtype=torch.float32):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


def merged(base, adapter):
    """Return the expert with peft's merge of its adapter in its weights."""
    model = load_base(base, torch.float64)
    whole = peft.PeftModel.from_pretrained(model, adapter, autocast_adapter_dtype=False)
    return whole.merge_and_unload().eval()


def logits(model):
    with torch.no_grad():
        return model(input_ids=IDS).logits


def shaken(found):
    """Give every parameter of a fusion a random value that matters; return them in float64."""
    torch.manual_seed(3)
    with torch.no_grad():
        for name, parameter in found.named_parameters():
            scale = 0.5 if "value" not in name else 0.2
            parameter.add_(torch.randn(parameter.shape) * scale)
    return {name: p.detach().double().numpy() for name, p in found.named_parameters()}


def oracle(base, experts, values):
    """Return the logits of the fused model by the formulas of the paper, in float64."""
    plain = load_base(base, torch.float64)
    hidden = plain.model.embed_tokens(IDS)
    positions = torch.arange(IDS.shape[1])[None]
    rotary = plain.model.rotary_emb(hidden, positions)
    for number in range(LAYERS):
        with torch.no_grad():
            outputs = [
                e.model.layers[number](hidden, position_embeddings=rotary, position_ids=positions)
                for e in experts
            ]
        h = hidden.detach().numpy()
        z = np.stack([output.numpy() - h for output in outputs])
        part = {n.removeprefix(f"layers.{number}."): value for n, value in values.items()}
        q = h @ part["query.weight"].T + part["query.bias"]
        k = z @ part["key.weight"].T + part["key.bias"]
        scores = np.einsum("btd,nbtd->nbt", q, k)
        shares = np.exp(scores - scores.max(0))
        shares /= shares.sum(0)
        v = z @ part["value.weight"].T
        hidden = torch.from_numpy(h + np.einsum("nbt,nbtd->btd", shares, v))
    with torch.no_grad():
        return plain.lm_head(plain.model.norm(hidden)).numpy()


def test_the_formulas_of_the_paper(made):
    model = load_base(made.base, torch.float64)
    model.config._attn_implementation = "sdpa"  # causal without a mask, as the oracle's layers
    found = fusion.build(model, made.base, made.experts).double()
    values = shaken(found)
    experts = [merged(made.base, adapter) for adapter in made.experts.values()]
    wanted = oracle(made.base, experts, values)
    # Norms are in float32.
    np.testing.assert_allclose(logits(model).numpy(), wanted, rtol=1e-5, atol=2e-6)
    apart = [np.abs(wanted - logits(expert).numpy()).max() for expert in experts]
    assert min(apart) > 0.05
    with torch.no_grad():  # others see the hidden states of one batch
        states = model(input_ids=IDS, output_hidden_states=True).hidden_states
    assert [state.shape for state in states] == [(2, 6, 16)] * (LAYERS + 1)


def test_generation_with_a_cache_is_generation_without(made):
    model = load_base(made.base)
    shaken(fusion.build(model, made.base, made.experts))
    ids, mask = IDS.clone(), torch.ones_like(IDS)
    ids[1, :2], mask[1, :2] = 2, 0  # padded on the left
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 2}
    cached = model.generate(ids, attention_mask=mask, **options)
    whole = model.generate(ids, attention_mask=mask, use_cache=False, **options)
    assert torch.equal(cached, whole)
    alone = model.generate(ids[1:, 2:], **options)
    assert torch.equal(cached[1:, 2:], alone)
    assert len(set(cached[:, IDS.shape[1] :].flatten().tolist())) > 2


def test_what_is_saved_is_what_is_loaded_and_on_its_base_only(made, tmp_path):
    model, again, folder = load_base(made.base), load_base(made.base), tmp_path / "fused"
    found = fusion.build(model, made.base, made.experts)
    shaken(found)
    found.write(folder, str(made.base))
    assert fusion.is_fusion(folder)
    assert fusion.load(again, folder).experts == ("math", "swahili")
    assert torch.equal(logits(again), logits(model))
    short = load_base(make_model("llama", tmp_path / "short", 1, num_hidden_layers=4))
    with pytest.raises(InputError, match="is of 6 layers of width 16, and the model has 4 of"):
        fusion.load(short, folder)
    assert not hasattr(short, fusion.NAME)
    file = folder / "adapter_config.json"
    file.write_text(file.read_text().replace('"layers": 6', '"layers": 5'))
    with pytest.raises(InputError, match="is no whole fusion"):
        fusion.load(load_base(made.base), folder)
    head = train_adapter(made.base, tmp_path / "head", 0, target_modules=["lm_head"])
    with pytest.raises(InputError, match=r"changes lm_head\.weight, which is in no decoder layer"):
        fusion.build(load_base(made.base), made.base, {"head": head})


@pytest.fixture(scope="module")
def talker(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("talker") / "base")


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
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("write", [write_prefix, write_fusion])
def test_answers_are_what_the_model_says_without_a_cache(talker, tmp_path, write):
    mgsm = {"languages": ("sw",), "benchmarks": ("mgsm",), "limit": 3}
    model = write(talker, tmp_path / "adapter")
    place = Path(f"{talker}+{tmp_path / 'adapter'}")
    result = ask(place, DATA, tmp_path / "out", backend="auto", **mgsm)
    assert result.backend == "hf"
    tokenizer = transformers.AutoTokenizer.from_pretrained(talker)
    samples = samples_of(result, "layerswap_mgsm_sw")
    assert len(samples) == 6  # of two filters
    for sample in samples:
        (prompt,), (answer,) = sample.prompts, sample.responses
        ids = tokenizer(prompt, add_special_tokens=False)["input_ids"][-64:]
        words = []
        while len(words) < 6 and tokenizer.eos_token_id not in words:
            with torch.no_grad():
                scores = model(input_ids=torch.tensor([[*ids, *words]])).logits
            words.append(int(scores[0, -1].argmax()))
        wanted = tokenizer.decode(words, skip_special_tokens=True).split()
        assert wanted
        assert answer.split()[: len(wanted)] == wanted
    plain = ask(talker, DATA, tmp_path / "plain", **mgsm)
    assert samples_of(plain, "layerswap_mgsm_sw") != samples


@pytest.mark.skipif(not vllm_engine.is_installed(), reason="vLLM is not installed")
def test_vllm_is_refused(talker, tmp_path):
    write_prefix(talker, tmp_path / "prefix")
    with pytest.raises(InputError, match="runs on transformers only; use --backend hf"):
        ask(Path(f"{talker}+{tmp_path / 'prefix'}"), DATA, tmp_path / "out", backend="vllm")
