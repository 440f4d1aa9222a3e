"""Checkpoints are evaluated by the live engine; the best are kept, and one becomes the expert."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ablations.scoring.records import EvaluationRequest
from ablations.train.files import read_config
from ablations.train.folder import TrainingFolder
from ablations.train.run import train_expert
from tests.standins.cold import evaluate_cold
from tests.train.runs import weights, write_config

REGIMES: list[dict[str, Any]] = [
    {"kind": "full"},
    {"kind": "lora", "rank": 4},
]


@pytest.mark.slow
@pytest.mark.parametrize("regime", REGIMES, ids=["full", "lora"])
def test_the_best_checkpoints_are_kept(
    tmp_path: Path, tiny_pocket: Any, regime: dict[str, Any]
) -> None:
    tasks = ["pocket_math_en", "pocket_facts_sw"]
    config = write_config(
        *(tmp_path / "c.yml", tiny_pocket.base, [{"pocket": "task"}]),
        **{"samples": 48, "save_every": 12, "max_length": 256, "learning_rate": 0.02},
        regime=regime,
        measure=False,
        select={
            **{"tasks": tasks, "include_path": str(tiny_pocket.tasks_dir), "limit": 12},
            **{"keep": 2, "backend": "hf"},
        },
    )
    out = tmp_path / "out"
    record = train_expert(read_config(str(config)), out)
    scores = record["selection"]
    assert len(scores) == 4
    assert [each["score"] for each in scores] == sorted(
        (each["score"] for each in scores), reverse=True
    )
    assert [each["kept"] for each in scores] == [True, True, False, False]
    kept = {each.step for each in TrainingFolder(out).checkpoints()}
    assert kept == {each["step"] for each in scores if each["kept"]}
    best = scores[0]
    assert (record["step"], record["samples"]) == (best["step"], best["samples"])
    chosen, expert = weights(out / f"checkpoints/checkpoint-{best['step']}"), weights(out)
    assert all(torch.equal(chosen[name], expert[name]) for name in chosen)
    assert json.loads((out / "training.json").read_text())["selection"] == scores
    if regime["kind"] == "full":
        request = EvaluationRequest(
            tasks=tuple(tasks), include_path=tiny_pocket.tasks_dir, limit=12
        )
        cold = evaluate_cold(out, request)
        values = [cold.score(task).value for task in tasks]
        assert best["score"] == pytest.approx(sum(values) / 2)
