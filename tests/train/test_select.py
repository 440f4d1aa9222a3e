"""Checkpoints are evaluated by the live engine; the best are kept, and one becomes the expert."""

import json
from types import SimpleNamespace

import pytest

from ablations.scoring.records import EvaluationRequest
from ablations.train.config import Select
from ablations.train.folder import step_of, whole_checkpoints
from ablations.train.select import select_checkpoint
from tests.standins.cold import evaluate_cold
from tests.standins.scripted import DATA
from tests.train.runs import equal_weights, run, write_base, write_config, write_jsonl

TASKS = ["pocket_math_en", ["pocket_facts_sw", "pocket_facts_en"]]


@pytest.mark.slow
@pytest.mark.parametrize("regime", ["full", "lora"])
def test_the_best_checkpoints_are_kept(tmp_path, tiny_pocket, regime):
    config = write_config(
        *(tmp_path / "c.yml", tiny_pocket.base, [{"pocket": "task"}]),
        **{"samples": 48, "max_length": 256, "regime": regime},
        trainer={"save_strategy": "steps", "save_steps": 3, "learning_rate": 0.02},
        select={
            **{"tasks": TASKS, "include_path": str(tiny_pocket.tasks_dir), "limit": 12},
            **{"keep": 2, "backend": "hf"},
        },
    )
    out = tmp_path / "out"
    record = run(config, out)
    rows = record["selection"]
    assert len(rows) == 4
    assert rows == sorted(rows, key=lambda row: -row["score"])
    assert [row["kept"] for row in rows] == [True, True, False, False]
    kept = {step_of(checkpoint) for checkpoint in whole_checkpoints(out)}
    assert kept == {row["step"] for row in rows if row["kept"]}
    best = rows[0]
    assert record["step"] == best["step"]
    assert equal_weights(out / f"checkpoints/checkpoint-{best['step']}", out)
    assert json.loads((out / "training.json").read_text())["selection"] == rows
    if regime == "full":
        names = ("pocket_math_en", "pocket_facts_sw", "pocket_facts_en")
        request = EvaluationRequest(tasks=names, include_path=tiny_pocket.tasks_dir, limit=12)
        cold = evaluate_cold(out, request)
        math, one, other = (cold.score(name).value for name in names)
        assert best["score"] == pytest.approx((math + (one + other) / 2) / 2)


class Engine:
    """Gives every checkpoint the scores in its table; the real one is used above and below."""

    def __init__(self, table):
        self.table = table

    def evaluate(self, stream, request):
        scores = [
            SimpleNamespace(
                task=task, value=value, higher_is_better=True, model_dump=lambda **_: {}
            )
            for task, value in self.table[stream].items()
        ]
        by_task = {score.task: score for score in scores}
        return SimpleNamespace(scores=scores, score=by_task.__getitem__)

    def close(self):
        pass


def test_checkpoints_above_the_base_on_the_secondary_tasks_come_first(tmp_path, monkeypatch):
    from ablations.train import select

    table = {
        "base": {"a": 0.0, "b": 0.5},
        "checkpoint-1": {"a": 0.9, "b": 0.4},
        "checkpoint-2": {"a": 0.6, "b": 0.6},
        "checkpoint-3": {"a": 0.7, "b": 0.7},
        "checkpoint-4": {"a": 0.7, "b": 0.9},
    }
    monkeypatch.setattr(select, "open_live", lambda *_: Engine(table))
    monkeypatch.setattr(select, "merge_of_one", lambda model: (model.adapter or model.folder).name)
    folders = [tmp_path / name for name in table]
    best, rows = select_checkpoint(
        *(folders[1:], Select(tasks=("a",), secondary=("b",)), None, folders[0]),
        are_adapters=False,
    )
    assert best.name == "checkpoint-3"
    assert [row["step"] for row in rows] == [3, 4, 2, 1]
    assert [row["kept"] for row in rows] == [True, True, True, False]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["math_1", "swahili_1"])
def test_a_shipped_selection_runs_on_a_stand_in(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base = write_base(tmp_path / "base", max_position_embeddings=4096)
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"prompt": "w1 ", "answer": "w2"}] * 12)
    settings = [
        *(f"base={base}", f"data=[{{path: {rows}}}]", "samples=8", "held_out=0"),
        *("measure=false", "trainer.save_steps=1", "trainer.bf16=false"),
        *(f"select.data_dir={DATA}", "select.limit=2", "select.backend=hf"),
    ]
    selection = run(name, tmp_path / "out", *settings)["selection"]
    tasks = {score["task"] for score in selection[0]["tasks"]}
    assert "layerswap_mgsm_en" in tasks or "layerswap_flores_en-sw" in tasks
    assert "layerswap_mbpp_sw" not in tasks  # no program runs without --allow-code-execution
    assert sum(row["kept"] for row in selection) == min(3, len(selection))
