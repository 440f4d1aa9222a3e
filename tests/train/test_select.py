"""The choice of a checkpoint: what each is evaluated as, and what is looked for before training."""

import pytest
import torch

from ablations.engines.hf_model import HfModel
from ablations.engines.options import EngineOptions
from ablations.requests.resolve import resolve
from ablations.scoring.evaluation import EvaluationRequest
from ablations.train import trainer
from ablations.train.config import Select
from ablations.train.folder import step_of
from ablations.train.select import select_checkpoint
from tests.standins.command import layerswap
from tests.standins.fine_tunes import edited, tune, write_adapter
from tests.standins.fresh_engines import evaluate_cold
from tests.standins.tasks import write_tasks
from tests.train.conftest import write_base, write_config

TASK = "words_choose"
WRONG = "model.layers.1.self_attn.o_proj.weight"


@pytest.mark.slow
@pytest.mark.parametrize("is_adapter", [False, True], ids=["whole", "adapter"])
def test_a_checkpoint_has_the_score_that_its_expert_has_in_a_study(
    tmp_path, is_adapter, monkeypatch, caplog
):
    """That of the base's dtype; checkpoints are float32. No engine that fails loses a training."""
    base = write_base(tmp_path / "base", dtype=torch.bfloat16)
    write_tasks(tmp_path / "tasks")
    request = EvaluationRequest(tasks=(TASK,), include_path=tmp_path / "tasks")
    checkpoints = [tmp_path / f"checkpoint-{step}" for step in (1, 2)]
    for step, checkpoint in enumerate(checkpoints, 1):
        if is_adapter:
            write_adapter(checkpoint, f"model.layers.{step}.mlp.up_proj", 64, 96)
        else:
            edited(tune(base, checkpoint, step, 0.1), dtype="float32")

    def selection():
        how = Select(tasks=(TASK,), secondary=(TASK,), backend="hf")
        tasks = resolve(request)
        return select_checkpoint(checkpoints, how, tasks, base, are_adapters=is_adapter)[1]

    rows = selection()
    assert len({row["score"] for row in rows} | {rows[0]["secondary_of_base"]}) > 1
    assert "cannot use the live engine" not in caplog.text
    for checkpoint in () if is_adapter else checkpoints:
        cold = evaluate_cold(checkpoint, request, options=EngineOptions(dtype="bfloat16"))
        (row,) = (row for row in rows if row["step"] == step_of(checkpoint))
        assert row["score"] == cold.shown_score(TASK).value
    load = HfModel.load

    def forgetful(engine, mixes):  # the base does not come back whole after a checkpoint
        is_base = all(mix.terms[0].stored.file.parent == base for mix in mixes.values())
        load(engine, {name: mixes[name] for name in mixes if not (is_base and name == WRONG)})

    if not is_adapter:  # which leaves this weight as it is
        monkeypatch.setattr(HfModel, "load", forgetful)
        assert selection() == rows
        assert "with the base's weights back in place" in caplog.text
    monkeypatch.setattr(HfModel, "load", lambda engine, mixes: None)
    assert selection() == rows
    assert "cannot use the live engine" in caplog.text
    assert not [*tmp_path.glob(".*")]


@pytest.mark.parametrize("words", [(), ("--dry-run",)], ids=["run", "dry run"])
def test_tasks_without_data_are_refused_before_training(tmp_path, base, rows, words, monkeypatch):
    monkeypatch.setattr(trainer, "load_base", lambda *_: pytest.fail("a model was loaded"))
    how = {"tasks": ["layerswap_mgsm_sw"], "data_dir": str(tmp_path / "data"), "backend": "hf"}
    (tmp_path / "data").mkdir()
    config = write_config(tmp_path / "c.yml", base, rows, select=how)
    result = layerswap("train", config, "--out", tmp_path / "out", *words)
    assert result.exit_code == 2, result.output
    assert "c.yml: select: task layerswap_mgsm_sw: " in " ".join(result.stderr.split())
    assert not [*(tmp_path / "out").glob("[!.]*")]
