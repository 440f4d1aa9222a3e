"""Laws of the layer plan (arXiv 2410.01335, Algorithm 1 and section 4.2)."""

from __future__ import annotations

import itertools
import math
import random
import time
import timeit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerswap_method.layer_lists import format_layers, parse_layers
from layerswap_method.plan import LayerPlan, build_plan, describe_plan, draw_plan


@st.composite
def outer_counts(draw: st.DrawFn) -> tuple[int, int, int, int, int]:
    total = draw(st.integers(1, 96))
    b = draw(st.integers(0, total))
    u = draw(st.integers(0, total - b))
    t_b = draw(st.integers(0, total - b - u))
    t_u = draw(st.integers(0, total - b - u - t_b))
    return total, b, u, t_b, t_u


def outer(total: int, b: int, u: int, t_b: int, t_u: int) -> LayerPlan:
    return build_plan(
        total, bottom_layers=b, top_layers=u, bottom_transition=t_b, top_transition=t_u
    )


# From research: Algorithm 1 with "and", on the 32 layers of Llama 3.1 8B.
@pytest.mark.parametrize(
    ("counts", "language", "average"),
    [
        ((5, 2, 0, 0), [0, 1, 2, 3, 4, 30, 31], []),
        ((5, 2, 1, 1), [0, 1, 2, 3, 4, 30, 31], [5, 29]),
        ((5, 2, 2, 2), [0, 1, 2, 3, 4, 30, 31], [5, 6, 28, 29]),
        ((3, 0, 0, 1), [0, 1, 2], [31]),
        ((0, 0, 0, 0), [], []),
    ],
)
def test_the_papers_configurations(
    counts: tuple[int, int, int, int], language: list[int], average: list[int]
) -> None:
    plan = outer(32, *counts)
    assert list(plan.layers_from("language")) == language
    assert list(plan.layers_from("average")) == average
    assert set(plan.layers_from("task")) == set(range(32)) - set(language) - set(average)


@given(outer_counts())
def test_every_layer_has_one_source_and_the_counts_hold(counts: tuple[int, ...]) -> None:
    total, b, u, t_b, t_u = counts
    plan = outer(*counts)
    found = [len(plan.layers_from(source)) for source in ("language", "average", "task")]
    assert found == [b + u, t_b + t_u, total - b - u - t_b - t_u]


@given(outer_counts())
def test_turning_the_model_upside_down_turns_the_plan(counts: tuple[int, ...]) -> None:
    total, b, u, t_b, t_u = counts
    assert outer(total, u, b, t_u, t_b).sources == outer(*counts).sources[::-1]


@given(outer_counts())
def test_outer_is_the_explicit_set_where_both_runs_exist(counts: tuple[int, ...]) -> None:
    total, b, u, t_b, t_u = counts
    plan = outer(*counts)
    if not (b and u and plan.layers_from("task")):
        return
    text = format_layers(plan.layers_from("language"))
    explicit = build_plan(
        total,
        placement="layers",
        language_layers=text,
        bottom_transition=t_b,
        top_transition=t_u,
    )
    # An explicit run has both transitions; at the ends of the model one side does not exist.
    assert explicit.sources == plan.sources


@given(
    st.integers(1, 96).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))),
    st.sampled_from(["middle", "random", "alternating"]),
    st.integers(0, 1000),
)
def test_other_placements_swap_the_same_number(
    size: tuple[int, int], placement: str, seed: int
) -> None:
    total, count = size
    b = count // 2
    plan = build_plan(
        total,
        bottom_layers=b,
        top_layers=count - b,
        placement=placement,  # type: ignore[arg-type]
        seed=seed,
    )
    assert len(plan.layers_from("language")) == count
    assert not plan.layers_from("average")


def test_middle_is_one_centred_run() -> None:
    plan = build_plan(32, placement="middle")
    assert format_layers(plan.layers_from("language")) == "12-18"
    for total in range(1, 40):
        for count in range(total + 1):
            layers = build_plan(
                total, bottom_layers=count, top_layers=0, placement="middle"
            ).layers_from("language")
            if layers:
                below, above = layers[0], total - 1 - layers[-1]
                assert layers == tuple(range(layers[0], layers[-1] + 1))
                assert above - below in (0, 1)


def test_alternating_is_every_second_layer_at_half() -> None:
    plan = build_plan(8, bottom_layers=2, top_layers=2, placement="alternating")
    assert plan.layers_from("language") == (0, 2, 4, 6)
    found = build_plan(32, placement="alternating").layers_from("language")
    gaps = [after - before for before, after in itertools.pairwise(found)]
    assert len(gaps) == 6
    assert set(gaps) <= {math.floor(32 / 7), math.ceil(32 / 7)}


