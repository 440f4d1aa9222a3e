from ablations.report.baselines import baselines
from ablations.report.design import describe_setting, groups, recipe_models, setting_key
from tests.report.runs import NINE_PAIRS, study_of


def test_true_is_not_one_and_order_does_not_matter() -> None:
    assert setting_key({"a": True}) != setting_key({"a": 1})
    assert setting_key({"a": 1, "b": 2}) == setting_key({"b": 2, "a": 1})
    assert describe_setting({"bottom_layers": 5, "on": False}) == "b=5 on=false"
    assert describe_setting({"placement": "middle", "bottom_layers": 5}) == "middle b=5"


def test_numbered_experts_are_a_range() -> None:
    for names, text in (
        (("math_1", "math_2", "math_3"), "math_1-3"),
        (("math_1", "math_3"), "math_1,3"),
        (("math_2", "math_1"), "math_2,math_1"),
        (("math_1",), "math_1"),
        (("math_1", "maths_2"), "math_1,maths_2"),
        (("math_01", "math_02"), "math_01,math_02"),
    ):
        assert describe_setting({"experts.task": names}) == f"task={text}"


def test_a_group_per_language_or_one_of_all() -> None:
    swahili, telugu = groups(study_of(experts=NINE_PAIRS))
    assert (swahili.language, swahili.language_experts) == ("sw", 3)
    assert (telugu.language, telugu.task_experts) == ("te", 3)
    (only,) = groups(study_of(experts={"task": ["m"], "language": ["a", "b"]}))
    assert (only.language, only.language_experts) == (None, 2)


def test_models_are_named_by_what_varies_only() -> None:
    study = study_of(baseline=["ties"], vary=[{"bottom_layers": 5, "seed": s} for s in (0, 1)])
    assert [model.label for model in baselines(study)] == ["TIES"]
    assert [model.label for model in recipe_models(study)] == [
        "layer swap seed=0",
        "layer swap seed=1",
    ]
    assert [model.short for model in recipe_models(study)] == ["seed=0", "seed=1"]
    assert [model.short for model in recipe_models(study_of())] == ["layer swap"]
