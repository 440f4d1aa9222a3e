"""Settings that choose experts: their cells, baselines and facts, and what can be wrong."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from ablations.runner import records
from ablations.runner.run import RunOptions, run_study
from ablations.study.files import read_study
from ablations.study.planning import StudyPlan, plan_study
from layerswap_method.errors import InputError
from tests.standins.studies import study_document, write_yaml

CODES = {"sw": ["swahili"], "te": ["telugu"]}
LANGUAGE = {"language": ["swahili"]}


def plan(tmp_path: Path, experts_file: Path, vary: Any, **changes: Any) -> StudyPlan:
    document = study_document(**{"vary": vary, "experts": LANGUAGE, "baseline": [], **changes})
    path = write_yaml(tmp_path / "study.yml", document)
    return plan_study(read_study(path), experts_file, backend="hf")


def problem(tmp_path: Path, experts_file: Path, vary: Any, **changes: Any) -> str:
    with pytest.raises(InputError) as caught:
        plan(tmp_path, experts_file, vary, **changes)
    return caught.value.message


@pytest.fixture
def measured(experts: Path, tmp_path: Path) -> Path:
    """Return an experts file in which the task experts have facts."""
    document = yaml.safe_load(experts.read_text())
    for name, facts in (("math", {"divergence": 0.01, "steps": 5}), ("math_2", {"steps": 9})):
        document["experts"][name] = {"path": document["experts"][name], "facts": facts}
    return write_yaml(tmp_path / "measured.yml", document)


def test_experts_vary_as_parameters_do_and_baselines_are_of_the_same(
    tmp_path: Path, experts: Path
) -> None:
    vary = {"experts.task": ["math", "math_2"], "bottom_layers": [1, 2]}
    baseline = ["base", "task_expert", "language_expert", "soup", "ties"]
    found = plan(tmp_path, experts, vary, baseline=baseline)
    assert [cell.label for cell in found.cells] == [
        *("base", "task_expert math", "task_expert math_2", "language_expert"),
        *("soup math+swahili", "soup math_2+swahili", "ties math+swahili", "ties math_2+swahili"),
        *("experts.task=math bottom_layers=1", "experts.task=math bottom_layers=2"),
        *("experts.task=math_2 bottom_layers=1", "experts.task=math_2 bottom_layers=2"),
    ]
    merged = found.cells[-1]
    assert merged.experts == {"task": "math_2", "language": "swahili", "base": "base"}
    assert merged.merge["models"][0]["model"] == found.experts["math_2"].reference
    assert "experts.task" not in str(merged.merge)
    assert len(found.groups()) == len(found.cells)


def test_a_setting_may_choose_a_pool_a_single_expert_or_the_base(
    tmp_path: Path, experts: Path
) -> None:
    vary = [
        {"experts.task": ["math", "math_2"], "bottom_layers": 1},
        {"experts.task": "base", "bottom_layers": 1},
        {"experts.language": "telugu", "experts.task": "math"},
        {"experts.base": "math", "experts.task": "math_2"},
    ]
    pools = {"task": ["math"], "language": CODES}
    evaluate = {"tasks": [], "languages": {"sw": ["words_sw"], "te": ["words_te"]}}
    vary = [{"experts.language": "swahili", **setting} for setting in vary]
    found = plan(tmp_path, experts, vary, experts=pools, evaluate=evaluate, baseline=["base"])
    assert [(c.label.split()[0], *c.experts.values(), c.language) for c in found.cells] == [
        ("base", "base", None),
        ("base", "math", None),
        ("math+swahili", "math", "swahili", "base", "sw"),
        ("math_2+swahili", "math_2", "swahili", "base", "sw"),
        ("experts.language=swahili", "base", "swahili", "base", "sw"),
        ("experts.language=telugu", "math", "telugu", "base", "te"),
        ("experts.language=swahili", "math_2", "swahili", "math", "sw"),
    ]
    assert [cell.request.tasks for cell in found.cells[2:6]] == [
        *(("words_sw",) for _ in range(3)),
        ("words_te",),
    ]
    assert found.cells[2].facts()["experts.task"] == "math,math_2"


def test_facts_of_the_experts_file_are_in_the_study(tmp_path: Path, measured: Path) -> None:
    vary = [{"experts.task": ["math", "math_2"]}, {"experts.task": "math"}]
    asked = {"facts": ["experts.task.steps"]}
    found = plan(tmp_path, measured, vary, report=asked)
    pool, single = found.study.settings()
    assert found.study.fact("experts.task.steps", pool) == 7.0
    assert found.study.fact("experts.task.divergence", single) == 0.01
    assert found.study.fact("experts.task.divergence", pool) is None
    without = plan(tmp_path, measured, vary)  # a fact is no protocol
    assert [c.records for c in without.cells] == [c.records for c in found.cells]


@pytest.mark.parametrize(
    ("vary", "changes", "message"),
    [
        (
            {"experts.task": ["maht"]},
            {},
            "no expert 'maht' in the experts file; did you mean 'math'?",
        ),
        ({"experts.tasks": ["math"]}, {}, "'experts.tasks'; did you mean 'experts.task'?"),
        ({"experts.task": [3]}, {}, "vary: experts.task is 3; write the name of an expert"),
        ([{"experts.task": ["math", "math"]}], {}, "experts.task has the same name twice: math"),
        (
            [{"experts.task": "math", "experts.base": ["base", "math"]}],
            {},
            "experts.base is ['base', 'math']; a cell has one base",
        ),
        (
            [{"experts.task": "math", "placement": ["outer", "middle"]}],
            {},
            "placement is ['outer', 'middle']; only experts can be a list of names",
        ),
        (
            [{"experts.task": "math"}, {"bottom_layers": 1}],
            {},
            "experts.task is missing: name an expert, or name experts.task in every setting",
        ),
        (
            [{"experts.task": ["math", "math_2"]}, {"experts.task": ["base", "math", "math_2"]}],
            {},
            "experts.task has pools of 2 and 3 experts",
        ),
        (
            [{"experts.task": "math", "experts.language": "math_2"}],
            {"experts": {"language": CODES}},
            "experts.language names 'math_2', whose language is not known",
        ),
        (
            {"experts.language": ["swahili", "telugu"]},
            {
                "experts": {"task": ["math"], "language": CODES},
                "recipe": {
                    "merge_method": "delta_revert",
                    "models": [{"model": "task"}],
                    "base_model": "base",
                },
            },
            "vary names experts.language, but no model of the recipe is language",
        ),
        (
            {"experts.task": ["math", "math_2"]},
            {"report": {"facts": ["experts.task.divergenc"]}},
            "expert 'math' has no fact 'divergenc'; did you mean 'divergence'?; it has divergence",
        ),
        (
            {"experts.task": ["math", "math_2"]},
            {"report": {"facts": ["experts.task.divergence"]}},
            "expert 'math_2' has no fact 'divergence'; it has steps. Write it in the experts file",
        ),
        (
            {"experts.task": ["math", "math_2"]},
            {"report": {"facts": ["divergence"]}},
            "divergence: write experts.ROLE.FACT of a role that varies; vary names experts.task",
        ),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(
    tmp_path: Path, measured: Path, vary: Any, changes: dict[str, Any], message: str
) -> None:
    assert message in problem(tmp_path, measured, vary, **changes)


@pytest.mark.parametrize("fact", ["much", True, float("nan")])
def test_a_fact_is_a_number(tmp_path: Path, experts: Path, fact: object) -> None:
    document = yaml.safe_load(experts.read_text())
    document["experts"]["math"] = {"path": document["experts"]["math"], "facts": {"loss": fact}}
    path = write_yaml(tmp_path / "odd.yml", document)
    assert "experts.math.facts.loss" in problem(tmp_path, path, {"experts.task": ["math"]})
    document["experts"]["math"] = {"path": "x", "fact": {}}
    path = write_yaml(tmp_path / "odd.yml", document)
    told = problem(tmp_path, path, {"experts.task": ["math"]})
    assert "experts.math.fact: unknown key; did you mean 'facts'?" in told


@pytest.mark.slow
def test_a_run_over_experts_scores_each_of_them(tmp_path: Path, measured: Path) -> None:
    document = study_document(
        experts=LANGUAGE,
        baseline=["task_expert"],
        vary=[{"experts.task": ["math", "math_2"]}, {"experts.task": "math", "bottom_layers": 2}],
        report={"facts": ["experts.task.steps"]},
    )
    study = str(write_yaml(tmp_path / "small.yml", document))
    result = run_study(study, RunOptions(experts=measured, out=tmp_path / "run", backend="hf"))
    assert not result.summary.failed
    run = records.load_run(tmp_path / "run")
    assert [(cell.kind, cell.experts["task"]) for cell in run.cells] == [
        *(("task_expert", name) for name in ("math", "math_2")),
        *(("recipe", name) for name in ("math", "math_2", "math")),
    ]
    assert run.cells[2].values == {"experts.task": ("math", "math_2")}
    assert len({cell.weights_key for cell in run.cells}) == 5
    assert {cell.provenance["weights"] for cell in run.cells} == {"streamed"}
    assert run.study.evaluate.options.dtype == "float32"
    assert run.study.experts.facts["math_2"] == {"steps": 9}