def test_random_depends_on_the_seed_alone() -> None:
    state = random.getstate()
    plans = [build_plan(32, placement="random", seed=seed) for seed in range(20)]
    assert random.getstate() == state
    assert plans == [build_plan(32, placement="random", seed=seed) for seed in range(20)]
    assert len({plan.sources for plan in plans}) > 15
    # Pinned: a recipe shared with its seed must mean the same layers for ever.
    assert plans[0].layers_from("language") == PINNED_SEED_0


PINNED_SEED_0 = (3, 5, 7, 12, 15, 20, 25)


def test_random_reaches_every_layer() -> None:
    seen: set[int] = set()
    for seed in range(60):
        seen |= set(build_plan(32, placement="random", seed=seed).layers_from("language"))
    assert seen == set(range(32))


def test_transitions_sit_above_and_below_each_run_and_language_wins() -> None:
    plan = build_plan(
        12, placement="layers", language_layers="2,5-6,11", bottom_transition=2, top_transition=1
    )
    #            0       1          2           3          4          5           6
    assert plan.sources == (
        "task",
        "average",
        "language",
        "average",
        "average",
        "language",
        "language",
        "average",
        "average",
        "task",
        "average",
        "language",
    )


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"bottom_layers": 6, "top_layers": 3}, "6 + 3 = 9 is more than the model's 8 layers"),
        (
            {"bottom_layers": 4, "top_layers": 2, "bottom_transition": 2, "top_transition": 1},
            "4 + 2 + 2 + 1 = 9 is more than the model's 8 layers",
        ),
        ({"bottom_layers": -1}, "bottom_layers is -1; it must be 0 or more"),
        ({"placement": "layers"}, "needs language_layers"),
        (
            {"placement": "layers", "language_layers": "0-8"},
            "layer 8 does not exist; the model has layers 0 to 7",
        ),
        (
            {"placement": "middle", "bottom_transition": 2},
            "bottom_layers + top_layers + bottom_transition + top_transition = 5 + 2 + 2 + 0 = 9 "
            "is more than the model's 8 layers",
        ),
        (
            {"placement": "random", "bottom_layers": 0, "top_transition": 30_000_000},
            "0 + 2 + 0 + 30000000 = 30000002 is more than the model's 8 layers",
        ),
        (
            {"placement": "layers", "language_layers": "0-6", "top_transition": 2},
            "7 + 0 + 2 = 9 is more than the model's 8 layers",
        ),
        (
            {
                "placement": "middle",
                "bottom_layers": 0,
                "top_layers": 0,
                "bottom_transition": 2,
            },
            "bottom_transition 2 and top_transition 0 have no effect: no layer is swapped",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_its_numbers(
    kwargs: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=r".") as error:
        build_plan(8, **kwargs)  # type: ignore[arg-type]
    assert message in str(error.value)


@given(st.sets(st.integers(0, 60), min_size=1))
def test_layer_text_round_trips(layers: set[int]) -> None:
    assert set(parse_layers(format_layers(layers))) == layers


MALFORMED = ["", "a", "3-1", "1,1", "0-3,2", "1-", "-1", "1..3", "²", "1 2", "1-２", "1-²", "２"]


@pytest.mark.parametrize("text", MALFORMED)
def test_malformed_layer_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="language_layers"):
        parse_layers(text)


@pytest.mark.parametrize(
    "text", ["0-99999999999", "100000", "5-000100000", "9" * 5000, "0," + "1" * 5000]
)
def test_layers_that_no_model_has_are_refused_before_they_are_listed(text: str) -> None:
    with pytest.raises(ValueError, match=r"does not exist; no model has 100000 layers"):
        parse_layers(text)


def test_long_ranges_are_read_in_linear_time() -> None:
    def read() -> None:
        assert parse_layers("0-99999") == tuple(range(100_000))
        with pytest.raises(ValueError, match="layer 0 is named twice"):
            parse_layers(",".join(["0-99999"] * 1000))

    # The best of three in this process's own time: a machine that stands still spoils one.
    assert min(timeit.repeat(read, timer=time.process_time, number=1, repeat=3)) < 5


def test_drawing_and_description_show_every_layer() -> None:
    plan = build_plan(8, bottom_layers=2, top_layers=1, bottom_transition=1)
    assert "██▒····█" in draw_plan(plan)
    assert describe_plan(plan) == "8 layers: language 0-1,7; average 2; task 3-6"
