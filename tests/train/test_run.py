"""A run that is ended goes on to the same weights; of its checkpoints the best become experts."""

import json
import re
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import BatchSampler, SequentialSampler

from ablations.machine.fingerprint import fingerprint_checkpoint
from ablations.models.find import find_model
from ablations.scoring.evaluation import Evaluation, EvaluationRequest, TaskScore
from ablations.study.files import read_experts_file
from ablations.train import select
from ablations.train import trainer as training
from ablations.train.config import Select
from ablations.train.divergence import measure_divergence
from ablations.train.folder import (
    read_training_record,
    step_of,
    whole_checkpoints,
    write_training_record,
)
from ablations.train.rows import IGNORED
from ablations.train.run import token_lines
from ablations.train.trainer import _fillers
from layerswap_method.errors import LayerSwapError
from tests.kills import ENVIRONMENT, kill_when, start
from tests.standins.command import layerswap
from tests.standins.fine_tunes import train_adapter
from tests.standins.fresh_engines import evaluate_cold
from tests.standins.oracle import stored
from tests.standins.scripted import DATA, write_jsonl
from tests.standins.terminal import Terminal
from tests.standins.word_models import write_model
from tests.train.conftest import call, equal_weights, run, write_base, write_config, write_rows
from tests.waiting import wait_until

EVERY_STEP = {"save_strategy": "steps", "save_steps": 1}


def steps(out):
    return [step_of(checkpoint) for checkpoint in whole_checkpoints(out)]


def distance(one, other):
    """Return the squared distance of two experts' weights, as vectors."""
    assert set(one) == set(other)
    return sum(float((one[name] - other[name]).square().sum()) for name in one)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"regime": "full"},
        {"regime": "lora", "lora": {"r": 4, "lora_dropout": 0.2}},
        {"regime": {"kind": "adapter_fusion", "experts": {"a": "a", "b": "b"}}},
    ],
    ids=["full", "lora", "fusion"],
)
def test_a_run_ended_by_sigkill_goes_on_to_the_same_weights(
    tmp_path, base, rows, changes, monkeypatch
):
    monkeypatch.chdir(tmp_path)  # where the experts of the fusion are
    for seed, name in enumerate("ab" if "experts" in changes["regime"] else ""):
        train_adapter(base, tmp_path / name, seed, target_modules=["q_proj"])
    trainer = {"save_strategy": "steps", "save_steps": 5}
    config = write_config(tmp_path / "c.yml", base, rows, samples=200, trainer=trainer, **changes)
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    command = [sys.executable, "-c", "from ablations.cli import main; main()", "train", str(config)]
    subprocess.run([*command, "--out", str(undisturbed)], check=True, env=ENVIRONMENT)
    code = kill_when(start([*command, "--out", killed]), lambda: len(steps(killed)) >= 3)
    assert code == -signal.SIGKILL, "it was over before it could be ended"
    assert not (killed / "experts.yml").exists()
    again = [*command, "--out", str(killed)]
    done = subprocess.run(again, check=True, capture_output=True, text=True, env=ENVIRONMENT)
    assert "going on from" in done.stderr
    assert steps(killed) == list(range(5, 51, 5))
    assert equal_weights(undisturbed, killed)
    for step in steps(killed):
        name = f"checkpoints/checkpoint-{step}"
        assert equal_weights(undisturbed / name, killed / name)


@pytest.mark.slow
def test_training_says_how_far_it_is_on_a_terminal_and_in_a_log_file(tmp_path, base, rows):
    trainer = {"save_strategy": "epoch", "logging_steps": 1000}
    step = r"training OUT \d+/STEPS steps, \S+ steps/s, \d+:\d\d:\d\d left"
    # Far more steps than are done before the key is pressed; few where all are waited for.
    config = write_config(tmp_path / "long.yml", base, rows, samples=40_000, trainer=trainer)
    with Terminal("train", str(config), "--out", str(tmp_path / "drawn")) as command:
        pattern = step.replace("OUT", "drawn").replace("STEPS", "10000")
        wait_until(lambda: re.search(pattern, command.text) or command.has_ended())
        command.press_ctrl_c()
        wait_until(command.has_ended)
        assert command.code == 130
        assert "Interrupted. Nothing was finished yet" in command.text
    code = "from ablations.machine import progress; from ablations.cli import main; "
    code += "progress.FIRST_LINE_S = progress.NEXT_LINE_S = 0.2; main()"
    config = write_config(tmp_path / "short.yml", base, rows, samples=2000, trainer=trainer)
    words = ["train", str(config), "--out", str(tmp_path / "logged")]
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=True)
    lines = [line for line in done.stderr.splitlines() if "so far" in line or "left" in line]
    pattern = step.replace("OUT", "logged").replace("STEPS", "500")
    assert any(re.fullmatch(pattern, line) for line in lines), lines
    assert "\x1b" not in done.stderr


