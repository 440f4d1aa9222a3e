"""What must never be reused: answers of other weights, engines, options and versions."""

import pytest

from ablations.engines.options import EngineOptions
from ablations.models.find import Expert
from ablations.runner import engines
from ablations.runner.engines import StudyEngine, answer_file
from ablations.scoring.protocol import GenKwargs, Protocol
from ablations.scoring.records import EvaluationRequest
from tests.runner.fakes import plan_of, work_of

REQUEST = EvaluationRequest(tasks=("words",))


@pytest.fixture
def place(tmp_path, models):
    """Return a function that says where an answer is, and under which key."""

    def place(work=None, out=tmp_path, **changes):
        options = EngineOptions(dtype="float32").model_copy(update=changes.pop("options", {}))
        plan = plan_of(Expert("base", models / "base"), options=options)
        vars(plan).update(changes)
        answers = answer_file(
            StudyEngine(plan, out, tmp_path / "answers"), work or work_of(REQUEST)
        )
        return answers.path, answers.key("prompt")

    return place


@pytest.mark.parametrize(
    ("options", "is_other"),
    [
        ({"dtype": "bfloat16"}, True),
        ({"max_model_len": 32}, True),
        ({"batch_size": 3}, True),
        ({"device_map": "auto"}, True),
        ({"kv_cache_gib": 9, "max_num_seqs": 3}, False),
    ],
    ids=str,
)
def test_options_that_change_an_answer_ask_again(place, options, is_other):
    assert (place(options=options) != place()) == is_other


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_another_version_asks_again(place, package, monkeypatch):
    before, versions = place(), engines.backend_versions("hf")
    assert package in versions
    other = {**versions, package: "0.0.1"}
    monkeypatch.setattr(engines, "backend_versions", lambda _: other)
    assert place() != before


def test_another_context_asks_again(place, monkeypatch):
    before = place()
    monkeypatch.setattr(engines, "context_of", lambda _: 7)
    assert place() != before


def test_other_weights_engines_and_protocols_ask_again(place):
    protocol = Protocol(gen_kwargs=GenKwargs(temperature=1.0))
    warm = work_of(REQUEST.model_copy(update={"protocol": protocol}))
    assert (
        len({place(), place(work_of(REQUEST, name="y")), place(warm), place(backend="vllm")}) == 4
    )


def test_limit_seed_level_and_study_do_not(place, tmp_path):
    changed = REQUEST.model_copy(update={"limit": 3, "seed": 5, "level": 0.5})
    assert place(work_of(changed), out=tmp_path / "another") == place()
