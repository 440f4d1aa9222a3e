"""Every regime trains from one training file, changes what it should, and nothing else."""

import json
from types import SimpleNamespace

import pytest
import torch

from ablations.models.find import find_model
from ablations.study.experts import read_experts_file
from ablations.train import fusion
from ablations.train.model import load_base
from layerswap_method.checkpoint.checkpoint import read_checkpoint
from layerswap_method.checkpoint.lora import read_changes
from layerswap_method.tensor_names import decoder_layer
from tests.standins.tuned import train_adapter
from tests.train.conftest import call, run, weights, write_base, write_config


def changed(base, expert):
    """Return the layers with a changed tensor; None for what is outside of them."""
    before, after = weights(base), weights(expert)
    assert set(before) == set(after)
    return {decoder_layer(n) for n, tensor in before.items() if not torch.equal(tensor, after[n])}


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
    assert {tensor.dtype for tensor in weights(done.out).values()} == {torch.float32}
    assert sum(done.losses[-10:]) < 0.9 * sum(done.losses[:10])
    assert done.expert.folder == done.out.resolve()
    assert set(done.facts) == {"relative_norm", "drift"}
    assert all(value > 0 for value in done.facts.values())
    assert not [*done.out.rglob("*.bin"), *done.out.rglob("*.pt*")]


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


@pytest.mark.parametrize("merge", [True, False])
def test_dora_is_merged_where_the_file_says_so_and_else_has_a_drift_only(
    tmp_path, base, rows, merge
):
    regime = {"kind": "lora", "merge": merge}
    lora = {"r": 2, "use_dora": True, "target_modules": "all-linear"}
    done = train(tmp_path, base, rows, regime=regime, lora=lora)
    assert (done.out / "adapter_config.json").exists() is not merge
    assert set(done.facts) == ({"relative_norm", "drift"} if merge else {"drift"})
    if merge:
        assert changed(base, done.out) == {0, 1, 2, 3}


def test_a_prefix_moves_the_hidden_states_and_no_weight(tmp_path, base, rows):
    regime, trainer = {"kind": "prefix", "tokens": 3}, {"learning_rate": 0.05}
    facts = train(tmp_path, base, rows, regime=regime, trainer=trainer).facts
    assert set(facts) == {"drift"}
    assert facts["drift"] > 0


def test_a_fusion_learns_which_expert_to_take(tmp_path, base, rows):
    experts = {
        name: train_adapter(base, tmp_path / name, seed, target_modules=["v_proj"])
        for seed, name in enumerate(("math", "swahili"))
    }
    regime = {"kind": "adapter_fusion", "experts": {n: str(p) for n, p in experts.items()}}
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


def test_new_weights_follow_the_seed(tmp_path, base, rows):
    options = {"regime": "lora", "samples": 4, "trainer": {"learning_rate": 0.0}, "measure": False}
    one, other = (
        weights(train(tmp_path, base, rows, f"seed{seed}", seed=seed, **options).out)
        for seed in (1, 2)
    )
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_bfloat16_arithmetic_leaves_float32_weights(tmp_path, rows):
    base = write_base(tmp_path / "base", tie_word_embeddings=True)
    # With bf16 weights a step of 1e-6 would change nothing.
    trainer = {"bf16": True, "learning_rate": 1e-6}
    done = train(tmp_path, base, rows, trainer=trainer, measure=False)
    before, after = weights(base), weights(done.out)
    assert {tensor.dtype for tensor in after.values()} == {torch.float32}
    assert all(not torch.equal(before[name], after[name]) for name in before)
    assert max((before[n] - after[n]).abs().max().item() for n in before) < 2e-5
    assert json.loads((done.out / "config.json").read_text())["dtype"] == "float32"
    assert "lm_head.weight" not in after  # tied embeddings stay one tensor
