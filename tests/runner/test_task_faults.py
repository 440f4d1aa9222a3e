"""A task that cannot be asked ends a study before any model is; what is finished needs no data."""

from __future__ import annotations

import functools
import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ablations.cli import main
from ablations.engines.work_size import measure_tasks
from ablations.machine.progress import Step, listening
from ablations.runner import engines
from ablations.scoring.records import EvaluationRequest
from ablations.study.files import read_study
from ablations.study.planning import plan_study
from layerswap_method.errors import InputError, LayerSwapError
from tests.standins.studies import study_document, write_yaml
from tests.standins.tasks import write_rows, write_task

Run = Callable[..., Result]
BOTH = ("story", "bad")


@pytest.fixture
def ask(tmp_path: Path, experts: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs a study of one's own tasks, by the command line."""
    own = tmp_path / "own"
    rows = [{"question": "w1 w2", "answer": "w3"}, {"question": "w4", "answer": "w5"}]
    data = write_rows(own, rows)
    write_task(own, "story", data, doc_to_text="{{question}}")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def run(*options: str, tasks: tuple[str, ...] = ("story",), **changes: Any) -> Result:
        if changes:
            write_task(own, tasks[-1], data, **{"doc_to_text": "{{question}}", **changes})
        evaluate = {"tasks": list(tasks), "include_path": str(own), "options": {"batch_size": 8}}
        document = study_document(evaluate=evaluate, vary=None, baseline=["base"])
        study = write_yaml(tmp_path / "small.yml", document)
        given = experts.read_text().replace("include_path", "# include_path")
        named = tmp_path / "named.yml"
        named.write_text(given)
        command = ["run", str(study), "--experts", str(named), "--backend", "hf", *options]
        return CliRunner().invoke(main, command)

    return run


def refused(result: Result, *messages: str, code: int = 2) -> None:
    assert isinstance(result.exception, SystemExit), result.exception  # a bug has another one
    assert result.exit_code == code, result.output
    for message in messages:
        assert message in result.output
    assert "Traceback" not in result.output
    assert not list(Path("runs").rglob("records/*"))


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise AssertionError("an engine was made")

    monkeypatch.setattr(engines.EngineSetup, "of", fail)


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize("options", [(), ("--dry-run", "--read-tasks")])
def test_a_fault_of_a_task_is_one_error_before_an_engine_starts(
    tmp_path: Path, ask: Run, options: tuple[str, ...]
) -> None:
    refused(
        ask(*options, tasks=BOTH, doc_to_text="{{questoin}}"),
        "task bad: its file or data cannot be read: UndefinedError: 'questoin' is undefined "
        f"({tmp_path / 'own' / 'bad.yaml'})",
    )
    pipeline = [{"name": "first", "filter": [{"function": "regexx"}]}]
    refused(
        ask(*options, tasks=BOTH, filter_list=pipeline),
        "task bad: its file or data cannot be read",
        "Unknown filter 'regexx'. Did you mean: regex",
    )
    refused(
        ask(*options, tasks=BOTH, test_split="tset"),
        "task bad: its file or data",
        "tset",
    )
    data = tmp_path / "own" / "data.jsonl"
    data.rename(data.with_name("datas.jsonl"))
    result = ask(*options, tasks=BOTH, test_split="test")
    for name in ("story", "bad"):
        said = f"Unable to find '{data}' ({tmp_path / 'own' / name}.yaml)"
        refused(result, f"task {name}: its data cannot be read: FileNotFoundError: {said}")
    assert "pocket" not in result.output


def test_relative_data_beside_a_task_is_found(ask: Run) -> None:
    result = ask("--dry-run", "--read-tasks", dataset_kwargs={"data_files": {"test": "data.jsonl"}})
    assert result.exit_code == 0, result.output
    assert "items: 4;" in result.output


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize("options", [(), ("--dry-run", "--read-tasks")])
def test_data_of_a_hub_that_cannot_be_asked_is_no_mistake_of_the_user(
    ask: Run, options: tuple[str, ...]
) -> None:
    result = ask(*options, dataset_path="nobody/nothing", dataset_kwargs=None)
    refused(result, "task story: its data is not on this machine", "HF_HUB_OFFLINE", code=1)


def test_a_dry_run_downloads_nothing_and_says_so(
    ask: Run, tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets.config
    import huggingface_hub.constants

    ask("--dry-run", "--read-tasks", dataset_path="nobody/nothing", dataset_kwargs=None)
    for module in (datasets.config, huggingface_hub.constants):
        monkeypatch.setattr(module, "HF_HUB_OFFLINE", False)  # as where there is a network
    request = EvaluationRequest(tasks=("story",), include_path=tmp_path / "own")
    found = measure_tasks([request], models / "base", None)
    assert found == {"story": "its data is not on this machine; a dry run downloads nothing"}
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(LayerSwapError, match="task story: its data is not on this machine"):
        measure_tasks([request], models / "base", None)


def test_a_dry_run_counts_long_prompts_without_a_warning_of_the_tokenizer(
    tmp_path: Path, models: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(models / "base", model)
    config = model / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "model_max_length": 1}))
    rows = [{"question": "w1 w2 w3", "answer": "w3"}]
    own = tmp_path / "own"
    write_task(own, "long", write_rows(own, rows), doc_to_text="{{question}}")
    said: list[logging.LogRecord] = []
    logger, listener = logging.getLogger("transformers"), logging.Handler()
    listener.emit = said.append  # type: ignore[method-assign]
    logger.addHandler(listener)
    try:
        request = EvaluationRequest(tasks=("long",), include_path=own)
        found = measure_tasks([request], model, None)["long"]
    finally:
        logger.removeHandler(listener)
    assert not isinstance(found, str)
    assert found.prompt_tokens > 1
    assert [record.getMessage() for record in said] == []


def test_finished_cells_need_no_data(ask: Run, tmp_path: Path) -> None:
    ask("--dry-run", "--read-tasks", doc_to_text="{{questoin}}")
    study = read_study(tmp_path / "small.yml")
    cache = tmp_path / "fingerprints.json"
    plan = functools.partial(plan_study, study, tmp_path / "named.yml", backend="hf", cache=cache)
    cells = plan(is_finished=lambda _: True).cells
    (some, *_) = (key for cell in cells for key in cell.records.values())
    for known in ((lambda _: False), (lambda key: key == some)):
        with pytest.raises(InputError, match="'questoin' is undefined"):
            plan(is_finished=known)
    # What --only leaves out is not read either.
    base = next(cell for cell in plan().cells if cell.kind == "base")
    done = set(base.records.values())
    assert plan(is_finished=done.__contains__, only=("kind=base",)).cells


def test_a_dry_run_tells_what_it_does_all_the_way(ask: Run) -> None:
    steps: list[Step] = []
    with listening(steps.append):
        assert ask("--dry-run", "--read-tasks").exit_code == 0
    told = list(dict.fromkeys(step.what for step in steps))
    assert told[:3] == ["loading the libraries", "reading the study", "reading the task files"]
    assert {"planning the cells", "reading the experts", "reading the data of story"} <= {*told}
