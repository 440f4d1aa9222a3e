from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from ablations.pocket_build.build import plan_jobs
from ablations.pocket_build.config import ModelShape, PocketConfig, Pretraining
from ablations.pocket_build.pretraining import rate_factor


@pytest.mark.parametrize("name", ["quickstart", "full", "tiny", "other_size"])
def test_presets_take_changes_and_survive_json(name: str) -> None:
    config = PocketConfig.preset(name, seed=3)  # type: ignore[arg-type]
    assert config.seed == 3
    assert PocketConfig.model_validate_json(config.model_dump_json()) == config


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown preset 'huge'; one of quickstart, full, tiny"):
        PocketConfig.preset("huge")  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="stpes"):
        Pretraining(stpes=3, learning_rate=1e-3)  # type: ignore[call-arg]
    with pytest.raises(ValidationError, match="hidden_size 96 is not a multiple of num_heads 5"):
        ModelShape(num_heads=5)
    with pytest.raises(ValidationError, match="num_heads 3 is not a multiple of num_kv_heads 4"):
        ModelShape(num_kv_heads=4)
    with pytest.raises(ValidationError, match=r"expert_seeds repeats a seed: \[1, 1\]"):
        PocketConfig(expert_seeds=(1, 1))


def test_rate_warms_up_then_falls_to_a_twentieth() -> None:
    training = Pretraining(steps=200, learning_rate=1.0, warmup_steps=20)
    rates = [rate_factor(step, training) for step in range(200)]
    assert rates[0] == pytest.approx(1 / 20)
    assert max(rates) == rates[19]
    assert rates[19:] == sorted(rates[19:], reverse=True)
    assert rates[-1] == pytest.approx(0.05, abs=1e-3)
    assert rate_factor(0, Pretraining(steps=5, learning_rate=1.0, warmup_steps=0)) == 1


def keys(**changes: object) -> dict[str, str]:
    base, experts = plan_jobs(Path("/nowhere"), PocketConfig.preset("tiny", **changes))
    return {job.stage.name: job.stage.key for job in (base, *experts)}


def test_a_change_rebuilds_what_depends_on_it_and_nothing_else() -> None:
    old = keys()
    assert list(old) == ["base", "task", "language"]

    def changed(**changes: object) -> set[str]:
        new = keys(**changes)
        return {name for name in new if new[name] != old.get(name)}

    assert changed() == set()
    assert changed(seed=1) == {"base", "task", "language"}
    assert changed(expert_settings=("trainer.learning_rate=0.1",)) == {"task", "language"}
    assert changed(expert_seeds=(0, 1)) == {"task-1", "language-1"}
    base = PocketConfig.preset("tiny").base.model_copy(update={"rare_words": 0.2})
    assert changed(base=base) == {"base", "task", "language"}
