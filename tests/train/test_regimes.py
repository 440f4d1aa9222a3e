"""Every regime trains from one training file, changes what it should, and nothing else."""

import json

import pytest
import torch

from ablations.models.find import find_model
from ablations.study.experts import read_experts_file
from ablations.train import fusion
from ablations.train.model import load_base
from layerswap_method.checkpoint.checkpoint import read_checkpoint
from layerswap_method.checkpoint.lora import read_changes
from layerswap_method.errors import InputError
from layerswap_method.tensor_names import decoder_layer
from tests.standins.tuned import train_adapter
from tests.train import runs
from tests.train.runs import weights, write_base, write_config

MEASURED = {"measure": True}


def changed(base, expert):
    """Return the layers with a changed tensor; None for what is outside of them."""
    before, after = weights(base), weights(expert)
    assert set(before) == set(after)
    return {decoder_layer(n) for n, tensor in before.items() if not torch.equal(tensor, after[n])}


def train(place, base, rows, name="expert", **changes):
    config = write_config(place / f"{name}.yml", base, rows, **changes)
    record = runs.run(config, place / name)
    assert record["finished"]
    return place / name


def losses(out):
    record = json.loads((out / "training.json").read_text())
    return [entry["loss"] for entry in record["losses"]]


def facts(out):
    return read_experts_file(out / "experts.yml").experts["expert"].facts


def test_full_training_changes_every_layer_and_lowers_the_loss(tmp_path, base, rows):
    trainer = {"learning_rate": 0.003}
    out = train(tmp_path, base, rows, samples=160, trainer=trainer, **MEASURED)
    assert changed(base, out) == {None, 0, 1, 2, 3}
    assert {tensor.dtype for tensor in weights(out).values()} == {torch.float32}
    assert sum(losses(out)[-10:]) < 0.9 * sum(losses(out)[:10])
    # The experts file is what a study reads.
    entry = read_experts_file(out / "experts.yml").experts["expert"]
    assert find_model(entry.path).folder == out.resolve()
    assert set(entry.facts) == {"relative_norm", "drift"}
    assert all(value > 0 for value in entry.facts.values())
    assert not [*out.rglob("*.bin"), *out.rglob("*.pt*")]


@pytest.mark.parametrize(
    ("regime", "layers"),
    [
        ({"kind": "frozen", "layers": "0,3"}, {None, 1, 2}),
        ({"kind": "frozen", "layers": "1-2", "outside": False}, {0, 3}),
        ({"kind": "frozen", "outside": False}, {0, 1, 2, 3}),
        ({"kind": "disjoint", "role": "task", "bottom_layers": 1, "top_layers": 1}, {1, 2}),
        ({"kind": "disjoint", "role": "language", "bottom_layers": 1, "top_layers": 1}, {0, 3}),
    ],
)
def test_frozen_layers_stay_to_the_bit(tmp_path, base, rows, regime, layers):
    out = train(tmp_path, base, rows, regime=regime, trainer={"gradient_checkpointing": True})
    assert changed(base, out) == layers


@pytest.mark.parametrize("use_rslora", [False, True])
def test_an_adapter_is_one_that_merges_take(tmp_path, base, rows, use_rslora):
    lora = {"r": 2, "lora_alpha": 4, "use_rslora": use_rslora, "target_modules": ["q_proj"]}
    trainer = {"learning_rate": 0.01}
    out = train(tmp_path, base, rows, regime="lora", lora=lora, trainer=trainer, **MEASURED)
    changes = read_changes(out, read_checkpoint(str(base), base))
    assert len(changes) == 4
    assert all(
        c.scaling == pytest.approx(4 / 2**0.5 if use_rslora else 2) for c in changes.values()
    )
    expert = find_model(read_experts_file(out / "experts.yml").experts["expert"].path)
    assert (expert.folder, expert.adapter) == (base.resolve(), out.resolve())
    assert facts(out)["relative_norm"] > 0


