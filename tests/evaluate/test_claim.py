"""The claim of the pocket: its numbers are right, and a stopped run goes on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from ablations.cli import main
from ablations.evaluate.claim import RESULT, run_claim
from ablations.evaluate.claim_found import GATE, RIVALS, SOURCE, TARGET, Base, Claim, Scores
from ablations.pocket.config import PocketConfig
from ablations.runner.records import load_run
from layerswap_method.errors import LayerSwapError


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


def claim(bases: int, swap: float, out: int | None = None) -> Claim:
    """Return a claim of some bases; the one of seed `out` does not take part."""
    return Claim(
        tuple(
            Base(seed, dict.fromkeys(GATE, 0.6), seed != out, scores(seed, swap))
            for seed in range(bases)
        )
    )


@pytest.mark.parametrize(("swap", "sign"), [(0.8, 1), (0.2, -1)])
def test_a_difference_is_found_with_its_sign(swap: float, sign: int) -> None:
    found = claim(5, swap, out=2)
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
    assert "| base | math en | translate sw en | retrieval common | takes part |" in text
    assert "| 2 | 0.600 | 0.600 | 0.600 | no |" in text
    document = json.loads(found.as_json())
    assert document["swap_minus"][TARGET]["soup"] == list(found.gain(("soup",)))
    assert document["swap_minus"][SOURCE]["base"] == list(found.gain(("base",), SOURCE))
    assert [base["takes_part"] for base in document["bases"]] == [True, True, False, True, True]
    kept = document["bases"][1]["scores"]["swap"][TARGET]
    assert kept == pytest.approx(found.bases[1].scores["swap"][TARGET].mean(axis=1).tolist())


def test_without_a_base_that_takes_part_there_are_gates_and_no_differences() -> None:
    document = json.loads(claim(1, 0.5, out=0).as_json())
    assert document["swap_minus"] == {}
    assert document["gate"] == dict(GATE)
    assert document["bases"][0]["reached"] == dict.fromkeys(GATE, 0.6)


def test_equal_models_are_no_evidence_and_the_best_rival_is_chosen_in_every_draw() -> None:
    found = claim(5, 0.5)
    _, low, high = found.gain(("soup",))
    assert low < 0 < high
    assert found.gain()[0] <= min(found.gain((row,))[0] for row in RIVALS) + 1e-12


@pytest.mark.slow
def test_a_base_that_misses_the_gate_is_named_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tiny preset is never gated, so its config is asked for under another name."""
    tiny = PocketConfig.preset("tiny", expert_seeds=(0,))
    monkeypatch.setattr(PocketConfig, "preset", lambda *_, **__: tiny)
    with pytest.raises(LayerSwapError, match=f"no base of 1 passes the gate.*{RESULT}"):
        run_claim(tmp_path, bases=1, pairs=1, limit=4, preset="quickstart", backend="hf")
    (base,) = json.loads((tmp_path / RESULT).read_text())["bases"]
    assert not base["takes_part"]
    assert base["reached"]["retrieval_common"] < GATE["retrieval_common"]


@pytest.mark.slow
def test_it_runs_from_nothing_and_goes_on(tmp_path: Path) -> None:
    first = run_claim(tmp_path, bases=1, pairs=2, limit=4, preset="tiny", backend="hf")
    assert [one["swap"][TARGET].shape for one in first.scores] == [(2, 4)]
    assert {*first.scores[0]} == {"base", *RIVALS, "swap", "middle", "random"}
    assert set(GATE) < set(first.bases[0].reached)
    assert TARGET not in first.bases[0].reached
    assert (tmp_path / RESULT).read_text() == first.as_json() + "\n"
    trained = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("model.safetensors")}
    records = len(list((tmp_path / "run-0/records").iterdir()))
    arguments = ["--preset", "tiny", "--bases", "1", "--pairs", "2", "--limit", "4"]
    command = ["pocket", "claim", "--out", str(tmp_path), *arguments, "--backend", "hf"]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    assert "bases: 1; pairs each: 2; items: 4" in result.output
    assert result.stdout.rstrip().endswith(str(tmp_path / RESULT))
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("model.safetensors")} == trained
    assert len(list((tmp_path / "run-0/records").iterdir())) == records
    assert len(load_run(tmp_path / "run-0").cells) == 13