def stop_at(config, out, step):
    """Train until something fails after a step."""

    def stop(self, args, state, control, logs, **_):
        if state.global_step == step:
            raise LayerSwapError("stopped")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training._Watch, "on_log", stop)
        with pytest.raises(LayerSwapError, match="stopped"):
            run(config, out)


@pytest.mark.parametrize(
    "kind",
    ["Llama", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("GPTNeoX", "Mixtral"))],
)  # two with other names in files
def test_a_stopped_run_goes_on_from_the_last_whole_checkpoint(tmp_path, kind, rows):
    base = write_base(tmp_path / "base", kind=kind, says_special=True, num_local_experts=2)
    trainer = {**EVERY_STEP, "save_total_limit": 3}
    config = write_config(tmp_path / "c.yml", base, rows, trainer=trainer)
    whole, out = tmp_path / "whole", tmp_path / "out"
    run(config, whole)
    assert steps(whole) == [2, 3, 4]
    assert not [*whole.rglob("optimizer.pt"), *whole.rglob("*.bin")]
    stop_at(config, out, 3)
    assert [p.parent.name for p in out.rglob("optimizer.pt")] == ["checkpoint-2"]
    # As if it had been killed while the third checkpoint was being written.
    half = out / "checkpoints/checkpoint-3"
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half")
    (half / "trainer_state.json").write_text('{"global_step"')
    assert steps(out) == [1, 2]
    run(config, out)
    assert steps(out) == [2, 3, 4]
    assert equal_weights(out, whole)
    assert (out / "model.safetensors").stat().st_mode == (out / "config.json").stat().st_mode


@pytest.mark.parametrize("regime", ["full", {"kind": "lora", "merge": True}], ids=["full", "lora"])
def test_generation_settings_that_cannot_be_saved_are_copied_as_they_are(tmp_path, rows, regime):
    """Those of Llama 2 and Vicuna: transformers refuses them when it saves, after all steps."""
    base = write_base(tmp_path / "base")
    settings = '{"do_sample": false, "temperature": 0.6, "eos_token_id": 2}'
    (base / "generation_config.json").write_text(settings)
    run(write_config(tmp_path / "c.yml", base, rows, regime=regime), tmp_path / "out")
    assert (tmp_path / "out/generation_config.json").read_text() == settings
    if regime == "full":
        (checkpoint,) = whole_checkpoints(tmp_path / "out")
        assert (checkpoint / "generation_config.json").read_text() == settings


def test_files_of_the_user_in_the_folder_of_a_run_stay(tmp_path, base, rows, caplog):
    config, out = write_config(tmp_path / "c.yml", base, rows, trainer=EVERY_STEP), tmp_path / "out"
    stop_at(config, out, 2)
    mine = {"notes.txt": "mine", "experts.yml": "mine", "tokenizer_config.json": "mine"}
    for name, text in mine.items():
        (out / name).write_text(text)
    run(config, out)
    assert (out / "notes.txt").read_text() == "mine"
    for name in ("experts.yml", "tokenizer_config.json"):
        assert (out / f"{name}.before").read_text() == "mine"
        assert f"{out / name}: is not of the run before" in caplog.text
    assert read_experts_file(out / "experts.yml")


@pytest.mark.parametrize("regime", ["full", "lora"])
def test_a_damaged_checkpoint_is_named(tmp_path, base, rows, regime):
    config = write_config(tmp_path / "c.yml", base, rows, trainer=EVERY_STEP, regime=regime)
    stop_at(config, tmp_path / "out", 2)
    (file,) = (tmp_path / "out/checkpoints/checkpoint-1").glob("*model.safetensors")
    shutil.copytree(file.parent, f"{file.parent}-9")
    for name in ("rng_state.pth", "scheduler.pt", "optimizer.pt", file.name):
        (file.parent / name).write_bytes(b"half")
        result = call(config, tmp_path / "out")
        assert (result.exit_code, "if it is damaged, remove" in result.output) == (2, True)
    assert "refuses these" in call(config, tmp_path / "o", "trainer.optim=adamw_8bit").output


