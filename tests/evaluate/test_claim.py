"""The claim of the pocket: its numbers are right, and a stopped run goes on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from ablations.cli import main
from ablations.evaluate.claim import RIVALS, SOURCE, TARGET, Claim, Scores, run_claim
from ablations.runner.records import load_run


def scores(seed: int, swap: float) -> Scores:
    """Return scores of 3 pairs and 200 items: `swap` for the swap, .5 for all others."""
    rng = np.random.default_rng(seed)
    return {
        row: {
            task: (rng.random((3, 200)) < (swap if row == "swap" else 0.5)).astype(float)
            for task in (TARGET, SOURCE)
        }
        for row in ("base", *RIVALS, "swap", "middle")
    }


@pytest.mark.parametrize(("swap", "sign"), [(0.8, 1), (0.2, -1)])
def test_a_difference_is_found_with_its_sign(swap: float, sign: int) -> None:
    found = Claim(tuple(scores(seed, swap) for seed in range(4)), gated_out=(2,))
    mean, low, high = found.gain()
    values = [
        np.mean([one[row][TARGET].mean() for one in found.scores]) for row in ("swap", *RIVALS)
    ]
    assert mean == pytest.approx(values[0] - max(values[1:]))
    assert low < mean < high
    assert min(sign * low, sign * high) > 0
    assert found.gain() == (mean, low, high)
    assert found.gain(("soup",))[0] == pytest.approx(values[0] - values[3])
    text = found.report()
    assert "bases: 4; pairs each: 3; items: 200; bases gated out: 2" in text
    assert f"max(task expert, language expert, soup): {mean:+.3f} [{low:+.3f}, {high:+.3f}]" in text


def test_equal_models_are_no_evidence_and_the_best_rival_is_chosen_in_every_draw() -> None:
    found = Claim(tuple(scores(seed, 0.5) for seed in range(5)), gated_out=())
    _, low, high = found.gain(("soup",))
    assert low < 0 < high
    assert found.gain()[0] <= min(found.gain((row,))[0] for row in RIVALS) + 1e-12


@pytest.mark.slow
def test_it_runs_from_nothing_and_goes_on(tmp_path: Path) -> None:
    first = run_claim(tmp_path, bases=1, pairs=2, limit=4, preset="tiny", backend="hf")
    assert [one["swap"][TARGET].shape for one in first.scores] == [(2, 4)]
    assert {*first.scores[0]} == {"base", *RIVALS, "swap", "middle", "random"}
    trained = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("model.safetensors")}
    records = len(list((tmp_path / "run-0/records").iterdir()))
    arguments = ["--preset", "tiny", "--bases", "1", "--pairs", "2", "--limit", "4"]
    command = ["pocket", "claim", "--out", str(tmp_path), *arguments, "--backend", "hf"]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    assert "bases: 1; pairs each: 2; items: 4" in result.output
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("model.safetensors")} == trained
    assert len(list((tmp_path / "run-0/records").iterdir())) == records
    assert len(load_run(tmp_path / "run-0").cells) == 13
