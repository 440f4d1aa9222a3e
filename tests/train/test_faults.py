"""What can go wrong in a run: the loss, the disk, the data, the base. Each gives one message."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from ablations.cli import main
from ablations.study.experts import read_experts_file
from ablations.train.files import read_config
from ablations.train.folder import TrainingFolder
from ablations.train.rows import mix_rows
from tests.train.runs import weights, write_config


def call(config: Path, out: Path, *settings: str) -> Result:
    words = [word for each in settings for word in ("--set", each)]
    result = CliRunner().invoke(main, ["train", str(config), "--out", str(out), *words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_a_diverging_loss_stops_with_the_step_and_keeps_the_last_good_checkpoint(
    tmp_path: Path, base: Path, rows: Path
) -> None:
    config = write_config(tmp_path / "c.yml", base, rows, save_every=4, max_grad_norm=1e30)
    # AdamW's steps are as large as the rate: weights of 1e30 overflow within a step or two.
    result = call(config, tmp_path / "out", "learning_rate=1e30", "schedule=constant")
    assert result.exit_code == 1
    assert " at step " in result.output
    assert "Lower the learning rate and choose another --out" in result.output
    found = TrainingFolder(tmp_path / "out").checkpoints()
    assert found
    assert str(found[-1].folder) in result.output
    assert all(torch.isfinite(t).all() for each in found for t in weights(each.folder).values())
    assert not (tmp_path / "out/config.json").exists()


def test_a_run_that_left_its_base_behind_is_finished_without_a_divergence(
    tmp_path: Path, base: Path, rows: Path
) -> None:
    config = write_config(tmp_path / "c.yml", base, rows, learning_rate=2.0, schedule="constant")
    assert call(config, tmp_path / "out").exit_code == 0
    assert (tmp_path / "out/config.json").is_file()
    assert not (tmp_path / "out/divergence.json").exists()
    assert read_experts_file(tmp_path / "out/experts.yml").facts() == {}


@contextmanager
def file_limit(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("room", [20_000, 600_000], ids=["weights", "optimizer"])
def test_a_full_disk_leaves_no_half_checkpoint_and_the_run_can_go_on(
    tmp_path: Path, base: Path, rows: Path, room: int
) -> None:
    size = (base / "model.safetensors").stat().st_size
    assert 20_000 < size < 600_000 < 2 * size
    config = write_config(tmp_path / "c.yml", base, rows, measure=False)
    out = tmp_path / "out"
    with file_limit(room):
        result = call(config, out)
    assert result.exit_code == 1
    assert "cannot be written" in result.output
    assert "Make room and run the same command again" in result.output
    assert list((out / "checkpoints").iterdir()) == []
    assert call(config, out).exit_code == 0
    assert (out / "config.json").is_file()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"question": "w1"}', "line 2: no field 'reply'; it has question"),
        ('{"question": "w1", "replay": "w2"}', "no field 'reply'; did you mean 'replay'?"),
        ('{"question": "w1", "reply": null}', "line 2: field 'reply' is empty"),
        ('{"question": "w1", "reply": ["w2"]}', "line 2: field 'reply' is ['w2']; it must be text"),
        ("[1]", "line 2: not an object"),
        ("{", "line 2: not JSON"),
    ],
)
def test_a_row_without_its_fields_is_named_by_file_line_and_field(
    tmp_path: Path, base: Path, line: str, said: str
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"question": "w1", "reply": "w2"}\n' + line + "\n")
    result = call(write_config(tmp_path / "c.yml", base, rows), tmp_path / "out")
    assert result.exit_code == 2
    assert str(rows) in result.output
    assert said in result.output
    assert not (tmp_path / "out").exists()


def test_many_faulty_rows_are_counted(tmp_path: Path, base: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"question": "w1"}\n' * 9)
    result = call(write_config(tmp_path / "c.yml", base, rows), tmp_path / "out")
    assert result.output.count("no field") == 5
    assert "and 4 more lines" in result.output


def test_a_hub_data_set_without_the_field_is_named(tmp_path: Path, base: Path, rows: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "rows.jsonl").write_text(rows.read_text())
    source = {"hub": str(folder), "prompt": "{question}", "answer": "{replies}"}
    result = call(write_config(tmp_path / "c.yml", base, [source]), tmp_path / "out")
    assert result.exit_code == 2
    assert "has no field 'replies'; did you mean 'reply'?" in result.output


def test_where_on_a_hub_data_set_goes_by_text_as_in_a_file(tmp_path: Path, base: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    rows = [{"prompt": "w1", "answer": f"w{n}", "of": {"level": n % 2}} for n in range(8)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = {"where": {"of.level": "1"}}
    for source in ({"hub": str(folder)}, {"path": str(folder / "rows.jsonl")}):
        config = write_config(tmp_path / "c.yml", base, [{**source, **given}], samples=4)
        mix = mix_rows(read_config(str(config), ["held_out=0"]))
        assert {row[1]["content"] for row in mix.train} == {"w1", "w3", "w5", "w7"}
    source = {"hub": str(folder), "where": {"of.levle": "1"}}
    result = call(write_config(tmp_path / "c.yml", base, [source]), tmp_path / "out")
    assert result.exit_code == 2
    assert "where: no field 'of.levle'" in result.output


def test_chat_needs_a_template(tmp_path: Path, base: Path, rows: Path) -> None:
    config = write_config(tmp_path / "c.yml", base, rows, template="chat")
    result = call(config, tmp_path / "out")
    assert result.exit_code == 2
    assert "its tokenizer has no chat template; write template: plain" in result.output


def test_a_base_with_an_adapter_is_refused(tmp_path: Path, base: Path, rows: Path) -> None:
    config = write_config(tmp_path / "c.yml", base, rows, regime={"kind": "lora"}, measure=False)
    assert call(config, tmp_path / "adapter").exit_code == 0
    result = call(config, tmp_path / "out", f"base={base}+{tmp_path / 'adapter'}")
    assert result.exit_code == 2
    assert "is a base with an adapter; merge it first" in result.output


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["regime={kind: frozen, layers: '7'}"], "layer 7 does not exist"),
        (["regime={kind: frozen}"], "nothing is frozen: name layers, or set outside to false"),
        (["regime={kind: disjoint, role: task}"], "leave no middle in 4 layers"),
        (["regime={kind: lora, targets: [q_prj]}"], "no module 'q_prj'; did you mean 'q_proj'?"),
        (["batch_size=6", "micro_batch_size=4"], "not a multiple of micro_batch_size 4"),
        (["report_to=[wandb_is_not_here]"], "report_to: wandb_is_not_here is not installed"),
        (["held_out=40"], "has 40 usable rows, and 40 of them would be held out"),
        (["max_length=8", "data=[]"], "data is empty"),
        (["learning_rat=1"], "unknown key 'learning_rat'; did you mean 'learning_rate'?"),
        (["regime={kind: lor}"], "regime.kind is 'lor'; it must be one of full, lora, prefix"),
        (["regime={rank: 3}"], "regime.kind is missing"),
        (["regime={kind: disjoint}"], "regime.role is missing"),
        (["regime={kind: lora, rank: 0}"], "regime.rank"),
        (["packing=true"], "unknown key 'packing'"),
        (["data=[{prompt: '{a}'}]"], "data.0: name one of path, hub, pocket, config"),
        (["data=[{path: nowhere.jsonl}]"], "nowhere.jsonl: no such file"),
        (["samples"], "write NAME=VALUE"),
        (["select={tasks: [layerswap_mgsm_ws]}"], "layerswap_mgsm_ws"),
        (["select={tasks: [a]}", "regime={kind: lora, dora: true}"], "no prefix and no DoRA"),
    ],
)
def test_wrong_settings_exit_2_and_write_nothing(
    tmp_path: Path, base: Path, rows: Path, settings: list[str], said: str
) -> None:
    config = write_config(tmp_path / "c.yml", base, rows)
    result = call(config, tmp_path / "out", *settings)
    assert result.exit_code == 2, result.output
    assert said in result.output
    assert not (tmp_path / "out/config.json").exists()
    assert not (tmp_path / "out/checkpoints").exists()


def test_an_unknown_configuration_is_answered_with_the_nearest(tmp_path: Path) -> None:
    result = call(Path("swahil_1"), tmp_path / "out")
    assert result.exit_code == 2
    assert "did you mean 'experts/swahili_1.yml'?" in result.output