def test_a_diverging_loss_stops_with_the_step_and_keeps_the_last_good_checkpoint(
    tmp_path, base, rows
):
    # AdamW's steps are as large as the rate: weights of 1e30 overflow within a step or two.
    trainer = {"max_grad_norm": 1e30, "learning_rate": 1e30, "lr_scheduler_type": "constant"}
    trainer |= {**EVERY_STEP, "logging_steps": 50}
    config, out = write_config(tmp_path / "c.yml", base, rows, trainer=trainer), tmp_path / "out"
    result = call(config, out)
    assert (result.exit_code, " at step " in result.output) == (1, True)
    assert "Lower the learning rate and choose another --out" in result.output
    checkpoints = whole_checkpoints(out)
    assert str(checkpoints[-1]) in result.output
    assert all(torch.isfinite(t).all() for c in checkpoints for t in stored(c).values())
    assert not (out / "config.json").exists()


def test_a_run_that_left_its_base_behind_is_measured_and_told(tmp_path, base, rows):
    """Its base was said not to be its base, though it had just been trained from it."""
    trainer = {"learning_rate": 2.0, "lr_scheduler_type": "constant"}
    config, out = tmp_path / "c.yml", tmp_path / "out"
    result = call(write_config(config, base, rows, trainer=trainer, measure=True), out)
    assert (result.exit_code, (out / "config.json").is_file()) == (0, True)
    assert "out was trained so far from" in result.output
    norm = json.loads((out / "divergence.json").read_text())["relative_norm"]
    assert norm > 0.7
    assert next(iter(read_experts_file(out / "experts.yml").facts().values()))["drift"] > 0
    assert layerswap("delta", out, "--base", base, "--out", tmp_path / "delta").exit_code == 2


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
    assert (result.exit_code, "cannot be written" in result.output) == (1, True)
    assert "Make room and run the same command again" in result.output
    assert list((out / "checkpoints").iterdir()) == []
    assert call(config, out).exit_code == 0
    assert (out / "config.json").is_file()


def test_a_finished_run_is_left_as_it_is_and_its_folder_belongs_to_it(tmp_path, base, rows, caplog):
    config, out = write_config(tmp_path / "c.yml", base, rows), tmp_path / "out"
    run(config, out)
    files = [path for path in out.rglob("*") if path.is_file() and ".lock" not in path.name]
    before = [path.stat().st_mtime_ns for path in files]
    with caplog.at_level("INFO", logger="ablations"):  # no weight depends on these
        run(config, out, "trainer.logging_steps=3", "trainer.save_steps=2")
    assert [path.stat().st_mtime_ns for path in files] == before
    assert "nothing to do" in caplog.text
    other = write_rows(tmp_path / "r.jsonl", shift=2)
    base_differs = "the base is another: its weights, config or tokenizer differ"
    rows_differ = "the rows are others: a file or a data set has changed, or data names others"
    for setting, text in {
        "trainer.learning_rate=0.5": "trainer.learning_rate is 0.001 there and 0.5 here",
        "trainer.optim=adafactor": 'trainer.optim is not set there and "adafactor" here',
        "seed=3": "seed is 0 there and 3 here",
        "regime=lora": 'regime.kind is "full" there and "lora" here',
        f"data=[{{path: {other}, prompt: '{{question}} ', answer: '{{reply}}'}}]": rows_differ,
        f"base={write_base(tmp_path / 'b', seed=1)}": base_differs,
    }.items():
        result = call(config, out, setting)
        assert result.exit_code == 2
        assert "holds a run of other settings; choose another --out" in result.output
        assert text in result.output
        assert ("the rows" in result.output) == (text == rows_differ)
    other = "select={tasks: [layerswap_mgsm_sw]}"
    results = (call(config, tmp_path), call(config, out, other), call(config, tmp_path / "base"))
    texts = ("not a training folder", "another select", "the name base is reserved")
    for result, text in zip(results, texts, strict=True):
        assert (result.exit_code, text in result.output) == (2, True)


