"""The tasks under plain lm-eval, without our runner: from the shell, with `--include_path`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ablations.tasks.catalog import SHIPPED_TASKS as TASKS
from tests.standins.scripted import DATA, OURS, task_names

pytestmark = pytest.mark.slow


def _lm_eval(*arguments: str, cwd: Path) -> str:
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "lm_eval", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_shell_finds_and_runs_every_group_offline(tmp_path: Path) -> None:
    _lm_eval(
        *("run", "--model", "dummy", "--include_path", str(TASKS), "--limit", "1"),
        *("--tasks", ",".join(f"layerswap_{benchmark}" for benchmark in OURS)),
        *(
            "--metadata",
            json.dumps({"data_dir": str(DATA)}),
            "--output_path",
            str(tmp_path / "out"),
        ),
        cwd=tmp_path,
    )
    (path,) = (tmp_path / "out").rglob("results_*.json")
    results = json.loads(path.read_text(encoding="utf-8"))["results"]
    mgsm = {f"layerswap_mgsm_{code}" for code in ("de", "es", "fr", "ru", "th", "zh")}
    asked = {name for name in results if name.count("_") == 2}
    assert asked == {*task_names(*OURS)} | mgsm
    assert results["layerswap_mgsm_te"]["exact_match,flexible-extract"] == 0
    assert {"bleu,stripped", "chrf++,stripped"} <= set(results["layerswap_flores_ja-en"])
    assert 0 <= results["layerswap_mmlu_bn"]["acc,none"] <= 1
