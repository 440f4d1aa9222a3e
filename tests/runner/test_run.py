"""Whole runs with transformers on random experts: live engine, checkpoints, faults, CLI."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from ablations.cli import main
from ablations.engines.in_place import HfEngine
from ablations.runner import records
from ablations.runner.run import RunOptions, RunResult, dry_run, run_study
from layerswap_method.errors import InputError
from tests.runner.fakes import scores_by_label
from tests.standins.studies import study_document, write_expert, write_yaml
from tests.standins.tasks import write_task
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]

STUDY = {"baseline": ["base", "task_expert", "soup", "ties"], "vary": {"bottom_layers": [0, 1]}}


def run(tmp_path: Path, experts: Path, name: str, document=None, **options) -> RunResult:
    study = write_yaml(tmp_path / "small.yml", document or study_document(**STUDY))
    places = {"out": tmp_path / name, "answers": tmp_path / f"{name}-answers"}
    chosen = RunOptions(experts=experts, backend="hf", **places | options)
    return run_study(str(study), chosen)


@pytest.fixture
def mixed(tmp_path: Path, models: Path) -> Path:
    """Return an experts file: the base and a task expert in float16, the language in bfloat16."""
    dtypes = {"base": torch.float16, "math": torch.float16, "swahili": torch.bfloat16}
    for seed, (name, dtype) in enumerate(dtypes.items()):
        write_expert(tmp_path / name, seed, dtype=dtype)
    setting = {"experts": {name: str(tmp_path / name) for name in dtypes}}
    return write_yaml(tmp_path / "mixed.yml", setting | {"include_path": str(models / "tasks")})


@pytest.mark.slow
def test_a_live_engine_and_checkpoints_give_the_same_records(tmp_path: Path, mixed: Path) -> None:
    experts = mixed  # all of them run in the dtype of the base
    live = run(tmp_path, experts, "live")
    assert not live.summary.failed
    cold = run(tmp_path, experts, "cold", materialize=True)
    assert not cold.summary.failed
    found = scores_by_label(tmp_path / "live")
    assert len(found) == 6
    assert len({samples for _, samples in found.values()}) > 3  # the cells do differ
    assert found == scores_by_label(tmp_path / "cold")
    by_label = {cell.label: cell for cell in records.load_run(live.out).cells}
    assert list(by_label)[:4] == ["base", "task_expert", "soup", "ties"]
    assert {c.provenance["weights"] for c in records.load_run(cold.out).cells} == {"checkpoint"}
    assert by_label["soup"].provenance["weights"] == "streamed"
    assert by_label["ties"].provenance["weights"] == "merged by mergekit-yaml, then streamed"
    assert not any("fallback" in cell.provenance for cell in by_label.values())
    starts = [cell.timing_s.get("start", 0) > 1e-3 for cell in by_label.values()]
    assert sum(starts) == 1
    assert by_label["bottom_layers=1"].plan.sources == ("language", "task", "task", "language")
    assert not list((tmp_path / "cold" / ".work").iterdir())  # nothing is left on disk
    for file in (live.out / "run.json", *live.out.glob("records/*"), *cold.out.glob("records/*")):
        assert str(tmp_path) not in file.read_text(encoding="utf-8")  # a run can be handed on

    options = RunOptions(experts=experts, out=tmp_path / "live", backend="hf")
    text = dry_run(str(tmp_path / "small.yml"), options)
    assert text.count("  finished") == 6
    assert "cost: none; every task of these cells is finished" in text
    again = run(tmp_path, experts, "live")
    assert not again.summary.evaluated
    assert len(again.summary.before) == 6


@pytest.mark.slow
def test_an_expert_that_disappears_and_a_task_that_raises(
    tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the cells cannot be done; the others are, and a rerun does exactly the rest."""
    for name in ("base", "math", "swahili", "telugu", "tasks"):
        shutil.copytree(models / name, tmp_path / name)
    names = ("base", "math", "swahili", "telugu")
    setting = {"experts": {name: str(tmp_path / name) for name in names}}
    experts = write_yaml(
        tmp_path / "experts.yml", setting | {"include_path": str(tmp_path / "tasks")}
    )
    data = tmp_path / "tasks" / "data.jsonl"
    sound = (tmp_path / "tasks" / "words_te.yaml").read_bytes()
    metric = {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}
    broken = [metric | {"regexes_to_ignore": 5}]  # seen when answers are scored, and not before
    write_task(tmp_path / "tasks", "words_te", data, metric_list=broken)
    document = study_document(
        experts={"task": ["math"], "language": {"sw": ["swahili"], "te": ["telugu"]}},
        evaluate={"tasks": [], "languages": {"sw": ["words_sw"], "te": ["words_te"]}},
        vary={"bottom_layers": [1, 2]},
        baseline=[],
    )
    first = run(tmp_path, experts, "run", document)
    assert len(first.summary.evaluated) == 2
    assert sorted(first.summary.failed) == [
        "math+telugu layer swap b=1 u=1",
        "math+telugu layer swap b=2 u=1",
    ]
    assert all("TypeError" in error for error in first.summary.failed.values())
    assert "Run the same command again to retry the cells that failed." in first.report()

    (tmp_path / "tasks" / "words_te.yaml").write_bytes(sound)
    hidden = tmp_path / "hidden"
    original = records.write_record

    def write_then_hide(*args: Any) -> None:  # the expert goes after the first cell
        original(*args)
        if (tmp_path / "telugu").exists():
            (tmp_path / "telugu").rename(hidden)

    monkeypatch.setattr(records, "write_record", write_then_hide)
    second = run(tmp_path, experts, "run2", document)
    monkeypatch.undo()
    assert len(second.summary.evaluated) == 2
    assert all("has disappeared" in error for error in second.summary.failed.values())
    hidden.rename(tmp_path / "telugu")
    third = run(tmp_path, experts, "run2", document)
    assert sorted(third.summary.evaluated) == sorted(second.summary.failed)
    undisturbed = run(tmp_path, experts, "undisturbed", document)
    assert not undisturbed.summary.failed
    assert scores_by_label(tmp_path / "run2") == scores_by_label(tmp_path / "undisturbed")