@pytest.mark.parametrize("was_hashed", [False, True])
def test_a_base_that_got_an_end_of_answers_is_the_same(was_hashed, tmp_path, rows, caplog):
    """As a warning of the training asks for; records once had a hash of that file, too."""
    base = write_base(tmp_path / "base")
    config, out = write_config(tmp_path / "c.yml", base, rows, regime="lora"), tmp_path / "out"
    run(config, out)
    settings = base / "generation_config.json"
    settings.write_text('{"eos_token_id": [1, 2]}')
    if was_hashed:
        record = read_training_record(out)
        record["identity"]["base_weights"] = fingerprint_checkpoint(base)
        write_training_record(out, record)
    with caplog.at_level("INFO", logger="ablations"):
        run(config, out)
    assert "nothing to do" in caplog.text
    (found,) = measure_divergence([find_model(f"{base}+{out}")], find_model(str(base)), [])
    assert found.relative_norm > 0


def test_a_base_beside_the_training_file_is_taken_and_an_adapter_is_named_with_it(
    tmp_path, base, rows, monkeypatch
):
    """As the rows are, and as `layerswap init train` says."""
    (tmp_path / "above/files").mkdir(parents=True)
    (tmp_path / "above/base").symlink_to(base)
    (tmp_path / "base").mkdir()  # one of the working directory, which is not meant
    monkeypatch.chdir(tmp_path)
    file = write_config(Path("above/files/tr.yml"), "../base", rows, regime="lora")
    result = call(file, Path("x"))
    assert result.exit_code == 0, result.output
    reference = "above/files/../base+x"
    assert f"expert: {reference}\n" in result.output
    described = layerswap("delta", reference, "--base", "above/base", "--out", "d")
    assert described.exit_code == 0, described.output
    # What the command line says is from the working directory.
    assert f"{tmp_path / 'base'}: cannot load" in call(file, Path("y"), "base=base").output


