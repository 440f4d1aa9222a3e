"""``suggest: true``: the layer counts are found from the experts when a study is planned."""

from pathlib import Path
from typing import Any

import pytest

from ablations.delta.suggest import suggest
from ablations.study.describe import describe_plan
from ablations.study.files import read_study
from ablations.study.planning import StudyPlan, plan_study
from layerswap_method.errors import InputError
from layerswap_method.layer_swap import measure
from tests.standins.studies import study_document, write_yaml

RECIPE = {
    "merge_method": "layer_swap",
    "models": [{"model": "task"}, {"model": "language"}],
    "base_model": "base",
    "dtype": "float32",
}


def planned(tmp_path: Path, tuned: Path, *, dry: bool = False, **changes: Any) -> StudyPlan:
    given = {"recipe": RECIPE, "baseline": ["soup"], **changes}
    path = write_yaml(tmp_path / "study.yml", study_document(**given))
    return plan_study(read_study(path), tuned / "experts.yml", backend="hf", dry=dry)


def test_the_setting_is_what_the_command_proposes(tuned: Path, tmp_path: Path) -> None:
    settings = [{"suggest": True}, {"bottom_layers": 1, "top_layers": 1}]
    plan = planned(tmp_path, tuned, vary=settings)
    names = ("math", "swahili", "base")
    task, language, base = (str(tuned / name) for name in names)
    told = "\n".join(suggest([task], [language], base, threshold=0.001))
    assert "proposed: b=1 u=1 t_b=0 t_u=0" in told
    found = plan.study.settings()
    assert found == ({"suggest": True, "bottom_layers": 1, "top_layers": 1}, settings[1])
    suggested, twin = plan.cells[1:]
    assert suggested.label == "suggest=True bottom_layers=1 top_layers=1"
    assert suggested.weights_key == twin.weights_key
    assert suggested.merge["parameters"] == {"bottom_layers": 1, "top_layers": 1}
    assert "layerswap suggest proposes bottom_layers=1 top_layers=1" in " ".join(plan.notes)


def test_other_experts_give_another_setting(tuned: Path, tmp_path: Path) -> None:
    experts = {"task": ["telugu"], "language": ["swahili"]}
    plan = planned(tmp_path, tuned, vary=[{"suggest": True}, {"bottom_layers": 1}], experts=experts)
    assert plan.study.settings()[0] == {"suggest": True, "bottom_layers": 1, "top_layers": 0}


def test_its_counts_are_not_scaled(tuned: Path, tmp_path: Path) -> None:
    settings = [{"suggest": True}, {"bottom_layers": 8, "top_layers": 8}]
    plan = planned(tmp_path, tuned, vary=settings, reference_layers=32)
    assert plan.cells[1].weights_key == plan.cells[2].weights_key


def test_a_dry_run_reads_no_weights(
    tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object) -> None:
        raise AssertionError("a dry run opens no pair")

    monkeypatch.setattr(measure, "open_pair", refuse)
    plan = planned(tmp_path, tuned, dry=True, vary=[{"suggest": True}, {"bottom_layers": 2}])
    text = describe_plan(plan, materialize=False)
    assert "the suggestion is found from the experts before the first cell" in text
    assert "suggest=True" in text


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"vary": [{"suggest": True, "bottom_layers": 1}]},
            "suggest: true chooses bottom_layers; leave bottom_layers out",
        ),
        ({"vary": [{"suggest": "yes"}]}, "suggest is 'yes'; write suggest: true"),
        (
            {
                "vary": [{"suggest": True}],
                "experts": {"task": ["math"], "language": ["swahili", "telugu"]},
            },
            "needs one language expert, and the study has 2; choose one with experts.language",
        ),
        (
            {
                "vary": [{"suggest": True}],
                "recipe": {"merge_method": "linear", "models": RECIPE["models"]},
            },
            "suggest needs merge_method: layer_swap",
        ),
    ],
)
def test_what_cannot_be_suggested_is_said(
    tuned: Path, tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InputError) as raised:
        planned(tmp_path, tuned, **changes)
    assert problem in str(raised.value)


def test_where_no_swap_is_proposed_the_others_run(tuned: Path, tmp_path: Path) -> None:
    # The experts in each other's roles: the language expert wins neither end.
    experts = {"task": ["swahili"], "language": ["math"]}
    settings = [{"suggest": True}, {"bottom_layers": 1}]
    plan = planned(tmp_path, tuned, vary=settings, experts=experts)
    assert plan.study.settings() == ({"bottom_layers": 1},)
    assert "layerswap suggest proposes no swap" in " ".join(plan.notes)
    with pytest.raises(InputError, match="nothing is left to run"):
        planned(tmp_path, tuned, vary=[{"suggest": True}], experts=experts)
