"""Every regime changes what it should and nothing else; AdapterFusion against its formulas."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import numpy as np
import peft
import pytest
import torch
import transformers

from ablations.engines import vllm_engine
from ablations.models.find import find_model
from ablations.study.files import read_experts_file
from ablations.train import fusion
from ablations.train.apply_regime import prepare_model
from ablations.train.config import read_training_file
from ablations.train.model import load_base
from ablations.train.regimes import Regime
from layerswap_method.checkpoint.checkpoint import read_checkpoint
from layerswap_method.checkpoint.lora import read_changes
from layerswap_method.errors import InputError
from layerswap_method.frozen import Frozen
from layerswap_method.tensor_names import split_layer
from tests.evaluate.conftest import ask, samples_of
from tests.standins.fine_tunes import train_adapter, write_prefix
from tests.standins.oracle import stored
from tests.train.conftest import call, run, write_base, write_config


@pytest.fixture(scope="module")
def experts(base, tmp_path_factory):
    """Return two LoRA experts of other ranks and modules."""
    root = tmp_path_factory.mktemp("experts")
    math = {"target_modules": ["q_proj", "v_proj", "down_proj"], "r": 2, "lora_alpha": 4}
    swahili = {"target_modules": ["q_proj", "gate_proj"], "r": 3, "use_rslora": True}
    return {
        "math": train_adapter(base, root / "math", 0, **math),
        "swahili": train_adapter(base, root / "swahili", 1, **swahili),
    }


def changed(base, expert):
    """Return the layers with a changed tensor; None for what is outside of them."""
    before, after = stored(base), stored(expert)
    assert set(before) == set(after)
    return {split_layer(n)[0] for n, tensor in before.items() if not torch.equal(tensor, after[n])}


def train(place, base, rows, name="expert", **changes):
    """Train; return the folder, the losses, the facts, and the expert as a study finds it."""
    config = write_config(place / f"{name}.yml", base, rows, **{"measure": True, **changes})
    record = run(config, place / name)
    assert record["finished"]
    entry = read_experts_file(place / name / "experts.yml").experts[name]
    losses, expert = [row["loss"] for row in record["losses"]], find_model(entry.path)
    return SimpleNamespace(out=place / name, losses=losses, facts=entry.facts, expert=expert)


def test_full_training_changes_every_layer_and_lowers_the_loss(tmp_path, base, rows):
    trainer = {"learning_rate": 0.003}
    done = train(tmp_path, base, rows, samples=160, trainer=trainer)
    assert changed(base, done.out) == {None, 0, 1, 2, 3}
    assert {tensor.dtype for tensor in stored(done.out).values()} == {torch.float32}
    assert sum(done.losses[-10:]) < 0.9 * sum(done.losses[:10])
    assert done.expert.folder == done.out.resolve()
    assert set(done.facts) == {"relative_norm", "drift"}
    assert all(value > 0 for value in done.facts.values())


REGIMES = {
    "full": {},
    "lora": {},
    "prefix": {},
    "adapter_fusion": {"experts": {}},  # filled in below
    "frozen": {"layers": "0"},
    "disjoint": {"role": "task", "bottom_layers": 1, "top_layers": 1},
}
"""An example of every regime."""


def test_every_regime_that_is_declared_is_applied_and_trains_weights_of_its_own(
    tmp_path, base, rows, experts
):
    kinds = [regime.model_fields["kind"].annotation for regime in get_args(get_args(Regime)[0])]
    assert {get_args(kind)[0] for kind in kinds} == {*REGIMES}
    trained = {}
    for kind, fields in REGIMES.items():
        regime = {"kind": kind, **fields}
        if kind == "adapter_fusion":
            regime["experts"] = {name: str(path) for name, path in experts.items()}
        lora = {"lora": {"r": 2, "target_modules": ["q_proj"]}} if kind == "lora" else {}
        config = write_config(tmp_path / f"{kind}.yml", base, rows, regime=regime, **lora)
        model = prepare_model(load_base(base), read_training_file(str(config)))
        trained[kind] = frozenset(n for n, p in model.named_parameters() if p.requires_grad)
    assert all(trained.values())
    assert len({*trained.values()}) == len(REGIMES)


def test_a_regime_that_nothing_applies_is_not_trained_as_another(base):
    class Unapplied(Frozen):
        kind: str = "unapplied"

    config = SimpleNamespace(regime=Unapplied(), file="a.yml", lora={"target_modules": ["q_proj"]})
    with pytest.raises(AssertionError, match="unapplied"):
        prepare_model(load_base(base), config)


@pytest.mark.parametrize(
    ("regime", "layers"),
    [
        ({"kind": "frozen", "layers": "0,3"}, {None, 1, 2}),
        ({"kind": "frozen", "layers": "1-2", "outside": False}, {0, 3}),
        ({"kind": "disjoint", "role": "task", "bottom_layers": 1, "top_layers": 1}, {1, 2}),
        ({"kind": "disjoint", "role": "language", "bottom_layers": 1, "top_layers": 1}, {0, 3}),
    ],
)
def test_frozen_layers_stay_to_the_bit(tmp_path, base, rows, regime, layers):
    options = {"samples": 4, "held_out": 0, "measure": False}
    done = train(tmp_path, base, rows, regime=regime, **options)
    assert changed(base, done.out) == layers


def test_an_adapter_is_one_that_merges_take(tmp_path, base, rows):
    lora = {"r": 2, "lora_alpha": 4, "use_rslora": True, "target_modules": ["q_proj"]}
    trainer = {"learning_rate": 0.01, "gradient_checkpointing": True}
    done = train(tmp_path, base, rows, regime="lora", lora=lora, trainer=trainer)
    changes = read_changes(done.out, read_checkpoint(str(base), base))
    assert [c.scaling for c in changes.values()] == pytest.approx([4 / 2**0.5] * 4)
    assert (done.expert.folder, done.expert.adapter) == (base.resolve(), done.out.resolve())
    assert done.facts["relative_norm"] > 0
    # An expert of a base with an adapter is refused.
    config = write_config(tmp_path / "c.yml", base, rows)
    result = call(config, tmp_path / "more", f"base={base}+{done.out}")
    assert result.exit_code == 2
    assert "is a base with an adapter; merge it first" in result.output


DORA = {"lora": {"r": 2, "use_dora": True, "target_modules": "all-linear"}}


@pytest.mark.parametrize(
    ("regime", "lora", "facts"),
    [
        ({"kind": "lora", "merge": True}, DORA, {"relative_norm", "drift"}),
        ({"kind": "lora"}, DORA, {"drift"}),
        ({"kind": "prefix", "tokens": 3}, {}, {"drift"}),
    ],
)
def test_dora_is_merged_where_the_file_says_so_and_else_has_a_drift_only(
    tmp_path, base, rows, regime, lora, facts
):
    done = train(tmp_path, base, rows, regime=regime, trainer={"learning_rate": 0.05}, **lora)
    assert (done.out / "adapter_config.json").exists() is ("relative_norm" not in facts)
    assert set(done.facts) == facts
    assert all(value > 0 for value in done.facts.values())
    if "relative_norm" in facts:
        assert changed(base, done.out) == {0, 1, 2, 3}


def test_a_fusion_learns_which_expert_to_take(tmp_path, base, rows, experts):
    copies = {name: shutil.copytree(path, tmp_path / name) for name, path in experts.items()}
    regime = {"kind": "adapter_fusion", "experts": {n: str(p) for n, p in copies.items()}}
    trainer = {"learning_rate": 0.01, "gradient_checkpointing": True}
    settings = {"samples": 48, "trainer": trainer}
    done = train(tmp_path, base, rows, regime=regime, **settings)
    assert sum(done.losses[-4:]) < sum(done.losses[:4])
    assert set(done.facts) == {"drift"}
    fresh = fusion.build(load_base(base), base, experts).state_dict()
    trained = fusion.load(load_base(base), done.out)
    assert trained.experts == ("math", "swahili")
    for name, tensor in trained.state_dict().items():
        assert "key.bias" in name or torch.equal(fresh[name], tensor) == ("lora" in name)
    regime["value_penalty"] = 10.0
    held = train(tmp_path, base, rows, "held", regime=regime, **settings)
    assert fusion.load(load_base(base), held.out).penalty() < 0.5 * trained.penalty()
    train_adapter(base, copies["math"], 2, target_modules=["q_proj"])  # trained anew in its place
    assert "the experts of the fusion are others" in call(tmp_path / "held.yml", held.out).output


def test_new_weights_follow_the_seed(tmp_path, base, rows):
    options = {"regime": "lora", "samples": 4, "trainer": {"learning_rate": 0.0}, "measure": False}
    one, other = (
        stored(train(tmp_path, base, rows, f"seed{seed}", seed=seed, **options).out)
        for seed in (1, 2)
    )
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_bfloat16_arithmetic_leaves_float32_weights(tmp_path, rows):
    base = write_base(tmp_path / "base", tie_word_embeddings=True)
    # With bf16 weights a step of 1e-6 would change nothing.
    trainer = {"bf16": True, "learning_rate": 1e-6}
    done = train(tmp_path, base, rows, trainer=trainer, measure=False)
    before, after = stored(base), stored(done.out)
    assert {tensor.dtype for tensor in after.values()} == {torch.float32}
    assert all(not torch.equal(before[name], after[name]) for name in before)
    assert max((before[n] - after[n]).abs().max().item() for n in before) < 2e-5
    assert json.loads((done.out / "config.json").read_text())["dtype"] == "float32"
    assert "lm_head.weight" not in after  # tied embeddings stay one tensor
    config = tmp_path / "expert.yml"
    for lora in ("lora.target_modules=[lm_head]", "lora.modules_to_save=[embed_tokens]"):
        result = call(config, tmp_path / "lora", "regime={kind: lora, merge: true}", lora)
        assert (result.exit_code, "a tied layer" in result.output) == (2, True)


IDS = torch.tensor([[4, 11, 12, 13, 20, 21], [5, 26, 27, 7, 8, 9]])


def load_float64(base, adapter=None):
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float64)
    if adapter is None:
        return model.eval()
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
            scale = 0.05 if "value" not in name else 0.2
            parameter.add_(torch.randn(parameter.shape) * scale)
    return {name: p.detach().double().numpy() for name, p in found.named_parameters()}


def oracle(base, experts, values):
    """Return the logits of the fused model by the formulas of the paper, in float64."""
    plain = load_float64(base)
    hidden = plain.model.embed_tokens(IDS)
    positions = torch.arange(IDS.shape[1])[None]
    rotary = plain.model.rotary_emb(hidden, positions)
    for number in range(4):
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


def test_the_formulas_of_the_paper(base, experts):
    model = load_float64(base)
    model.config._attn_implementation = "sdpa"  # causal without a mask, as the oracle's layers
    found = fusion.build(model, base, experts).double()
    values = shaken(found)
    alone = [load_float64(base, adapter) for adapter in experts.values()]
    wanted = oracle(base, alone, values)
    # Norms are in float32.
    np.testing.assert_allclose(logits(model).numpy(), wanted, rtol=1e-5, atol=2e-6)
    apart = [np.abs(wanted - logits(expert).numpy()).max() for expert in alone]
    assert min(apart) > 0.05
    with torch.no_grad():  # others see the hidden states of one batch
        states = model(input_ids=IDS, output_hidden_states=True).hidden_states
    assert [state.shape for state in states] == [(2, 6, 64)] * 5


def test_what_is_saved_is_what_is_loaded_and_on_its_base_only(base, experts, tmp_path):
    model, again, folder = load_base(base), load_base(base), tmp_path / "fused"
    found = fusion.build(model, base, experts)
    shaken(found)
    found.write(folder, str(base))
    assert fusion.is_fusion(folder)
    assert fusion.load(again, folder).experts == ("math", "swahili")
    assert torch.equal(logits(again), logits(model))
    short = load_base(write_base(tmp_path / "short", num_hidden_layers=3))
    with pytest.raises(InputError, match="is of 4 layers of width 64, and the model has 3 of"):
        fusion.load(short, folder)
    assert not hasattr(short, fusion.NAME)
    file = folder / "adapter_config.json"
    file.write_text(file.read_text().replace('"layers": 4', '"layers": 3'))
    with pytest.raises(InputError, match="is not a complete fusion"):
        fusion.load(load_base(base), folder)
    head = train_adapter(base, tmp_path / "head", 0, target_modules=["lm_head"])
    with pytest.raises(InputError, match=r"changes lm_head\.weight, which is in no decoder layer"):
        fusion.build(load_base(base), base, {"head": head})


def save_prefix(base, folder, experts):
    write_prefix(base, folder, 0, 5, scale=3)
    return peft.PeftModel.from_pretrained(load_base(base), folder).eval()


def write_fusion(base, folder, experts):
    model = load_base(base)
    fusion.build(model, base, experts).write(folder, str(base))
    return model


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("write", [save_prefix, write_fusion])
def test_answers_are_what_the_model_says_without_a_cache(base, experts, tmp_path, write):
    mgsm = {"languages": ("sw",), "benchmarks": ("mgsm",), "limit": 3}
    model = write(base, tmp_path / "adapter", experts)
    place = Path(f"{base}+{tmp_path / 'adapter'}")
    result = ask(place, tmp_path / "out", backend="auto", **mgsm)
    assert result.run.cells[0].backend == "hf"
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
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
    plain = ask(base, tmp_path / "plain", **mgsm)
    assert samples_of(plain, "layerswap_mgsm_sw") != samples


@pytest.mark.skipif(not vllm_engine.is_installed(), reason="vLLM is not installed")
def test_vllm_is_refused(base, tmp_path):
    write_prefix(base, tmp_path / "prefix", 0, 5)
    with pytest.raises(InputError, match="runs on transformers only; use --backend hf"):
        ask(f"{base}+{tmp_path / 'prefix'}", tmp_path / "out", backend="vllm")
