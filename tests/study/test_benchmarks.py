"""Studies of the shipped benchmarks: which tasks a cell is asked, and what enters its key."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from ablations import sandbox
from ablations.study.files import read_study
from ablations.study.planning import StudyPlan, plan_study
from ablations.tasks.catalog import SHIPPED_TASKS
from layerswap_method.errors import InputError
from tests.standins.scripted import DATA
from tests.standins.studies import study_document, write_yaml

POOLS = {"base": "base", "task": ["math"], "language": {"sw": ["swahili"], "te": ["telugu"]}}


@pytest.fixture
def shipped(experts: Path, tmp_path: Path) -> Path:
    """Return an experts file that names no task folder."""
    document = yaml.safe_load(experts.read_text())
    del document["include_path"]
    return write_yaml(tmp_path / "shipped.yml", document)


def _plan(
    tmp_path: Path,
    experts: Path,
    evaluate: dict[str, Any],
    /,
    *,
    dry: bool = False,
    isolation: Any = None,
    **options: Any,
) -> StudyPlan:
    """Return the plan of a study whose `evaluate` the command line changes by `options`."""
    document = study_document(
        experts=POOLS, baseline=["base"], vary=None, evaluate={"limit": 2, **evaluate}
    )
    path = write_yaml(tmp_path / "study.yml", document)
    settings = {f"evaluate.{name}": value for name, value in options.items()}
    is_finished = None if dry else lambda _: False
    return plan_study(
        read_study(path, settings),
        experts,
        backend="hf",
        dry=dry,
        isolation=isolation,
        is_finished=is_finished,
    )


def _problem(tmp_path: Path, experts: Path, evaluate: dict[str, Any], /, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        _plan(tmp_path, experts, evaluate, **options)
    return caught.value.message


def test_benchmarks_become_tasks_in_the_language_of_the_expert(
    tmp_path: Path, shipped: Path
) -> None:
    plan = _plan(tmp_path, shipped, {"benchmarks": ["mgsm", "belebele"], "data_dir": str(DATA)})
    asked = {cell.label: cell.request for cell in plan.cells}
    assert asked["math+swahili"].tasks == ("layerswap_mgsm_sw", "layerswap_belebele_sw")
    assert asked["math+telugu"].tasks == ("layerswap_mgsm_te", "layerswap_belebele_te")
    # The base has no language: it is asked everything.
    assert set(asked["base"].tasks) == {
        task for label in ("math+swahili", "math+telugu") for task in asked[label].tasks
    }
    assert {request.include_path for request in asked.values()} == {SHIPPED_TASKS}
    assert {request.data_dir for request in asked.values()} == {DATA}


def test_own_tasks_and_benchmarks_go_together(
    tmp_path: Path, experts: Path, models: Path, shipped: Path
) -> None:
    both = {"tasks": ["words"], "benchmarks": ["mgsm"], "data_dir": str(DATA)}
    plan = _plan(tmp_path, experts, both)
    cells = {cell.label: cell for cell in plan.cells}
    assert cells["math+swahili"].request.tasks == ("words", "layerswap_mgsm_sw")
    assert cells["math+swahili"].request.include_path == models / "tasks"
    # Each task has the key that it has alone.
    own = _plan(tmp_path, experts, {"tasks": ["words"], "data_dir": str(DATA)})
    theirs = _plan(tmp_path, shipped, {"benchmarks": ["mgsm"], "data_dir": str(DATA)})
    for label, cell in cells.items():
        (alone,) = (each.records for each in own.cells if each.label == label)
        (suite,) = (each.records for each in theirs.cells if each.label == label)
        assert cell.records == {**alone, **suite}


def test_task_names_of_the_suite_need_no_folder(tmp_path: Path, shipped: Path) -> None:
    evaluate = {"tasks": ["layerswap_mgsm_en"], "languages": {"sw": ["layerswap_mgsm_sw"]}}
    plan = _plan(tmp_path, shipped, evaluate, data_dir=str(DATA))
    asked = {cell.label: cell.request.tasks for cell in plan.cells}
    assert asked["math+swahili"] == ("layerswap_mgsm_en", "layerswap_mgsm_sw")
    assert asked["math+telugu"] == ("layerswap_mgsm_en",)
    assert plan.study.evaluate.data_dir == str(DATA)


@pytest.mark.skipif(sandbox.probe() is not None, reason=f"no sandbox here: {sandbox.probe()}")
def test_code_is_run_only_when_the_command_line_allows_it(tmp_path: Path, shipped: Path) -> None:
    evaluate = {"benchmarks": ["mgsm", "mbpp"], "data_dir": str(DATA)}
    plan = _plan(tmp_path, shipped, evaluate)
    skipped = "layerswap_mbpp_sw: skipped: needs --allow-code-execution"
    assert skipped in plan.notes
    assert not any(cell.request.allow_code_execution for cell in plan.cells)
    allowed = _plan(tmp_path, shipped, evaluate, isolation="bwrap")
    assert skipped not in allowed.notes
    assert all(cell.request.allow_code_execution for cell in allowed.cells)
    assert {cell.request.code_isolation for cell in allowed.cells} == {"bwrap"}
    # How programs are held is no part of what identifies a score.
    unheld = _plan(tmp_path, shipped, evaluate, isolation="none")
    assert {cell.request.code_isolation for cell in unheld.cells} == {"none"}
    assert [c.records for c in unheld.cells] == [c.records for c in allowed.cells]
    for key in ("allow_code_execution", "code_isolation"):  # a study does not decide that
        assert f"evaluate.{key}: unknown key" in _problem(
            tmp_path, shipped, {**evaluate, key: "none"}
        )
    message = _problem(tmp_path, shipped, {**evaluate, "benchmarks": ["mbpp"]})
    assert "every task of the study is skipped: needs --allow-code-execution" in message


def test_the_data_is_part_of_the_protocol_and_its_place_is_not(
    tmp_path: Path, shipped: Path
) -> None:
    def keys(folder: Path) -> dict[tuple[str, str], str]:
        plan = _plan(tmp_path, shipped, {"benchmarks": ["mgsm"]}, data_dir=str(folder))
        return {(c.label, task): key for c in plan.cells for task, key in c.records.items()}

    copy = shutil.copytree(DATA, tmp_path / "data")
    assert keys(copy) == keys(DATA)
    test = copy / "mgsm" / "sw_test.jsonl"
    test.write_text("\n".join(reversed(test.read_text().splitlines())) + "\n")
    changed = {task for (_, task), _ in set(keys(copy).items()) - set(keys(DATA).items())}
    assert changed == {"layerswap_mgsm_sw"}


def test_missing_data_is_said_before_anything_runs(tmp_path: Path, shipped: Path) -> None:
    (tmp_path / "mgsm").mkdir()
    shutil.copy(DATA / "mgsm" / "sw_train.jsonl", tmp_path / "mgsm")
    evaluate = {"benchmarks": ["mgsm", "mmlu"], "data_dir": str(tmp_path)}
    message = _problem(tmp_path, shipped, evaluate)
    assert "mgsm/sw_test.jsonl: no such file" in message
    assert "mgsm/te_train.jsonl: no such file" in message
    assert "mmlu/te_dev.jsonl: no such file" in message
    # A dry run reads data where it counts the tokens.
    assert _plan(tmp_path, shipped, evaluate, dry=True).cells
    message = _problem(tmp_path, shipped, {**evaluate, "data_dir": "nowhere"})
    assert "evaluate.data_dir: nowhere: no such folder" in message


def test_what_benchmarks_cannot_be_is_said(tmp_path: Path, shipped: Path) -> None:
    message = _problem(tmp_path, shipped, {"benchmarks": ["mgms"]})
    assert "no benchmark 'mgms'; did you mean 'mgsm'?" in message
    listed = study_document(
        experts={**POOLS, "language": ["swahili"]}, evaluate={"benchmarks": ["mgsm"]}
    )
    path = write_yaml(tmp_path / "listed.yml", listed)
    with pytest.raises(InputError, match=r"needs experts\.language by language"):
        plan_study(read_study(path), shipped, backend="hf")
