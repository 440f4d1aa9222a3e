"""A study whose live engine goes wrong ends as one that never used it, and killed tasks go on."""

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ablations.engines import vllm_cpu
from ablations.engines.in_place import HfEngine
from ablations.runner import records
from ablations.runner.board import Summary
from ablations.runner.engines import EngineSetup
from ablations.runner.jobs import run_cells
from ablations.runner.run import FINGERPRINTS, _write_run_file
from ablations.study.files import read_study
from ablations.study.planning import plan_study
from tests.runner.fakes import scores_by_label
from tests.standins.studies import study_document, write_expert, write_tasks, write_yaml
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*torch_dtype.*")]
ROOT = Path(__file__).parents[2]
NAME = "model.layers.1.self_attn.o_proj.weight"


def run(tmp_path: Path, experts: Path, name: str, *, materialize: bool = False) -> Summary:
    """Run four cells in this process."""
    study = write_yaml(tmp_path / "small.yml", study_document(vary={"bottom_layers": [0, 1]}))
    out = tmp_path / name
    plan = plan_study(read_study(study), experts, backend="hf", cache=tmp_path / FINGERPRINTS)
    _write_run_file(out, plan)
    answers = tmp_path / f"{name}-answers"
    setup = EngineSetup.of(plan, out, materialize=materialize, answers=answers)
    return run_cells(out, plan.cells, setup, protocol=plan.protocol, progress=False)


def how(out: Path) -> list[dict[str, Any]]:
    """Return how the weights of the four cells got into their engine."""
    found = [cell.provenance for cell in records.load_run(out).cells]
    assert len(found) == 4
    return found


def test_a_study_on_a_broken_engine_is_that_on_checkpoints(
    tmp_path: Path, experts: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    load = HfEngine.load
    broken, loads = False, 0

    def transposing(engine: HfEngine, mixes: Any) -> None:
        load(engine, mixes)
        if broken:
            engine._tensors[NAME].data.copy_(engine._tensors[NAME].data.T.clone())

    monkeypatch.setattr(HfEngine, "load", transposing)
    run(tmp_path, experts, "cold", materialize=True)
    wanted = scores_by_label(tmp_path / "cold")
    assert len({samples for _, samples in wanted.values()}) > 2  # the cells do differ

    run(tmp_path, experts, "sound")
    assert {each["weights"] for each in how(tmp_path / "sound")} == {"streamed"}
    assert scores_by_label(tmp_path / "sound") == wanted
    assert not caplog.records

    broken = True  # from the first load on
    assert not run(tmp_path, experts, "broken").failed
    for each in how(tmp_path / "broken"):
        assert each["weights"] == "checkpoint"
        assert "every tensor of the base loaded over itself" in each["fallback"]
    assert scores_by_label(tmp_path / "broken") == wanted
    assert "cannot use the live engine" in caplog.text

    # Broken from the load after the start's on: what was asked has failed.
    def worsening(engine: HfEngine, mixes: Any) -> None:
        nonlocal broken, loads
        loads += 1
        broken = loads > 2
        transposing(engine, mixes)

    monkeypatch.setattr(HfEngine, "load", worsening)
    broken = False
    summary = run(tmp_path, experts, "later")
    assert len(summary.failed) == 4
    for error in summary.failed.values():
        assert "with the base's weights back in place" in error
        assert error.endswith("run it again with --materialize")
    assert not records.load_run(tmp_path / "later").cells
    assert not run(tmp_path, experts, "later", materialize=True).failed
    assert scores_by_label(tmp_path / "later") == wanted


VLLM = [
    pytest.mark.vllm,
    pytest.mark.skipif(vllm_cpu.installed_version() is None, reason="vLLM is not installed"),
]


@pytest.mark.parametrize("backend", ["hf", pytest.param("vllm", marks=VLLM)])
def test_a_task_that_is_killed_in_the_middle_goes_on(tmp_path: Path, backend: str) -> None:
    for seed, name in enumerate(("base", "math", "swahili")):
        write_expert(tmp_path / name, seed, hidden=64)  # vLLM on CPU takes heads of 32
    tasks = write_tasks(tmp_path / "tasks", ["words"], items=240)
    document = {"experts": {name: str(tmp_path / name) for name in ("base", "math", "swahili")}}
    experts = write_yaml(tmp_path / "experts.yml", document | {"include_path": str(tasks)})
    options = {"batch_size": 2, "kv_cache_gib": 1, "max_num_seqs": 2}
    evaluate = {"tasks": ["words"], "options": options}
    changes = {"baseline": ["base"], "vary": {"bottom_layers": [1]}, "evaluate": evaluate}
    study = str(write_yaml(tmp_path / "small.yml", study_document(**changes)))
    code = "from ablations.cli import main; main()"
    words = ["run", study, "--experts", str(experts), "--backend", backend, "--only", "kind=base"]
    given = {"cwd": ROOT, "env": os.environ | {"OMP_NUM_THREADS": "1"}, "text": True}
    killed, peaceful = tmp_path / "killed", tmp_path / "peaceful"

    def command(out: Path) -> list[str]:
        places = ["--out", str(out), "--answers", str(out.with_suffix(".answers"))]
        return [sys.executable, "-c", code, *words, *places]

    def kept() -> list[Path]:
        found = killed.with_suffix(".answers").glob("*/*.jsonl")
        return [path for path in found if path.read_bytes().count(b"\n") >= 5]

    with subprocess.Popen(command(killed), stderr=subprocess.DEVNULL, **given) as runner:
        wait_until(kept, running=runner, every_s=0.005)
        runner.send_signal(signal.SIGKILL)
    (answers,) = kept()
    assert not list(killed.glob("records/[!.]*"))
    before = answers.read_bytes().count(b"\n")
    for out in (killed, peaceful):
        subprocess.run(command(out), check=True, capture_output=True, **given)
    (cell,) = records.load_run(killed).cells
    assert cell.backend == backend
    # The engine's process may have written a batch more before it noticed.
    assert before <= cell.tasks[0].evaluation.answers_before < 240
    assert scores_by_label(killed) == scores_by_label(peaceful)
    assert not list(killed.glob("records/.*"))
    (whole,) = records.load_run(peaceful).cells
    assert whole.tasks[0].evaluation.answers_before == 0