@pytest.mark.parametrize("merge", [True, False])
def test_dora_is_merged_where_the_file_says_so_and_else_has_a_drift_only(
    tmp_path, base, rows, merge
):
    regime = {"kind": "lora", "merge": merge}
    lora = {"r": 2, "use_dora": True, "target_modules": "all-linear"}
    trainer = {"learning_rate": 0.01}
    out = train(tmp_path, base, rows, regime=regime, lora=lora, trainer=trainer, **MEASURED)
    assert (out / "adapter_config.json").exists() is not merge
    assert set(facts(out)) == ({"relative_norm", "drift"} if merge else {"drift"})
    if merge:
        assert changed(base, out) == {0, 1, 2, 3}


def test_a_prefix_moves_the_hidden_states_and_no_weight(tmp_path, base, rows):
    regime, trainer = {"kind": "prefix", "tokens": 3}, {"learning_rate": 0.05}
    out = train(tmp_path, base, rows, regime=regime, trainer=trainer, **MEASURED)
    assert json.loads((out / "adapter_config.json").read_text())["peft_type"] == "PREFIX_TUNING"
    assert set(facts(out)) == {"drift"}
    assert facts(out)["drift"] > 0


def test_a_fusion_learns_which_expert_to_take(tmp_path, base, rows):
    experts = {
        name: train_adapter(base, tmp_path / name, seed, target_modules=modules)
        for seed, (name, modules) in enumerate(
            {"math": ["q_proj", "down_proj"], "swahili": ["v_proj"]}.items()
        )
    }
    regime = {"kind": "adapter_fusion", "experts": {n: str(p) for n, p in experts.items()}}
    trainer = {"learning_rate": 0.01, "gradient_checkpointing": True}
    settings = {"regime": regime, "samples": 120, "trainer": trainer}
    out = train(tmp_path, base, rows, **settings, **MEASURED)
    assert sum(losses(out)[-8:]) < sum(losses(out)[:8])
    assert set(facts(out)) == {"drift"}
    fresh = fusion.build(load_base(base), base, experts)
    trained = fusion.load(load_base(base), out)
    assert trained.experts == ("math", "swahili")
    before = dict(fresh.named_parameters())
    for name, parameter in trained.named_parameters():
        assert "key.bias" in name or not torch.equal(before[name], parameter)
    for module in fresh.modules_changed:
        assert all(map(torch.equal, fresh.matrices(module), trained.matrices(module)))
    settings["regime"] = {**regime, "value_penalty": 10.0}
    held = fusion.load(load_base(base), train(tmp_path, base, rows, "held", **settings))
    assert held.penalty() < 0.5 * trained.penalty()
    with pytest.raises(InputError, match="no such folder"):
        train(tmp_path, base, rows, "gone", regime={**regime, "experts": {"a": "gone"}})


def test_bfloat16_arithmetic_leaves_float32_weights(tmp_path, base, rows):
    # With bf16 weights a step of 1e-6 would change nothing.
    out = train(tmp_path, base, rows, trainer={"bf16": True, "learning_rate": 1e-6})
    before, after = weights(base), weights(out)
    assert all(not torch.equal(before[name], after[name]) for name in before)
    assert max((before[n] - after[n]).abs().max().item() for n in before) < 2e-5


def test_save_dtype_warns_and_is_stated_in_the_config(tmp_path, base, rows, caplog):
    out = train(tmp_path, base, rows, save_dtype="bfloat16")
    assert "most of a light fine-tune" in caplog.text
    assert {tensor.dtype for tensor in weights(out).values()} == {torch.bfloat16}
    assert json.loads((out / "config.json").read_text())["dtype"] == "bfloat16"
    (last,) = (out / "checkpoints").iterdir()
    assert {tensor.dtype for tensor in weights(last).values()} == {torch.float32}


def test_another_architecture_trains_too(tmp_path, tiny_pocket):
    data = [{"pocket": "task"}, {"pocket": "language"}]
    out = train(tmp_path, tiny_pocket.base, data, max_length=256)
    record = json.loads((out / "training.json").read_text())
    assert record["rows_by_source"] == {"pocket:task": 8, "pocket:language": 8}
    assert changed(tiny_pocket.base, out) == {None, 0, 1, 2, 3}


def test_tied_embeddings_stay_one_tensor(tmp_path, rows):
    base = write_base(tmp_path / "base", tie_word_embeddings=True)
    assert "lm_head.weight" not in weights(train(tmp_path, base, rows))
