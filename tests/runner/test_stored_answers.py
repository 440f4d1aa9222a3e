"""What must never be reused: answers of other weights, engines, options and versions."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from ablations.engines.options import EngineOptions
from ablations.models.find import Expert
from ablations.runner import stored_answers
from ablations.runner.engines import EngineSetup
from ablations.runner.stored_answers import answer_file
from ablations.runner.work import Work
from ablations.scoring.protocol import GenKwargs, Protocol
from ablations.scoring.records import EvaluationRequest


@pytest.fixture
def setup(tmp_path: Path, models: Path) -> EngineSetup:
    options = EngineOptions(dtype="float32")
    base = Expert("base", models / "base")
    return EngineSetup("hf", options, base, {}, {}, tmp_path / "run", tmp_path / "answers")


WORK = Work("score", "weights", "base", {}, EvaluationRequest(tasks=("words",)))


def place(setup: EngineSetup, work: Work = WORK) -> tuple[Path, str]:
    answers = answer_file(setup, work)
    return answers.path, answers.key("prompt")


@pytest.mark.parametrize(
    "options",
    [{"dtype": "bfloat16"}, {"max_model_len": 32}, {"batch_size": 3}, {"device_map": "auto"}],
    ids=str,
)
def test_other_options_ask_again(setup: EngineSetup, options: dict[str, object]) -> None:
    other = setup.options.model_copy(update=options)
    assert place(dataclasses.replace(setup, options=other)) != place(setup)


def test_options_that_change_no_answer_do_not(setup: EngineSetup) -> None:
    other = setup.options.model_copy(update={"kv_cache_gib": 9, "max_num_seqs": 3})
    assert place(dataclasses.replace(setup, options=other)) == place(setup)


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_another_version_asks_again(
    setup: EngineSetup, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = place(setup)
    versions = stored_answers.backend_versions("hf")
    assert package in versions
    other = {**versions, package: "0.0.1"}
    monkeypatch.setattr(stored_answers, "backend_versions", lambda _: other)
    assert place(setup) != before


def test_another_context_asks_again(setup: EngineSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    before = place(setup)
    monkeypatch.setattr(stored_answers, "context_of", lambda _: 7)
    assert place(setup) != before


def test_other_weights_engines_and_protocols_ask_again(setup: EngineSetup) -> None:
    protocol = Protocol(gen_kwargs=GenKwargs(temperature=1.0))
    warm = WORK.request.model_copy(update={"protocol": protocol})
    places = {
        place(setup),
        place(setup, dataclasses.replace(WORK, weights_key="others")),
        place(setup, dataclasses.replace(WORK, request=warm)),
        place(dataclasses.replace(setup, backend="vllm")),
    }
    assert len(places) == 4


def test_limit_seed_level_and_study_do_not(setup: EngineSetup) -> None:
    changed = WORK.request.model_copy(update={"limit": 3, "seed": 5, "level": 0.5})
    other = dataclasses.replace(WORK, request=changed, score_key="other", label="other")
    elsewhere = dataclasses.replace(setup, out=setup.out.with_name("another"))
    assert place(elsewhere, other) == place(setup)