def test_an_adapter_names_the_commit_of_its_base_of_the_hub(tmp_path, base, rows, monkeypatch):
    """By which peft's AutoPeftModel loads it: the newest may have other weights."""
    folder = tmp_path / "hub" / "models--org--base"
    shutil.copytree(base, folder / "snapshots" / "0123abc")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("0123abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    run(write_config(tmp_path / "c.yml", "org/base", rows, regime="lora"), tmp_path / "out")
    document = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    named = document["base_model_name_or_path"], document["revision"]
    assert named == ("org/base", "0123abc")


def test_a_setting_that_failed_does_not_bind_the_folder(tmp_path, base, rows):
    config, out = write_config(tmp_path / "c.yml", base, rows), tmp_path / "out"
    assert call(config, out, "regime={kind: frozen, layers: '7'}").exit_code == 2
    assert call(config, out).exit_code == 0  # the same command, corrected


def test_micro_batches_do_not_change_what_is_learned(tmp_path, base, rows):
    after = []
    for micro in (4, 1):
        trainer = {"per_device_train_batch_size": micro}
        config = write_config(tmp_path / "c.yml", base, rows, trainer=trainer, max_length=16)
        run(config, tmp_path / f"micro-{micro}")
        after.append(stored(tmp_path / f"micro-{micro}"))
    # As vectors: where a gradient is nearly 0, AdamW's step has the sign of the rounding.
    assert distance(*after) < 1e-4 * distance(after[0], stored(base))


def test_no_row_is_learned_twice_where_processes_do_not_divide_the_rows():
    rows = [{"input_ids": [n], "labels": [n]} for n in range(10)]
    filled = [*rows, *_fillers(rows, 8)]
    learned = []
    for process in range(2):
        batches = BatchSampler(SequentialSampler(filled), 4, drop_last=False)
        for batch in BatchSamplerShard(batches, 2, process):
            learned += [n for at in batch for n in filled[at]["labels"] if n != IGNORED]
    assert sorted(learned) == [*range(10)]


@pytest.mark.slow
@pytest.mark.parametrize(("regime", "samples"), [("full", 16), ("lora", 16), ("full", 13)])
def test_accelerate_launch_with_two_processes(tmp_path, base, rows, regime, samples):
    more = {"trainer": {"save_strategy": "steps", "save_steps": 2}, "samples": samples}
    config = write_config(tmp_path / "c.yml", base, rows, regime=regime, **more)
    programs = Path(sys.executable).parent
    if not (programs / "layerswap").is_file():
        pytest.skip("the package is not installed in this environment")
    together, alone = tmp_path / "together", tmp_path / "alone"
    # --multi_gpu is what starts several processes; without a GPU they compute on the processor.
    launch = "launch --multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no"
    launch += " --dynamo_backend no --main_process_port 0 --no_python"
    command = [programs / "accelerate", *launch.split(), programs / "layerswap", "train", config]
    subprocess.run([*command, "--out", together], check=True, env=ENVIRONMENT)
    assert json.loads((together / "training.json").read_text())["processes"] == 2
    run(config, alone)
    assert steps(together) == steps(alone) == [2, 4]
    one, two, first = stored(alone), stored(together), stored(whole_checkpoints(alone)[0])
    assert distance(one, two) < 1e-3 * distance(one, first)


@pytest.mark.slow
@pytest.mark.parametrize("regime", ["full", "lora"])
def test_the_best_checkpoints_are_kept(tmp_path, tiny_pocket, regime):
    include, out = str(tiny_pocket.tasks_dir), tmp_path / "out"
    trainer = {"save_strategy": "steps", "save_steps": 3, "learning_rate": 0.02}
    names = ("pocket_math_en", "pocket_facts_sw", "pocket_facts_en")
    how = {"tasks": [names[0], [*names[1:]]], "include_path": include, "limit": 12}
    how |= {"keep": 2, "backend": "hf"}
    sizes = {"samples": 48, "max_length": 256, "regime": regime, "trainer": trainer, "select": how}
    config = write_config(tmp_path / "c.yml", tiny_pocket.base, [{"pocket": "task"}], **sizes)
    record = run(config, out)
    rows = record["selection"]
    assert rows == sorted(rows, key=lambda row: -row["score"])
    assert [row["kept"] for row in rows] == [True, True, False, False]
    assert set(steps(out)) == {row["step"] for row in rows if row["kept"]}
    best = rows[0]
    assert record["step"] == best["step"]
    assert equal_weights(out / f"checkpoints/checkpoint-{best['step']}", out)
    assert json.loads((out / "training.json").read_text())["selection"] == rows
    if regime == "full":
        request = EvaluationRequest(tasks=names, include_path=tiny_pocket.tasks_dir, limit=12)
        cold = evaluate_cold(out, request)
        math, one, other = (cold.shown_score(name).value for name in names)
        assert best["score"] == pytest.approx((math + (one + other) / 2) / 2)


def test_checkpoints_above_the_base_on_the_secondary_tasks_come_first(base, tmp_path, monkeypatch):
    table = {"base": (0.0, 0.5)}  # what the engine, real above and below, says of tasks a and b
    table |= {"checkpoint-1": (0.9, 0.4), "checkpoint-2": (0.6, 0.6)}
    table |= {"checkpoint-3": (0.7, 0.7), "checkpoint-4": (0.7, 0.9)}

    def evaluate(stream, request):
        score = TaskScore(
            task="a",
            metric="acc",
            filter="none",
            value=0.0,
            is_share=True,
            interval=None,
            stderr=None,
            n=1,
            higher_is_better=True,
        )
        scores = tuple(
            score.model_copy(update={"task": task, "value": value})
            for task, value in zip("ab", table[stream], strict=True)
        )
        facts = {"task_versions": {}, "num_fewshot": {}, "versions": {}, "elapsed_s": 0.0}
        return Evaluation(model=stream, backend="hf", scores=scores, **facts)

    engine = SimpleNamespace(evaluate=evaluate, check=lambda: None, close=lambda: None)
    monkeypatch.setattr(select, "LiveEvaluator", lambda *_: engine)
    monkeypatch.setattr(select, "merge_of_one", lambda model: model.folder.name)
    folders = [tmp_path / name for name in table if name != base.name]
    wanted = Select(tasks=("a",), secondary=("b",))
    best, rows = select.select_checkpoint(folders, wanted, None, base, are_adapters=False)
    assert best.name == "checkpoint-3"
    assert [row["step"] for row in rows] == [3, 4, 2, 1]
    assert [row["kept"] for row in rows] == [True, True, True, False]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["math_1", "swahili_1"])
def test_a_shipped_selection_runs_on_a_stand_in(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base = write_model(tmp_path / "base", max_position_embeddings=4096, dtype=torch.bfloat16)
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"prompt": "w1 ", "answer": "w2"}] * 12)
    settings = [
        f"base={base}",
        f"data=[{{path: {rows}}}]",
        "samples=8",
        "held_out=0",
        "measure=false",
        "trainer.save_steps=1",
        "trainer.bf16=false",
        f"select.data_dir={DATA}",
        "select.limit=2",
        "select.backend=hf",
    ]
    selection = run(name, tmp_path / "out", *settings)["selection"]
    tasks = {score["task"] for score in selection[0]["tasks"]}
    assert "layerswap_mgsm_en" in tasks or "layerswap_flores_en-sw" in tasks
    assert "layerswap_mbpp_sw" not in tasks  # no program runs without --allow-code-execution
    assert sum(row["kept"] for row in selection) == min(3, len(selection))


