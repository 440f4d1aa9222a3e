import pytest

from ablations.report.factors import difference, factors, most_draws
from tests.report.runs import study_of


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
        ({"placement": ["outer", "middle"]}, "placement", ["outer", "middle"]),
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


def _placements() -> list[dict[str, object]]:
    drawn = [{"placement": "random", "seed": seed} for seed in (0, 1, 2)]
    places = [{"placement": "outer"}, {"placement": "middle"}, *drawn]
    counts = [{"bottom_layers": b, "top_layers": u} for b, u in ((5, 2), (8, 4))]
    # As a study lists them that was put together by hand: the second block in another order.
    return [p | counts[0] for p in places] + [p | counts[1] for p in reversed(places)]


def test_seeds_are_draws_of_a_setting_and_no_factor() -> None:
    study = study_of(vary=_placements())
    placement, count = factors(study)
    assert (placement.label, count.label) == ("placement", "layer count")
    assert [level.label for level in placement.levels] == ["outer", "middle", "random"]
    assert most_draws(study) == 3
    # All levels are as long and in the same order, so that models are compared in pairs.
    labels = [[model.short for model in level.models] for level in placement.levels]
    assert labels == [
        ["outer b=5 u=2"] * 3 + ["outer b=8 u=4"] * 3,
        ["middle b=5 u=2"] * 3 + ["middle b=8 u=4"] * 3,
        [f"random seed={s} b={b} u={u}" for b, u in ((5, 2), (8, 4)) for s in (0, 1, 2)],
    ]
    for level in count.levels:
        places = [model.short.split()[0] for model in level.models]
        assert places == ["outer"] * 3 + ["middle"] * 3 + ["random"] * 3


def test_seeds_alone_are_compared() -> None:
    study = study_of(vary={"seed": [0, 1]})
    (factor,) = factors(study)
    assert [level.label for level in factor.levels] == ["0", "1"]
    assert most_draws(study) == most_draws(study_of(recipe=None, baseline=["base"])) == 1


def test_a_setting_that_sets_nothing_is_named() -> None:
    zone = {"bottom_transition": 1, "top_transition": 1}
    vary = [{"bottom_layers": 1}, {"bottom_layers": 1, **zone, "weighting": "magnitude"}]
    (factor,) = factors(study_of(vary=[*vary, {"bottom_layers": 1, **zone}]))
    assert difference(factor, factor.levels[1])[2] == "not set"


def test_settings_without_a_grid_are_named_by_what_differs() -> None:
    vary = _placements()[:1] + _placements()[1:2] + _placements()[-2:] + [{"placement": "middle"}]
    (factor,) = factors(study_of(vary=vary))
    assert factor.label == "placement and layer count"
    assert [difference(factor, level) for level in factor.levels[1:]] == [
        ("placement", "middle", "outer", "b=5 u=2"),
        ("placement and layer count", "middle b=8 u=4", "outer b=5 u=2", ""),
        ("layer count", "b=8 u=4", "b=5 u=2", "outer"),
        ("placement and layer count", "middle", "outer b=5 u=2", ""),
    ]


def test_a_setting_that_says_nothing_has_a_name() -> None:
    (factor,) = factors(study_of(vary=[{"embeddings": "base"}, {}]))
    assert [level.label for level in factor.levels] == ["base", "not set"]
    assert factor.levels[1].value is None
