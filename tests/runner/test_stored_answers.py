"""What must never be reused: answers of other weights, engines, options and versions."""

from pathlib import Path

import pytest

from ablations.engines.options import EngineOptions
from ablations.models.find import Expert
from ablations.runner import engines
from ablations.runner.engines import StudyEngine, answer_file
from ablations.scoring.protocol import GenKwargs
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


WARM = {"gen_kwargs": GenKwargs(temperature=1.0)}


@pytest.mark.parametrize(
    ("changes", "is_other"),
    [
        ({"options": {"dtype": "bfloat16"}}, True),
        ({"options": {"max_model_len": 32}}, True),
        ({"options": {"batch_size": 3}}, True),
        ({"backend": "vllm"}, True),
        ({"work": work_of(REQUEST, name="y")}, True),
        ({"work": work_of(REQUEST.model_copy(update=WARM))}, True),
        ({"options": {"kv_cache_gib": 9, "max_num_seqs": 3}}, False),
        (
            {"work": work_of(REQUEST.model_copy(update={"limit": 3, "seed": 5, "level": 0.5}))},
            False,
        ),
        ({"out": Path("another")}, False),
    ],
)
def test_what_changes_an_answer_asks_again(place, changes, is_other):
    assert (place(**changes) != place()) == is_other


@pytest.mark.parametrize("package", ["torch", "transformers", None])
def test_another_version_or_context_asks_again(place, package, monkeypatch):
    before, versions = place(), engines.backend_versions("hf")
    if package is None:
        monkeypatch.setattr(engines, "context_of", lambda _: 7)
    else:
        assert package in versions
        monkeypatch.setattr(engines, "backend_versions", lambda _: {**versions, package: "0.0.1"})
    assert place() != before
