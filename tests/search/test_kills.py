"""A search that is ended by SIGKILL again and again ends as one that was left in peace.

`make kill-search` kills it thirty times; KILLS may be set.
"""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ablations.search.result import load_search
from tests.kills import ENVIRONMENT, kill_when, start
from tests.runner.fakes import scores_on_disk
from tests.search.searches import write_models, write_words_search

ROOT = Path(__file__).parents[2]
RUNS = ("round_1", "round_2", "held_out")


def records_of(out):
    """Return the records of all rounds and when each was written, in ns."""
    return {str(path): path.stat().st_mtime_ns for path in out.glob("*/records/[!.]*")}


@pytest.mark.slow
def test_a_search_survives_kills(tmp_path):
    kills, rng = int(os.environ.get("KILLS", "2")), random.Random(20260101)
    study, experts = write_words_search(tmp_path, write_models(tmp_path))
    code = "from ablations.cli import main; main()"
    command = [sys.executable, "-c", code, "search", str(study), "--experts", str(experts)]
    command += ["--backend", "hf", "--out"]
    killed, peaceful = tmp_path / "killed" / "out", tmp_path / "peaceful" / "out"
    whole, most = {}, 2 * (10 + 7 + 7)
    for number in range(1, kills + 1):
        wanted = number * most // (kills + 1)
        code = kill_when(
            start([*command, str(killed)], cwd=ROOT, stderr=subprocess.PIPE),
            lambda n=wanted: len(records_of(killed)) >= n,
            after_s=rng.uniform(0, 0.2),
        )
        assert code == -signal.SIGKILL, "the search ended before it was killed often enough"
        now = records_of(killed)
        assert whole.items() <= now.items(), "a record was written again"
        whole = now
    assert whole
    for out in (killed, peaceful):
        done = subprocess.run(
            [*command, str(out)], cwd=ROOT, env=ENVIRONMENT, stderr=subprocess.PIPE, check=False
        )
        assert done.returncode == 0, done.stderr.decode()
    assert whole.items() <= records_of(killed).items()
    first, second = load_search(killed), load_search(peaceful)
    assert first.rounds.equals(second.rounds)
    assert str(first) == str(second)
    for name in RUNS:
        assert scores_on_disk(killed / name) == scores_on_disk(peaceful / name)
