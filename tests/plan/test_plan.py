"""Laws of the layer plan (arXiv 2410.01335, Algorithm 1 and section 4.2)."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerswap_method.plan import (
    SOURCES,
    LayerPlan,
    build_plan,
    describe_plan,
    draw_plan,
    format_layers,
    parse_layers,
)
from tests.standins.oracle import layer_sources


@st.composite
def outer_counts(draw):
    total = draw(st.integers(1, 96))
    b = draw(st.integers(0, total))
    u = draw(st.integers(0, total - b))
    t_b = draw(st.integers(0, total - b - u))
    t_u = draw(st.integers(0, total - b - u - t_b))
    return total, b, u, t_b, t_u


def named(b, u, t_b=0, t_u=0):
    counts = {"bottom_layers": b, "top_layers": u}
    return counts | {"bottom_transition": t_b, "top_transition": t_u}


LISTED = {"placement": "layers", "language_layers": "2,5-6,11"}


@pytest.mark.parametrize(
    ("layers", "parameters", "plan"),
    [
        # From research: Algorithm 1 with "and", on the 32 layers of Llama 3.1 8B.
        (32, named(5, 2, 1, 1), "lllll" + "a" + "t" * 23 + "a" + "ll"),
        # Transitions sit around each run, and language wins.
        (12, {**named(5, 2, 2, 1), **LISTED}, "talaallaatal"),
        (8, {**named(2, 1), "placement": "middle"}, "ttlllttt"),
        (8, {**named(2, 2), "placement": "alternating"}, "ltltltlt"),
        # Pinned: a recipe shared with its seed must mean the same layers for ever.
        (32, {"placement": "random"}, "tttltltltttt" + "lttltttt" + "ltttt" + "ltttttt"),
        (4, {"placement": "soup"}, "aaaa"),
    ],
)
def test_plans_as_a_table(layers, parameters, plan):
    assert build_plan(layers, **parameters).to_text() == plan


@given(
    outer_counts(), st.sampled_from(["outer", "middle", "random", "alternating", "soup"]), st.data()
)
def test_every_placement_is_that_of_the_oracle(counts, placement, data):
    total, b, u, t_b, t_u = counts
    seed = data.draw(st.integers(0, 99))
    parameters = {**named(b, u, t_b, t_u), "placement": placement, "seed": seed}
    if not b + u and placement != "outer":
        parameters |= named(0, 0)
    state = random.getstate()
    plan = build_plan(total, **parameters)
    assert random.getstate() == state
    assert list(plan.sources) == layer_sources(parameters, total)
    if placement != "soup":
        assert len(plan.layers_from("language")) == b + u
    if placement == "outer":
        assert len(plan.layers_from("task")) == total - b - u - t_b - t_u
        upside_down = build_plan(total, **named(u, b, t_u, t_b))
        assert upside_down.sources == plan.sources[::-1]


def test_a_plan_in_words_and_as_a_picture():
    plan = build_plan(12, **named(5, 2, 2, 1), **LISTED)
    assert describe_plan(plan) == "12 layers: language 2,5-6,11; average 1,3-4,7-8,10; task 0,9"
    assert "·▒█▒▒██▒▒·▒█" in draw_plan(plan)


@pytest.mark.parametrize(
    ("parameters", "parts"),
    [
        (named(4, 2, 2, 1), ["4 + 2 + 2 + 1 = 9", "8 layers"]),
        (named(-1, 2), ["bottom_layers is -1"]),
        ({"placement": "layers"}, ["language_layers"]),
        ({"placement": "layers", "language_layers": "0-8"}, ["layer 8", "0 to 7"]),
        ({**LISTED, "language_layers": "0-6", "top_transition": 2}, ["7 + 2 = 9"]),
        ({**named(0, 2, 0, 30_000_000), "placement": "random"}, ["= 30000002", "8 layers"]),
        ({**named(0, 0, 2), "placement": "middle"}, ["bottom_transition 2", "no effect"]),
        ({"placement": "delta_share"}, ["delta_share", "measured"]),
    ],
)
def test_what_does_not_fit_is_refused_with_its_numbers(parameters, parts):
    with pytest.raises(ValueError, match=r".") as error:
        build_plan(8, **parameters)
    assert all(part in str(error.value) for part in parts), error.value


@given(st.lists(st.sampled_from(SOURCES), min_size=1, max_size=9), st.data())
def test_a_plan_survives_as_text(sources, data):
    row = st.lists(st.sampled_from(SOURCES), min_size=len(sources), max_size=len(sources))
    modules = {name: tuple(data.draw(row)) for name in ("attention", "mlp")}
    plan = LayerPlan(tuple(sources), modules)
    assert LayerPlan.from_text(plan.to_text()) == plan


@pytest.mark.parametrize("text", ["", "tx", "tl/t", "tl/tl", "tl/tl/t", "tl/tl/tl/tl"])
def test_what_is_no_plan(text):
    with pytest.raises(ValueError, match="plan"):
        LayerPlan.from_text(text)


@given(st.sets(st.integers(0, 60), min_size=1))
def test_layer_text_round_trips(layers):
    assert set(parse_layers(format_layers(layers))) == layers


MALFORMED = ["", "a", "3-1", "1,1", "0-3,2", "1-", "-1", "²", "1 2", "1-２"]
TOO_MANY = ["0-99999999999", "100000", "9" * 5000]


@pytest.mark.parametrize("text", [*MALFORMED, *TOO_MANY], ids=lambda text: text[:20])
def test_layer_text_that_is_refused(text):
    with pytest.raises(ValueError, match=r"language_layers .*") as error:
        parse_layers(text)
    assert ("no model has 100000 layers" in str(error.value)) == (text in TOO_MANY)
    assert len(str(error.value)) < 300
