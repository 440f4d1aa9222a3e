"""Checkpoints are evaluated by the live engine; the best are kept, and one becomes the expert."""

import json
from types import SimpleNamespace

import pytest

from ablations.scoring.records import EvaluationRequest
from ablations.train import select
from ablations.train.config import Select
from ablations.train.folder import step_of, whole_checkpoints
from tests.standins.cold import evaluate_cold
from tests.standins.scripted import DATA
from tests.train.conftest import equal_weights, run, write_base, write_config, write_jsonl

TASKS = ["pocket_math_en", ["pocket_facts_sw", "pocket_facts_en"]]


@pytest.mark.slow
@pytest.mark.parametrize("regime", ["full", "lora"])
def test_the_best_checkpoints_are_kept(tmp_path, tiny_pocket, regime):
    include, out = str(tiny_pocket.tasks_dir), tmp_path / "out"
    trainer = {"save_strategy": "steps", "save_steps": 3, "learning_rate": 0.02}
    how = {"tasks": TASKS, "include_path": include, "limit": 12, "keep": 2, "backend": "hf"}
    sizes = {"samples": 48, "max_length": 256, "regime": regime, "trainer": trainer, "select": how}
    config = write_config(tmp_path / "c.yml", tiny_pocket.base, [{"pocket": "task"}], **sizes)
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


def test_checkpoints_above_the_base_on_the_secondary_tasks_come_first(tmp_path, monkeypatch):
    table = {"base": (0.0, 0.5)}  # what the engine, real above and below, says of tasks a and b
    table |= {"checkpoint-1": (0.9, 0.4), "checkpoint-2": (0.6, 0.6)}
    table |= {"checkpoint-3": (0.7, 0.7), "checkpoint-4": (0.7, 0.9)}

    def evaluate(stream, request):
        one = {"higher_is_better": True, "model_dump": lambda **_: {}}
        values = dict(zip("ab", table[stream], strict=True))
        scores = {n: SimpleNamespace(task=n, value=v, **one) for n, v in values.items()}
        return SimpleNamespace(scores=[*scores.values()], score=scores.__getitem__)

    engine = SimpleNamespace(evaluate=evaluate, close=lambda: None)
    monkeypatch.setattr(select, "open_live", lambda *_: engine)
    monkeypatch.setattr(select, "merge_of_one", lambda model: model.folder.name)
    base, *folders = (tmp_path / name for name in table)
    wanted = Select(tasks=("a",), secondary=("b",))
    best, rows = select.select_checkpoint(folders, wanted, None, base, are_adapters=False)
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
