"""Laws of the layer plan (arXiv 2410.01335, Algorithm 1 and section 4.2)."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerswap_method.methods.layer_swap import LayerSwapSpec
from layerswap_method.plan import (
    SOURCES,
    LayerPlan,
    build_plan,
    describe_plan,
    draw_plan,
    format_layers,
    parse_layers,
    tensor_source,
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


def outer(total, *counts):
    return build_plan(total, **named(*counts))


# From research: Algorithm 1 with "and", on the 32 layers of Llama 3.1 8B.
@pytest.mark.parametrize(
    ("counts", "language", "average"),
    [
        ((5, 2, 0, 0), "0-4,30-31", ""),
        ((5, 2, 1, 1), "0-4,30-31", "5,29"),
        ((5, 2, 2, 2), "0-4,30-31", "5-6,28-29"),
        ((3, 0, 0, 1), "0-2", "31"),
        ((0, 0, 0, 0), "", ""),
    ],
)
def test_the_papers_configurations(counts, language, average):
    plan = outer(32, *counts)
    assert format_layers(plan.layers_from("language")) == language
    assert format_layers(plan.layers_from("average")) == average
    assert len(plan.layers_from("task")) == 32 - sum(counts)


@given(outer_counts())
def test_every_layer_has_one_source_and_the_counts_hold(counts):
    total, b, u, t_b, t_u = counts
    plan = outer(*counts)
    found = [len(plan.layers_from(source)) for source in ("language", "average", "task")]
    assert found == [b + u, t_b + t_u, total - b - u - t_b - t_u]
    upside_down = outer(total, u, b, t_u, t_b)
    assert upside_down.sources == plan.sources[::-1]
    if b and u and found[2]:
        text = format_layers(plan.layers_from("language"))
        explicit = {**named(5, 2, t_b, t_u), "placement": "layers", "language_layers": text}
        # An explicit run has both transitions; at the ends of the model one side does not exist.
        assert build_plan(total, **explicit).sources == plan.sources


@given(
    outer_counts(), st.sampled_from(["outer", "middle", "random", "alternating", "soup"]), st.data()
)
def test_every_placement_is_that_of_the_oracle(counts, placement, data):
    total, *numbers = counts
    given_counts = {
        **named(*numbers),
        "placement": placement,
        "seed": data.draw(st.integers(0, 99)),
    }
    if not numbers[0] + numbers[1] and placement != "outer":
        given_counts |= named(0, 0)
    plan = build_plan(total, **given_counts)
    assert list(plan.sources) == layer_sources(given_counts, total)
    if placement != "soup":
        assert len(plan.layers_from("language")) == numbers[0] + numbers[1]
    assert LayerPlan.from_text(plan.to_text()) == plan


def test_random_depends_on_the_seed_alone_and_reaches_every_layer():
    state = random.getstate()
    plans = [build_plan(32, placement="random", seed=seed) for seed in range(60)]
    assert random.getstate() == state
    assert {layer for plan in plans for layer in plan.layers_from("language")} == set(range(32))
    # Pinned: a recipe shared with its seed must mean the same layers for ever.
    assert plans[0].layers_from("language") == (3, 5, 7, 12, 15, 20, 25)


def test_transitions_sit_around_each_run_and_language_wins():
    plan = build_plan(12, **named(5, 2, 2, 1), placement="layers", language_layers="2,5-6,11")
    assert plan.to_text() == "talaallaatal"
    assert describe_plan(plan) == "12 layers: language 2,5-6,11; average 1,3-4,7-8,10; task 0,9"
    assert "·▒█▒▒██▒▒·▒█" in draw_plan(plan)


@pytest.mark.parametrize(
    ("given_counts", "parts"),
    [
        (named(6, 3), ["6 + 3 = 9", "8 layers"]),
        (named(4, 2, 2, 1), ["4 + 2 + 2 + 1 = 9", "8 layers"]),
        (named(-1, 2), ["bottom_layers is -1"]),
        ({"placement": "layers"}, ["language_layers"]),
        ({"placement": "layers", "language_layers": "0-8"}, ["layer 8", "0 to 7"]),
        ({**named(5, 2, 2), "placement": "middle"}, ["bottom_transition", "= 9"]),
        ({**named(0, 2, 0, 30_000_000), "placement": "random"}, ["= 30000002", "8 layers"]),
        (
            {"placement": "layers", "language_layers": "0-6", "top_transition": 2},
            ["7 + 0 + 2 = 9"],
        ),
        ({**named(0, 0, 2), "placement": "middle"}, ["bottom_transition 2", "no effect"]),
        ({"placement": "delta_share"}, ["delta_share", "measured"]),
    ],
)
def test_what_does_not_fit_is_refused_with_its_numbers(given_counts, parts):
    with pytest.raises(ValueError, match=r".") as error:
        build_plan(8, **given_counts)
    assert all(part in str(error.value) for part in parts), error.value


@given(st.lists(st.sampled_from(SOURCES), min_size=1, max_size=9), st.data())
def test_a_plan_survives_as_text(sources, data):
    row = st.lists(st.sampled_from(SOURCES), min_size=len(sources), max_size=len(sources))
    modules = {name: tuple(data.draw(row)) for name in ("attention", "mlp")}
    for plan in (LayerPlan(tuple(sources)), LayerPlan(tuple(sources), modules)):
        assert LayerPlan.from_text(plan.to_text()) == plan
    for text in ("", "tx", "tl/t", "tl/tl", "tl/tl/t", "tl/tl/tl/tl"):
        with pytest.raises(ValueError, match="plan"):
            LayerPlan.from_text(text)


@given(st.sets(st.integers(0, 60), min_size=1))
def test_layer_text_round_trips(layers):
    assert set(parse_layers(format_layers(layers))) == layers
    assert parse_layers("0-99999") == tuple(range(100_000))


MALFORMED = ["", "a", "3-1", "1,1", "0-3,2", "1-", "-1", "1..3", "²", "1 2", "1-２", "1-²", "２"]
TOO_MANY = ["0-99999999999", "100000", "5-000100000", "9" * 5000, "0," + "1" * 5000]


@pytest.mark.parametrize("text", [*MALFORMED, *TOO_MANY], ids=lambda text: text[:20])
def test_layer_text_that_is_refused(text):
    with pytest.raises(ValueError, match=r"language_layers .*") as error:
        parse_layers(text)
    assert ("no model has 100000 layers" in str(error.value)) == (text in TOO_MANY)
    assert len(str(error.value)) < 300


NAMES = {
    "attention": "model.layers.{}.self_attn.q_proj.weight",
    "mlp": "model.layers.{}.mlp.up_proj.weight",
    "norm": "model.layers.{}.input_layernorm.weight",
}
SWAP = {"bottom_layers": 2, "top_layers": 1, "bottom_transition": 1}
PLANNED = "llattttl"


@pytest.mark.parametrize(
    ("more", "attention", "mlp", "norm"),
    [
        ({}, PLANNED, PLANNED, PLANNED),
        ({"layer_norms": "average"}, PLANNED, PLANNED, "a" * 8),
        ({"swap_modules": "attention"}, PLANNED, "t" * 8, "t" * 8),
        ({"swap_modules": "mlp"}, "t" * 8, PLANNED, "t" * 8),
    ],
)
def test_which_part_of_a_layer_moves(more, attention, mlp, norm):
    spec = LayerSwapSpec(**SWAP, **more)
    plan = spec.plan(8)
    for part, wanted in (("attention", attention), ("mlp", mlp), ("norm", norm)):
        found = (spec.named_source(NAMES[part].format(layer), plan)[0] for layer in range(8))
        assert "".join(found) == wanted
    for name in ("lm_head.weight", "model.layers.8.mlp.up_proj.weight", "mtp.layers.0.mlp.x"):
        assert spec.named_source(name, plan) == "average"
        assert LayerSwapSpec(**SWAP, non_layer="base").named_source(name, plan) == "base"
    with pytest.raises(ValueError, match=r"layer 32 is not in 0\.\.7"):
        tensor_source("x", 32, plan)
