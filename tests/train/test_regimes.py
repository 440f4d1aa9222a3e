"""Every regime trains from one command, changes what it should, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from ablations.models.find import find_model
from ablations.study.experts import read_experts_file
from ablations.train.config import identity_of
from ablations.train.files import read_config
from ablations.train.run import train_expert
from layerswap_method.algorithm.tensor_names import decoder_layer
from layerswap_method.checkpoints.headers import read_checkpoint
from layerswap_method.checkpoints.lora import read_changes
from tests.train.runs import weights, write_base, write_config, write_rows


def changed(base: Path, expert: Path) -> set[int | None]:
    """Return the layers with a changed tensor; None for what is outside of them."""
    before, after = weights(base), weights(expert)
    assert set(before) == set(after)
    return {decoder_layer(n) for n, tensor in before.items() if not torch.equal(tensor, after[n])}


def run(tmp_path: Path, base: Path, rows: Path, **changes: Any) -> Path:
    config = write_config(tmp_path / "config.yml", base, rows, **changes)
    out = tmp_path / "expert"
    record = train_expert(read_config(str(config)), out)
    assert record["finished"]
    assert record["losses"][-1]["step"] == record["samples"] // 4
    return out


def test_full_training_changes_every_layer_and_lowers_the_loss(
    tmp_path: Path, base: Path, rows: Path
) -> None:
    out = run(tmp_path, base, rows, learning_rate=0.003, samples=160)
    assert changed(base, out) == {None, 0, 1, 2, 3}
    assert {tensor.dtype for tensor in weights(out).values()} == {torch.float32}
    losses = [each["loss"] for each in json.loads((out / "training.json").read_text())["losses"]]
    assert sum(losses[-10:]) < 0.9 * sum(losses[:10])
    # The experts file is what a study reads.
    entry = read_experts_file(out / "experts.yml").experts["expert"]
    assert find_model(entry.path).folder == out.resolve()
    assert set(entry.facts) == {"relative_norm", "drift"}
    assert all(value > 0 for value in entry.facts.values())
    assert not list(out.rglob("*.bin"))
    assert not list(out.rglob("*.pt*"))


@pytest.mark.parametrize(
    ("regime", "layers"),
    [
        ({"kind": "frozen", "layers": "0,3"}, {None, 1, 2}),
        ({"kind": "frozen", "layers": "1-2", "outside": False}, {0, 3}),
        ({"kind": "frozen", "outside": False}, {0, 1, 2, 3}),
        ({"kind": "disjoint", "role": "task", "bottom_layers": 1, "top_layers": 1}, {1, 2}),
        ({"kind": "disjoint", "role": "language", "bottom_layers": 1, "top_layers": 1}, {0, 3}),
    ],
    ids=["frozen", "frozen-outside", "layers-only", "disjoint-task", "disjoint-language"],
)
def test_frozen_layers_stay_to_the_bit(
    tmp_path: Path, base: Path, rows: Path, regime: dict[str, Any], layers: set[int | None]
) -> None:
    out = run(tmp_path, base, rows, regime=regime, gradient_checkpointing=True)
    assert changed(base, out) == layers


@pytest.mark.parametrize("rslora", [False, True])
def test_lora_writes_an_adapter_that_our_streams_read(
    tmp_path: Path, base: Path, rows: Path, rslora: bool
) -> None:
    regime = {
        "kind": "lora",
        "rank": 4,
        "alpha": 8,
        "rslora": rslora,
        "targets": ["q_proj", "up_proj"],
    }
    out = run(tmp_path, base, rows, regime=regime, learning_rate=0.01)
    changes = read_changes(out, read_checkpoint("base", base))
    assert len(changes) == 8
    assert {change.scaling for change in changes.values()} == {4.0 if rslora else 2.0}
    entry = read_experts_file(out / "experts.yml").experts["expert"]
    expert = find_model(entry.path)
    assert (expert.folder, expert.adapter) == (base.resolve(), out.resolve())
    assert entry.facts["relative_norm"] > 0


def test_dora_is_merged_where_that_is_asked(tmp_path: Path, base: Path, rows: Path) -> None:
    regime = {"kind": "lora", "rank": 2, "dora": True, "merge": True}
    out = run(tmp_path, base, rows, regime=regime, learning_rate=0.01)
    assert changed(base, out) == {0, 1, 2, 3}
    assert not (out / "adapter_config.json").exists()


def test_dora_unmerged_has_a_drift_only(tmp_path: Path, base: Path, rows: Path) -> None:
    regime = {"kind": "lora", "rank": 2, "dora": True}
    out = run(tmp_path, base, rows, regime=regime, learning_rate=0.01)
    facts = read_experts_file(out / "experts.yml").experts["expert"].facts
    assert set(facts) == {"drift"}
    assert facts["drift"] > 0


def test_a_prefix_moves_the_hidden_states_and_no_weight(
    tmp_path: Path, base: Path, rows: Path
) -> None:
    out = run(tmp_path, base, rows, regime={"kind": "prefix", "tokens": 3}, learning_rate=0.05)
    assert json.loads((out / "adapter_config.json").read_text())["peft_type"] == "PREFIX_TUNING"
    facts = read_experts_file(out / "experts.yml").experts["expert"].facts
    assert set(facts) == {"drift"}
    assert facts["drift"] > 0


def test_joint_training_takes_both_data_sets_by_weight(tmp_path: Path, base: Path) -> None:
    for name, shift in (("math", 1), ("swahili", 2)):
        rows = write_rows(tmp_path / f"{name}.jsonl", shift=shift)
        write_config(tmp_path / f"{name}.yml", base, rows)
    sources = [{"config": "math.yml", "weight": 3}, {"config": "swahili.yml"}]
    config = write_config(tmp_path / "joint.yml", base, sources)
    record = train_expert(read_config(str(config)), tmp_path / "expert")
    assert list(record["rows_by_source"].values()) == [12, 4]


def test_a_regime_is_a_small_change_of_a_configuration(
    tmp_path: Path, base: Path, rows: Path
) -> None:
    write_config(tmp_path / "math.yml", base, rows)
    changed = {"extends": "math.yml", "regime": {"kind": "lora"}}
    (tmp_path / "lora.yml").write_text(yaml.safe_dump(changed))
    full, lora = (identity_of(read_config(str(tmp_path / f"{n}.yml"))) for n in ("math", "lora"))
    assert [name for name in full if full[name] != lora[name]] == ["regime"]


def test_the_precision_of_computation_leaves_float32_weights(
    tmp_path: Path, base: Path, rows: Path
) -> None:
    # With bf16 weights a step of 1e-6 would change nothing.
    out = run(tmp_path, base, rows, compute="bfloat16", learning_rate=1e-6)
    before, after = weights(base), weights(out)
    moved = [not torch.equal(before[name], after[name]) for name in before]
    assert all(moved)
    steps = [(before[n] - after[n]).abs().max().item() for n in before]
    assert max(steps) < 2e-5


def test_save_dtype_warns_and_is_stated_in_the_config(
    tmp_path: Path, base: Path, rows: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = run(tmp_path, base, rows, save_dtype="bfloat16")
    assert "most of a light fine-tune" in caplog.text
    assert {tensor.dtype for tensor in weights(out).values()} == {torch.bfloat16}
    assert json.loads((out / "config.json").read_text())["dtype"] == "bfloat16"
    (last,) = (out / "checkpoints").iterdir()
    assert {tensor.dtype for tensor in weights(last).values()} == {torch.float32}


def test_another_architecture_trains_too(tmp_path: Path, tiny_pocket: Any) -> None:
    config = write_config(
        tmp_path / "c.yml", tiny_pocket.base, [{"pocket": "task"}, {"pocket": "language"}]
    )
    record = train_expert(read_config(str(config), ["max_length=256"]), tmp_path / "out")
    assert record["rows_by_source"] == {"pocket:task": 8, "pocket:language": 8}
    assert changed(tiny_pocket.base, tmp_path / "out") == {None, 0, 1, 2, 3}


def test_tied_embeddings_stay_one_tensor(tmp_path: Path, rows: Path) -> None:
    base = write_base(tmp_path / "base", tie_word_embeddings=True)
    out = run(tmp_path, base, rows)
    assert "lm_head.weight" not in weights(out)
