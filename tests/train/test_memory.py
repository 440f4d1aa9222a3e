"""The memory that a training takes: weights in 16 bits, few logits, rows at once, what is said."""

import json
import re

import pytest
import torch
import transformers
from safetensors.torch import load_file

from ablations.train import trainer
from ablations.train.apply_regime import prepare_model
from ablations.train.config import read_training_file
from ablations.train.memory import Memory, estimate_memory, frozen_dtype
from ablations.train.model import load_base
from ablations.train.rows import IGNORED, collate
from layerswap_method.checkpoint.checkpoint import read_checkpoint
from tests.standins.fine_tunes import train_adapter
from tests.train.conftest import equal_weights, run, write_base, write_config

LORA = {"regime": "lora", "lora": {"r": 4, "lora_dropout": 0.1}}


@pytest.fixture(scope="module")
def short_base(tmp_path_factory):
    """Return a base that is stored in bfloat16. Do not write to it."""
    return write_base(tmp_path_factory.mktemp("short") / "base", dtype=torch.bfloat16)


def tokens(*lengths):
    """Return rows whose second half is learned, of these lengths."""
    ids = [[(7 * i + length) % 20 + 4 for i in range(length)] for length in lengths]
    return [
        {"input_ids": row, "labels": [IGNORED] * (len(row) // 2) + row[len(row) // 2 :]}
        for row in ids
    ]


@pytest.mark.parametrize("lengths", [(9,), (12, 6, 3), (2, 2)])
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("Llama", {}),
        ("Mixtral", {"num_local_experts": 2, "output_router_logits": True}),  # a loss beside it
        ("GPTNeoX", {}),
    ],
)
def test_logits_are_made_where_a_label_is_and_the_loss_is_that_of_all(kind, changes, lengths):
    settings = {"vocab_size": 30, "hidden_size": 16, "num_attention_heads": 2, **changes}
    settings |= {} if kind == "GPTNeoX" else {"num_key_value_heads": 2}
    config = getattr(transformers, f"{kind}Config")(**settings, num_hidden_layers=2)
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).double()
    model.set_experts_implementation("eager")  # the only one in float64
    assert trainer._keeps_logits(model)
    losses, gradients, sizes = [], [], []
    for few_logits in (False, True):
        model.zero_grad()
        batch = collate(tokens(*lengths), padding=0, few_logits=few_logits)
        output = model(**batch)
        # transformers' own loss is in float32.
        logits, labels = output.logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten()
        exact = torch.nn.functional.cross_entropy(logits, labels, ignore_index=IGNORED)
        exact.backward()
        losses.append((exact.item(), output.loss.item()))
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        sizes.append(output.logits.shape[1])
    longest = max(lengths)
    assert sizes == [longest, longest - min(length // 2 for length in lengths) + 1]
    (exact, loss), (few_exact, few_loss) = losses
    assert few_exact == pytest.approx(exact, abs=1e-14)
    assert few_loss == pytest.approx(loss, abs=1e-6)
    for full, few in zip(*gradients, strict=True):
        torch.testing.assert_close(full, few, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("changes", "dtype"),
    [
        (LORA, "bfloat16"),
        ({"regime": {"kind": "prefix"}}, "bfloat16"),
        ({"regime": {"kind": "adapter_fusion", "experts": {"a": "a"}}}, "bfloat16"),
        ({"regime": {"kind": "lora", "merge": True}, "lora": {"use_dora": True}}, "float32"),
        ({"regime": "lora", "lora": {"modules_to_save": ["lm_head"]}}, "float32"),
        ({"regime": "lora", "lora": {"init_lora_weights": "pissa"}}, "float32"),
        ({"regime": {"kind": "frozen", "layers": "0"}}, "float32"),
        ({"regime": "full"}, "float32"),
    ],
    ids=["lora", "prefix", "fusion", "dora", "modules_to_save", "pissa", "frozen", "full"],
)
def test_a_base_in_bfloat16_stays_so_beside_an_adapter_and_what_is_trained_is_float32(
    tmp_path, short_base, base, rows, changes, dtype, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    train_adapter(short_base, tmp_path / "a", 0, target_modules=["q_proj"])
    config = read_training_file(str(write_config(tmp_path / "c.yml", short_base, rows, **changes)))
    assert frozen_dtype(config, read_checkpoint("base", short_base)) == dtype
    assert frozen_dtype(config, read_checkpoint("base", base)) == "float32"
    model = prepare_model(load_base(short_base, dtype), config)
    parameters = list(model.parameters())
    assert {str(p.dtype) for p in parameters if p.requires_grad} == {"torch.float32"}
    frozen = {str(p.dtype) for p in parameters if not p.requires_grad}
    assert frozen <= {f"torch.{dtype}"}


def test_a_lora_beside_bfloat16_goes_on_to_the_same_bits_and_is_float32(
    tmp_path, short_base, rows, monkeypatch
):
    settings = {"save_strategy": "steps", "save_steps": 1}
    config = write_config(tmp_path / "c.yml", short_base, rows, trainer=settings, **LORA)
    run(config, tmp_path / "whole")
    with monkeypatch.context() as patch:
        stop = RuntimeError("stopped")

        def on_save(watch, args, state, control, **_):
            if state.global_step == 2:
                raise stop

        patch.setattr(trainer._Watch, "on_step_begin", on_save)
        with pytest.raises(RuntimeError, match="stopped"):
            run(config, tmp_path / "out")
    run(config, tmp_path / "out")
    assert equal_weights(tmp_path / "whole", tmp_path / "out")
    weights = load_file(tmp_path / "out/adapter_model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    record = json.loads((tmp_path / "out/training.json").read_text())
    assert [entry["step"] for entry in record["losses"]] == [1, 2, 3, 4]


def test_rows_go_through_together_up_to_a_size_that_no_machine_decides():
    assert [Memory(1e12, 1e9, 0).rows_at_once(rows) for rows in (1, 4, 6, 8, 7)] == [1, 4, 3, 4, 1]
    assert Memory(0, 1e12, 0).rows_at_once(8) == 1
    assert Memory(0, 1, 0).rows_at_once(24) == 24


@pytest.mark.parametrize(
    ("settings", "at_once"), [([], 1), (["trainer.per_device_train_batch_size=4"], 4)]
)
def test_the_need_is_said_before_the_base_is_loaded_with_what_makes_it_less(
    tmp_path, base, rows, settings, at_once, monkeypatch, caplog
):
    def load(folder, dtype):
        caplog.records.append("loaded")
        raise OverflowError

    monkeypatch.setattr(trainer, "load_base", load)
    config = write_config(tmp_path / "c.yml", base, rows, batch_size=4)
    for number, free in enumerate((4e9, 4e8)):
        caplog.clear()
        monkeypatch.setattr(trainer, "free_memory", lambda is_on_cpu, free=free: free)
        monkeypatch.setattr(Memory, "rows_at_once", lambda memory, rows: 1)
        with caplog.at_level("INFO"), pytest.raises(OverflowError):
            run(config, tmp_path / f"out{number}", *settings)
        *_, said, loaded = caplog.records
        assert loaded == "loaded"
        there = ("4 GB", "400 MB")[number]
        text = rf"needs about [67]\d\d MB of memory, {at_once} rows at once; {there} are free"
        assert re.match(text, said.getMessage())
        assert said.levelname == ("WARNING" if number else "INFO")
    advice = "less is needed with "
    if at_once > 1:
        advice += "trainer.per_device_train_batch_size=1 or "
    advice += "trainer.gradient_checkpointing=true or a lower max_length or regime=lora"
    assert said.getMessage().endswith(advice)


def test_what_comes_after_the_training_counts_too(tmp_path, short_base, rows):
    config = write_config(tmp_path / "c.yml", short_base, rows, regime="lora", measure=True)
    checkpoint = read_checkpoint("base", short_base)
    parameters = sum(tensor.numel() for tensor in load_base(short_base).state_dict().values())
    for setting, size in ((), 4 * parameters), (("measure=false",), 0):
        memory = estimate_memory(read_training_file(str(config), setting), checkpoint, 20, 10)
        assert memory.at_end == size
