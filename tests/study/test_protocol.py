"""How models are asked, in study files: what is checked before any is loaded, and what is said."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from ablations.engines import vllm_engine
from ablations.engines.backends import check_devices
from ablations.engines.options import EngineOptions
from ablations.study.experts import ExpertsFile
from ablations.study.files import read_study
from ablations.study.planning import StudyPlan, plan_study
from layerswap_method.errors import InputError, LayerSwapError
from tests.standins.talkers import write_model
from tests.standins.tasks import write_tasks

TEMPLATE = "{% for m in messages %}{{ m['content'] }} {% endfor %}"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models and their tasks; one of them has a chat template."""
    folder = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(("plain", "chat")):
        write_model(folder / name, seed)
    (folder / "chat" / "chat_template.jinja").write_text(TEMPLATE)
    write_tasks(folder / "tasks")
    return folder


def _plan(
    models: Path, tmp_path: Path, base: str = "plain", dry: bool = False, **evaluate: Any
) -> StudyPlan:
    asked = {"tasks": ["words_generate"], "include_path": str(models / "tasks"), **evaluate}
    document = {
        "name": "asked",
        "question": "How are they asked?",
        "baseline": ["base", "task_expert"],
        "experts": {"base": base, "task": "chat"},
        "evaluate": asked,
    }
    path = tmp_path / "study.yml"
    path.write_text(yaml.safe_dump(document))
    places = {"plain": str(models / "plain"), "chat": str(models / "chat")}
    file, is_finished = ExpertsFile.model_validate({"experts": places}), lambda _: False
    return plan_study(read_study(path), file, dry=dry, is_finished=None if dry else is_finished)


def _problems(models: Path, tmp_path: Path, **evaluate: Any) -> str:
    with pytest.raises(LayerSwapError) as caught:
        _plan(models, tmp_path, **evaluate)
    return caught.value.message


def test_faults_are_said_before_a_model_is_loaded(models: Path, tmp_path: Path) -> None:
    said = _problems(models, tmp_path, apply_chat_template=True)
    assert f"{models / 'plain'}: its tokenizer has no chat template" in said
    assert "has no chat template 'tools'; it has default" in _problems(
        models, tmp_path, base="chat", apply_chat_template="tools"
    )
    assert "think_end_token '</think>' is not in the vocabulary" in _problems(
        models, tmp_path, think_end_token="</think>"
    )
    said = _problems(models, tmp_path, repeats=3)
    assert "repeats is 3 and the temperature is 0" in said
    said = _problems(models, tmp_path, gen_kwargs={"temprature": 1})
    assert "temprature" in said
    assert "did you mean 'temperature'" in said
    assert "unknown task 'gsm9k'; did you mean 'gsm" in _problems(models, tmp_path, tasks=["gsm9k"])


def test_it_is_part_of_every_request_and_key(models: Path, tmp_path: Path) -> None:
    asked = {"gen_kwargs": {"temperature": 0.6}, "repeats": 2, "system_instruction": "w1"}
    plain, other = _plan(models, tmp_path), _plan(models, tmp_path, **asked)
    assert {cell.request.protocol.repeats for cell in other.cells} == {2}
    keys = [
        {key for cell in each.cells for key in cell.records.values()} for each in (plain, other)
    ]
    assert not keys[0] & keys[1]
    assert plain.protocol != other.protocol


def test_who_is_asked_against_the_grain_is_said(models: Path, tmp_path: Path) -> None:
    without = _plan(models, tmp_path).notes
    assert any("with a chat template, and there is one in chat: " in note for note in without)
    templated = shutil.copytree(models, tmp_path / "models")
    (templated / "plain" / "chat_template.jinja").write_text(TEMPLATE)
    with_template = _plan(templated, tmp_path, apply_chat_template=True).notes
    assert any(
        note.startswith("plain is the base and is prompted with a chat template")
        for note in with_template
    )
    assert not any("no prompt is written" in note for note in with_template)


def test_lm_evals_own_tasks_are_known_by_name(models: Path, tmp_path: Path) -> None:
    both = ["words_generate", "gsm8k"]
    plan = _plan(models, tmp_path, dry=True, tasks=both)
    assert list(plan.cells[0].records) == both
    alone = _plan(models, tmp_path, dry=True, tasks=["gsm8k"], include_path=None)
    assert alone.cells[0].records["gsm8k"] == plan.cells[0].records["gsm8k"]
    # Its data is on the hub, and that it is not here is said before a model is loaded.
    assert "task gsm8k: its data is not on this machine" in _problems(models, tmp_path, tasks=both)


def test_more_gpus_than_there_are_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    large = EngineOptions(tensor_parallel_size=64, pipeline_parallel_size=4)
    with pytest.raises(InputError, match="write device_map: auto to spread"):
        check_devices("hf", large)
    monkeypatch.setattr(vllm_engine, "is_cpu_build", lambda: False)
    with pytest.raises(InputError, match=r"64 x 4 = 256, and there are \d+ GPUs here"):
        check_devices("vllm", large)
    check_devices("vllm", EngineOptions())
    spread = EngineOptions(device_map="auto")
    check_devices("hf", spread)
    with pytest.raises(InputError, match="device_map is transformers'; with --backend vllm write"):
        check_devices("vllm", spread)
    monkeypatch.setattr(vllm_engine, "is_cpu_build", lambda: True)
    with pytest.raises(InputError, match="CPU build runs no pipeline stages"):
        check_devices("vllm", EngineOptions(pipeline_parallel_size=2))


def test_vllm_gets_the_options_it_is_given_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = vllm_engine.engine_arguments(EngineOptions(), 0, "bfloat16")
    assert plain["max_num_seqs"] is None
    assert (plain["tensor_parallel_size"], plain["pipeline_parallel_size"]) == (1, 1)
    monkeypatch.setattr(vllm_engine, "is_cpu_build", lambda: False)
    given = EngineOptions(
        tensor_parallel_size=4,
        pipeline_parallel_size=2,
        max_num_seqs=512,
        max_model_len=40960,
        gpu_memory_utilization=0.8,
        enforce_eager=True,
    )
    found = vllm_engine.engine_arguments(given, 0, None)
    for name in ("tensor_parallel_size", "pipeline_parallel_size", "max_num_seqs"):
        assert found[name] == getattr(given, name)
    assert found["max_model_len"] == 40960
    assert found["gpu_memory_utilization"] == 0.8
    assert found["enforce_eager"] is True
    assert vllm_engine.engine_arguments(EngineOptions(), 0, None)["enforce_eager"] is False