@pytest.mark.slow
def test_a_model_that_cannot_be_swapped_in_goes_through_a_checkpoint(
    tmp_path: Path, other_generation: Path
) -> None:
    """The task expert has another generation config than the base, which a live engine keeps.

    Config and tokenizer of mergekit's `linear` and `slerp` come from an expert here.
    """
    recipe = study_document()["recipe"] | {"base_model": "task", "merge_method": "slerp"}
    recipe["parameters"] = {"t": 0.5}
    baseline = ["base", "task_expert", "soup"]
    document = study_document(baseline=baseline, recipe=recipe, vary={"t": [0.3]})
    result = run(tmp_path, other_generation, "run", document)
    assert not result.summary.failed
    base, *others = records.load_run(result.out).cells
    assert base.provenance["weights"] == "streamed"
    for cell in others:
        assert cell.provenance["weights"] == "checkpoint"
        assert "generation_config.json (bos_token_id)" in cell.provenance["fallback"]
    assert len(others) == 3


@pytest.mark.slow
def test_experts_of_other_vocabularies_where_all_rows_come_from_one(
    tmp_path: Path, models: Path
) -> None:
    """The live engine keeps the base's tokenizer; models with another go through a checkpoint."""
    write_expert(tmp_path / "swahili", 3, more_words=("moja", "mbili"))
    setting = {
        "experts": {
            "base": str(models / "base"),
            "math": str(models / "math"),
            "swahili": str(tmp_path / "swahili"),
        },
        "include_path": str(models / "tasks"),
    }
    experts = write_yaml(tmp_path / "speakers.yml", setting)
    document = study_document(baseline=["base"], vary={"non_layer": ["task", "language", "base"]})
    live = run(tmp_path, experts, "live", document)
    assert not live.summary.failed
    by_label = {cell.label: cell for cell in records.load_run(live.out).cells}
    weights = {label: cell.provenance["weights"] for label, cell in by_label.items()}
    assert weights == {
        **{"base": "streamed", "non_layer=task": "streamed", "non_layer=base": "streamed"},
        "non_layer=language": "checkpoint",
    }
    assert "tokenizer" in by_label["non_layer=language"].provenance["fallback"]
    cold = run(tmp_path, experts, "cold", document, materialize=True)
    assert not cold.summary.failed
    assert scores_by_label(live.out) == scores_by_label(cold.out)


def test_the_folder_of_another_study_is_refused(tmp_path: Path, experts: Path) -> None:
    head = records.RunFile.model_validate(
        {
            "study": {**study_document(), "name": "other"},
            "experts": {},
            "cells": [],
            "num_layers": 4,
            "protocol": "",
            "created": "",
            "versions": {},
        }
    )
    records.write_run_file(tmp_path / "run", head)
    with pytest.raises(InputError, match="holds a run of the study 'other', not of 'small'"):
        run(tmp_path, experts, "run")


