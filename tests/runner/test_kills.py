"""Studies that are ended by SIGKILL again and again end as those that were left in peace.

`make kill-study` kills a real study thirty times; KILLS and BACKEND (hf or vllm) may be set.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ablations.runs import records
from tests.kills import ENVIRONMENT, kill_when, start
from tests.runner.fakes import make_cells, run, scores_by_label, scores_on_disk
from tests.standins.studies import write_study

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


def finished(out):
    """Return the records and when each was written, in ns."""
    return {path.stem: path.stat().st_mtime_ns for path in out.glob("records/[!.]*")}


def kill_an_engine(family, rng):
    """Kill an engine a moment before its runner, now and then."""
    engines = [p for p in family if p.is_running() and "spawn_main" in " ".join(p.cmdline())]
    if engines and rng.random() < 0.3:
        rng.choice(engines).kill()
        time.sleep(rng.uniform(0, 0.1))


def kill(command, out, kills):
    """Start a study and kill it at random moments; return how many records each run finished."""
    rng, whole, progress = random.Random(20260101), {}, []
    for number in range(1, kills + 1):
        wanted = len(whole) + number % 4
        code = kill_when(
            start(command, cwd=ROOT, stderr=subprocess.PIPE),
            lambda n=wanted: len(finished(out)) >= n,
            after_s=rng.uniform(0, 0.05),
            first=lambda family: kill_an_engine(family, rng),
        )
        assert code == -signal.SIGKILL, "the study ended before it was killed often enough"
        now = finished(out)
        assert all(records.read_record(out, key) is not None for key in now)
        assert whole.items() <= now.items(), "a record was written again"
        progress.append(len(now) - len(whole))
        whole = now
    return progress


def finish(command, out):
    """Run a study to its end; nothing half written may be left."""
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert not [*out.glob("records/.*"), *out.glob("failures/*")]


def test_a_study_survives_thirty_kills(tmp_path):
    out, count = tmp_path / "run", 300
    command = [sys.executable, "-m", "tests.runner.victim", str(out), str(count)]
    progress = kill([*command, "0.02", "1", "1"], out, kills=30)
    assert sum(step > 0 for step in progress) > 10
    assert sum(progress) < count / 2
    finish([*command, "0", "1", "1"], out)
    run(tmp_path / "undisturbed", make_cells(count, per_group=2))
    assert scores_on_disk(out) == scores_on_disk(tmp_path / "undisturbed")


def test_a_real_study_survives_kills(tmp_path):
    kills, backend = int(os.environ.get("KILLS", "1")), os.environ.get("BACKEND", "hf")
    options = {"batch_size": 8, "kv_cache_gib": 1, "gpu_memory_utilization": 0.3}
    vary = {  # averaged embeddings, so that no two cells are one model
        "bottom_layers": [0, 1, 2],
        "top_layers": [0, 1],
        "non_layer": ["average"],
        "task_weight": list(range(1, 2 + kills)),
    }
    evaluate = {"tasks": ["words"], "options": options}
    study, experts = write_study(tmp_path, vary=vary, evaluate=evaluate)
    code = "from ablations.cli import main; main()"
    command = [sys.executable, "-c", code, "run", str(study), "--experts", str(experts)]
    command += ["--backend", backend, "--out"]
    killed, peaceful = tmp_path / "killed", tmp_path / "peaceful"
    progress = kill([*command, str(killed)], killed, kills)
    assert progress[0] > 0
    for out in (killed, peaceful):
        finish([*command, str(out)], out)
    wanted = scores_by_label(peaceful)
    assert len(wanted) == 2 + 6 * (1 + kills)
    assert len({samples for _, samples in wanted.values()}) >= 4  # the cells do differ
    assert scores_by_label(killed) == wanted
