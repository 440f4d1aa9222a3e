"""What can go wrong in a run: options, the loss, the disk, the base. Each gives one message."""

import resource

import pytest
import torch

from ablations.study.experts import read_experts_file
from ablations.train import model
from ablations.train.config import read_config
from ablations.train.folder import whole_checkpoints
from ablations.train.trainer import training_arguments
from tests.train.runs import call, weights, write_config


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        # options of ours
        (["regime={kind: frozen, layers: '7'}"], "layer 7 does not exist"),
        (["regime={kind: frozen}"], "nothing is frozen: name layers, or set outside to false"),
        (["regime={kind: disjoint, role: task}"], "leave no middle in 4 layers"),
        (["regime=lor"], "regime.kind: must be one of full, lora, prefix"),
        (["held_out=40"], "has 40 usable rows, and 40 of them would be held out"),
        (["sampels=1"], "sampels: unknown key; did you mean 'samples'?"),
        (["weight_decay=0.1"], "weight_decay is an option of transformers: write it below trainer"),
        (["data=[{prompt: '{a}'}]"], "name one of path, hub, pocket, config; here: none"),
        (["data=[{pocket: task, prompt: '{a}'}]"], "prompt: not for such a source"),
        (["data=[{path: nowhere.jsonl}]"], "nowhere.jsonl: no such file"),
        (["data=[{config: c.yml}]"], "c.yml: refers to itself"),
        (["samples"], "write NAME=VALUE"),
        (["select={tasks: [layerswap_mgsm_ws]}"], "layerswap_mgsm_ws"),
        (["select={tasks: [a]}", "regime=lora", "lora.use_dora=true"], "no prefix and no DoRA"),
        # options of transformers and peft
        (["trainer.learning_rat=1"], "no option 'learning_rat'; did you mean 'learning_rate'?"),
        (["trainer.learning_rate=fast"], "trainer.learning_rate is 'fast'; write a number"),
        (["trainer.weight_decay=none", "trainer.bf16=7"], "trainer.bf16 is 7; write true or false"),
        (["trainer.lr_scheduler_type=warmup_stable_decay"], "refuses these options"),
        (["trainer.max_steps=5"], "trainer.max_steps: write samples"),
        (["trainer.save_strategy=no"], "write steps, or epoch to save at the end only"),
        (["trainer.report_to=[comet_ml]"], "transformers refuses these options: Comet"),
        (["trainer.per_device_train_batch_size=3"], "not a multiple of"),
        (["regime={kind: prefix}", "trainer.gradient_checkpointing=true"], "prefix tuning"),
        (["lora.r=4"], "lora: is for regime: lora, and the regime is full"),
        (["regime=lora", "lora.rank=4"], "LoraConfig has no option 'rank'"),
        (["regime=lora", "lora.r=0"], "lora: peft refuses it"),
        (["regime=lora", "lora.target_modules=[q_prj]"], "'q_prj'; did you mean 'q_proj'?"),
    ],
)
def test_wrong_settings_exit_2_and_write_nothing(tmp_path, base, rows, settings, text, monkeypatch):
    if not any(of_a_model in text for of_a_model in ("layer", "q_proj", "peft refuses")):
        monkeypatch.setattr(model, "load_base", lambda folder: pytest.fail("a model was loaded"))
    monkeypatch.chdir(tmp_path)
    result = call(write_config(tmp_path / "c.yml", base, rows), tmp_path / "out", *settings)
    assert result.exit_code == 2, result.output
    assert text in result.output
    assert not (tmp_path / "out/config.json").exists()
    assert not (tmp_path / "out/checkpoints").exists()


def test_options_of_the_libraries_arrive(tmp_path, base, rows):
    trainer = {"optim": "adafactor", "neftune_noise_alpha": 5, "learning_rate": "2e-4"}
    trainer["per_device_train_batch_size"] = 2
    lora = {"r": 3, "use_rslora": True, "modules_to_save": ["lm_head"]}
    path = write_config(tmp_path / "c.yml", base, rows, trainer=trainer, lora=lora, regime="lora")
    config = read_config(str(path))
    found = training_arguments(config, tmp_path / "out")
    assert (found.optim, found.neftune_noise_alpha) == ("adafactor", 5)
    assert found.learning_rate == 2e-4  # YAML reads it as text
    assert found.gradient_accumulation_steps == 2
    options = model.lora_config(config)
    assert (options.r, options.use_rslora, options.modules_to_save) == (3, True, ["lm_head"])


def test_a_diverging_loss_stops_with_the_step_and_keeps_the_last_good_checkpoint(
    tmp_path, base, rows
):
    # AdamW's steps are as large as the rate: weights of 1e30 overflow within a step or two.
    trainer = {"max_grad_norm": 1e30, "learning_rate": 1e30, "lr_scheduler_type": "constant"}
    trainer |= {"save_strategy": "steps", "save_steps": 1, "logging_steps": 50}
    config = write_config(tmp_path / "c.yml", base, rows, trainer=trainer)
    result = call(config, tmp_path / "out")
    assert result.exit_code == 1
    assert " at step " in result.output
    assert "Lower the learning rate and choose another --out" in result.output
    checkpoints = whole_checkpoints(tmp_path / "out")
    assert checkpoints
    assert str(checkpoints[-1]) in result.output
    assert all(torch.isfinite(t).all() for c in checkpoints for t in weights(c).values())
    assert not (tmp_path / "out/config.json").exists()


def test_a_run_that_left_its_base_behind_is_finished_without_a_divergence(tmp_path, base, rows):
    trainer = {"learning_rate": 2.0, "lr_scheduler_type": "constant"}
    config = write_config(tmp_path / "c.yml", base, rows, trainer=trainer, measure=True)
    assert call(config, tmp_path / "out").exit_code == 0
    assert (tmp_path / "out/config.json").is_file()
    assert not (tmp_path / "out/divergence.json").exists()
    assert read_experts_file(tmp_path / "out/experts.yml").facts() == {}


@pytest.mark.parametrize("room", [20_000, 600_000], ids=["weights", "optimizer"])
def test_a_full_disk_leaves_no_half_checkpoint_and_the_run_can_go_on(tmp_path, base, rows, room):
    size = (base / "model.safetensors").stat().st_size
    assert 20_000 < size < 600_000 < 2 * size
    config, out = write_config(tmp_path / "c.yml", base, rows), tmp_path / "out"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
        result = call(config, out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert result.exit_code == 1
    assert "cannot be written" in result.output
    assert "Make room and run the same command again" in result.output
    assert list((out / "checkpoints").iterdir()) == []
    assert call(config, out).exit_code == 0
    assert (out / "config.json").is_file()


def test_an_unknown_configuration_is_answered_with_the_nearest(tmp_path):
    result = call("swahil_1", tmp_path / "out")
    assert result.exit_code == 2
    assert "did you mean 'experts/swahili_1.yml'?" in result.output