@pytest.mark.parametrize(("version", "age"), [(3, "an older"), (5, "a newer")])
def test_a_folder_of_another_schema_is_left_as_it_is(
    tmp_path: Path, experts: Path, version: int, age: str
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text(f'{{"schema_version": {version}}}')
    with pytest.raises(InputError, match=f"by {age} layerswap .*left as it is.* another folder"):
        run(tmp_path, experts, "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["run.json"]


def test_only_chooses_cells(tmp_path: Path, experts: Path) -> None:
    study = str(write_yaml(tmp_path / "small.yml", study_document()))
    options = RunOptions(experts=experts, backend="hf", only=("kind=recipe", "bottom_layers=1"))
    text = dry_run(study, options)
    assert "2 cells (" in text
    assert "cost: 2 evaluations for 2 cells" in text


INTERRUPTIBLE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
from ablations.cli import main
from ablations.engines.in_place import HfEngine
main()
"""


@pytest.mark.slow
def test_lines_have_the_names_of_the_report(
    tmp_path: Path, experts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The study counts layers of 32; lines name those of the model, and files the study's."""
    vary = [{"bottom_layers": count, "top_layers": 8} for count in (8, 16)]
    study = write_yaml(tmp_path / "small.yml", study_document(vary=vary, reference_layers=32))
    options = RunOptions(experts=experts, out=tmp_path / "run", backend="hf", show_scores=True)
    result = run_study(str(study), options)
    merges = [name for name in result.summary.evaluated if "=" in name]
    assert merges == ["layer swap b=1 u=1", "layer swap b=2 u=1"]
    said = capsys.readouterr().out
    assert all(f"\n{name}  " in said for name in merges)
    labels = [cell.label for cell in records.load_run(result.out).head.cells]
    assert "bottom_layers=8 top_layers=8" in labels


@pytest.mark.slow
def test_an_interrupt_says_that_the_same_command_goes_on(tmp_path: Path, experts: Path) -> None:
    document = study_document(vary={"bottom_layers": [1, 2], "seed": list(range(20))})
    document["recipe"]["parameters"] |= {"placement": "random"}
    study, out = str(write_yaml(tmp_path / "small.yml", document)), tmp_path / "run"
    words = ["run", study, "--experts", str(experts), "--out", str(out), "--backend", "hf"]
    command = [sys.executable, "-c", INTERRUPTIBLE, *words]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: any(out.glob("records/[!.]*")), running=process)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate()
    assert process.returncode == 130, told
    assert told.count("Interrupted. Finished work is saved; the same command goes on") == 1
    assert "resource_tracker" not in told
    assert "Traceback" not in told
    options = RunOptions(experts=experts, out=out, backend="hf")
    assert "  finished" in dry_run(study, options)


@pytest.mark.slow
def test_the_command_line(tmp_path: Path, experts: Path) -> None:
    study = write_yaml(tmp_path / "small.yml", study_document(**STUDY))
    out = tmp_path / "run"
    command = ["run", str(study), "--experts", str(experts), "--out", str(out), "--backend", "hf"]
    result = CliRunner().invoke(main, [*command, "--only", "kind=base"])
    assert result.exit_code == 0, result.output
    assert "1 cell evaluated, 0 failed" in result.output
    assert "5 cells of the study have not been run yet." in result.output
    assert len(records.load_run(out).cells) == 1
    write_expert(tmp_path / "deep", seed=1, layers=6)
    document = {"base": str(tmp_path / "deep"), "math": "./absent", "swahili": "./absent"}
    command[3] = str(write_yaml(tmp_path / "wrong.yml", document))
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 2
    assert "expert 'math': ./absent: no such folder" in result.output


@pytest.mark.slow
def test_runs_share_answers(tmp_path: Path, experts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another study, a larger limit and another level ask what is new; other weights ask all."""
    started = list[Path]()
    start = HfEngine.start

    def run_it(name: str, *, limit: int, level: float = 0.95) -> RunResult:
        started.clear()
        document = study_document(baseline=["base", "task_expert"], vary={"bottom_layers": [1]})
        document["evaluate"] |= {"limit": limit, "level": level}
        document["name"] = name
        result = run(tmp_path, experts, name, document, answers=tmp_path / "answers")
        assert not result.summary.failed
        return result

    def counting(engine: HfEngine, folder: Path, *given: Any) -> Any:
        started.append(folder)
        return start(engine, folder, *given)

    def answers_before(result: RunResult) -> set[tuple[int, int]]:
        tasks = [task for cell in records.load_run(result.out).cells for task in cell.tasks]
        return {(t.evaluation.answers_before, t.evaluation.scores[0].n) for t in tasks}

    monkeypatch.setattr(HfEngine, "start", counting)
    assert answers_before(run_it("first", limit=3)) == {(0, 3)}
    assert len(started) == 1
    assert answers_before(run_it("again", limit=3)) == {(3, 3)}
    assert answers_before(run_it("wider", limit=3, level=0.5)) == {(3, 3)}
    assert not started  # no engine was started
    assert answers_before(run_it("more", limit=5)) == {(3, 5)}
