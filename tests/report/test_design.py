import pytest

from ablations.report.design import (
    baselines,
    describe_setting,
    factors,
    groups,
    recipe_models,
    setting_key,
)
from tests.report.runs import NINE_PAIRS, study_of


def test_true_is_not_one_and_order_does_not_matter() -> None:
    assert setting_key({"a": True}) != setting_key({"a": 1})
    assert setting_key({"a": 1, "b": 2}) == setting_key({"b": 2, "a": 1})
    assert describe_setting({"bottom_layers": 5, "on": False}) == "b=5 on=false"


def test_a_grid_has_a_factor_per_parameter_and_matched_levels() -> None:
    study = study_of(vary={"bottom_layers": [0, 3], "top_layers": [0, 1, 2], "seed": [7]})
    bottom, top = factors(study)
    assert (bottom.names, top.names) == (("bottom_layers",), ("top_layers",))
    assert [level.label for level in top.levels] == ["u=0", "u=1", "u=2"]
    labels = [[model.label for model in level.models] for level in bottom.levels]
    assert labels == [
        ["layer swap b=0 u=0", "layer swap b=0 u=1", "layer swap b=0 u=2"],
        ["layer swap b=3 u=0", "layer swap b=3 u=1", "layer swap b=3 u=2"],
    ]


@pytest.mark.parametrize(
    ("vary", "label", "levels"),
    [
        (
            [{"bottom_layers": b, "top_layers": u} for b, u in ((0, 0), (3, 1), (5, 2))],
            "layer count",
            ["b=0 u=0", "b=3 u=1", "b=5 u=2"],
        ),
        (
            [{"bottom_transition": t, "top_transition": t} for t in (1, 0)],
            "transition zone",
            ["on", "off"],
        ),
        ({"placement": ["outer", "middle"]}, "placement", ["placement=outer", "placement=middle"]),
        (
            [{"embeddings": "base"}, {"top_layers": 1}],
            "embeddings and top layers",
            ["embeddings=base", "u=1"],
        ),
    ],
)
def test_parameters_that_vary_together_are_one_factor(
    vary: object, label: str, levels: list[str]
) -> None:
    (factor,) = factors(study_of(vary=vary))
    assert factor.label == label
    assert [level.label for level in factor.levels] == levels


def test_bundles_of_parameters_can_form_a_grid() -> None:
    counts, transitions = ((5, 2), (8, 4)), (0, 2, 4)
    vary = [
        {"bottom_layers": b, "top_layers": u, "bottom_transition": t, "top_transition": t}
        for b, u in counts
        for t in transitions
    ]
    count, transition = factors(study_of(vary=vary))
    assert (count.label, transition.label) == ("layer count", "transition zone")
    assert [level.label for level in count.levels] == ["b=5 u=2", "b=8 u=4"]
    assert [len(level.models) for level in transition.levels] == [2, 2, 2]
    assert [model.label for model in transition.levels[1].models] == [
        "layer swap b=5 u=2 t_b=2 t_u=2",
        "layer swap b=8 u=4 t_b=2 t_u=2",
    ]
    # One setting less is no grid: every setting is a level of its own.
    (everything,) = factors(study_of(vary=vary[:-1]))
    assert [len(level.models) for level in everything.levels] == [1] * 5


@pytest.mark.parametrize("changes", [{}, {"vary": {"seed": [3]}}, {"recipe": None}])
def test_without_a_choice_there_is_no_factor(changes: dict[str, object]) -> None:
    assert factors(study_of(baseline=["base"], **changes)) == ()


def test_a_group_per_language_or_one_of_all() -> None:
    swahili, telugu = groups(study_of(experts=NINE_PAIRS))
    assert (swahili.language, swahili.language_experts) == ("sw", ("swh_1", "swh_2", "swh_3"))
    assert (telugu.language, telugu.task_experts) == ("te", ("math_1", "math_2", "math_3"))
    (only,) = groups(study_of(experts={"task": ["m"], "language": ["a", "b"]}))
    assert (only.language, only.language_experts) == (None, ("a", "b"))


def test_models_are_named_by_what_varies_only() -> None:
    study = study_of(baseline=["ties"], vary=[{"bottom_layers": 5, "seed": s} for s in (0, 1)])
    assert [model.label for model in baselines(study)] == ["TIES"]
    assert [model.label for model in recipe_models(study)] == [
        "layer swap seed=0",
        "layer swap seed=1",
    ]