def test_a_dry_run_says_rows_steps_and_memory_and_writes_nothing(tmp_path, base):
    reply = " ".join(f"w{number}" for number in range(10))
    file = write_jsonl(tmp_path / "rows.jsonl", [{"question": "w1 w2", "reply": reply}] * 20)
    config = write_config(tmp_path / "mine.yml", base, file, max_length=8)
    out = tmp_path / "out"
    result = layerswap("train", config, "--out", out, "--dry-run")
    assert result.exit_code == 0, result.output
    assert not out.exists()
    text = " ".join(result.stdout.split())
    assert "rows.jsonl: 16 rows" in text
    assert "16 rows of 128 tokens in all, 96 of them learned" in text
    assert "4 steps of 4 rows, 4 at once, about 32 tokens a step" in text
    assert len(re.findall(r"needs about [\d.]+ [kMG]B of memory, 4 rows at once", text)) == 1
    assert "of memory" not in result.stderr
    assert text.endswith("'w1' 'w2' [ 'w0' 'w1' 'w2' 'w3' 'w4' 'w5' ]")  # the rest was cut
    assert "16 of 16 rows are longer than max_length (8 tokens) and were cut" in result.stderr
    (out / "other").mkdir(parents=True)
    refused = layerswap("train", config, "--out", out, "--dry-run")
    assert (refused.exit_code, "is not a training folder" in refused.stderr) == (2, True)
    refused = layerswap("train", config, "--out", out, "--dry-run", "--json")
    assert (refused.exit_code, "--dry-run prints no JSON" in refused.output) == (2, True)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("warmup_steps: 4", None),
        ("warmup_steps: 5, lr_scheduler_type: constant", None),
        (
            "warmup_steps: 5",
            "4 steps: too few for the 5 of warm-up, so the learning rate never reaches 0.001; set "
            "trainer.warmup_steps lower",
        ),
        (
            "warmup_steps: 2, lr_scheduler_type: warmup_stable_decay, "
            "lr_scheduler_kwargs: {num_decay_steps: 3}",
            "4 steps: too few for the 2 of warm-up and 3 of decay, so the learning rate falls at "
            "once; set trainer.warmup_steps and lr_scheduler_kwargs.num_decay_steps lower",
        ),
    ],
)
def test_a_run_too_short_for_its_warm_up_is_warned_of(
    tmp_path, base, rows, options, text, monkeypatch
):
    """As a shipped file is with fewer samples, whose warm-up is that of its own."""

    def load_base(*_):
        raise LayerSwapError("the model is loaded")

    monkeypatch.setattr(training, "load_base", load_base)
    trainer = yaml.safe_load(f"{{{options}}}")
    config = write_config(tmp_path / "c.yml", base, rows, trainer=trainer)
    for words in ((), ("--dry-run",)):
        result = layerswap("train", config, "--out", tmp_path / "out", *words)
        assert (result.exit_code == 0) == bool(words)
        assert words or "the model is loaded" in result.stderr
        said = " ".join(result.stderr.split())
        assert text in said if text else "warm-up" not in said


def test_no_token_is_broken_at_the_end_of_a_line():
    tokens = [repr(f" a word {number}") for number in range(40)]
    text = token_lines(tokens)
    assert max(map(len, text.splitlines())) <= 100
    assert all(token in text for token in tokens)
    assert text.count("\n") > 3


@pytest.mark.slow
def test_training_prints_what_the_next_command_takes_as_json(tmp_path, base, rows):
    config = write_config(tmp_path / "mine.yml", base, rows, regime="lora", lora={"r": 2})
    out = tmp_path / "out"
    result = layerswap("train", config, "--out", out, "--json")
    assert result.exit_code == 0, result.output
    made = json.loads(result.stdout)
    assert list(made) == ["expert", "experts_file", "facts", "losses"]
    assert (made["expert"], made["experts_file"]) == (f"{base}+{out}", str(out / "experts.yml"))
    assert [row["step"] for row in made["losses"]] == [1, 2, 3, 4]
