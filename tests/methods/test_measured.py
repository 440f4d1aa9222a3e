"""What goes by the changes of fine-tuning: its rules, and every tensor against float64."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from layerswap_method.average import Input, weighted_inputs
from layerswap_method.methods.delta_revert import keep_threshold
from layerswap_method.methods.delta_share import choose_source, unit_norm
from layerswap_method.methods.measured import inverse_mav
from tests.standins.fine_tunes import tune, uneven
from tests.standins.merging import merge_of, recipe, revert_recipe, tensors_of
from tests.standins.model_families import LAYERS
from tests.standins.oracle import (
    assert_same,
    chosen,
    layer_number,
    mean_change,
    mixture,
    part_of,
    published_shares,
    row_change,
    stored,
)

MOVES = {
    "math": (4e-4, {2: 2.0, 3: 2.0}, ""),
    "math_2": (2e-4, {3: 3.0}, ".mlp."),
    "swahili": (1e-4, {0: 4.0, 5: 2.0}, ".self_attn."),
}
"""How far an expert moves, and in which layers and module it moves so many times as far."""


def moved(expert, tensor):
    size, layers, module = MOVES[expert]
    return size * (layers.get(layer_number(tensor), 1.0) if module in tensor else 1.0)


@pytest.fixture(scope="module")
def tuned(trio, tmp_path_factory):
    """Return float32 fine-tunes of a base, far enough apart that weights and layers matter."""
    root = tmp_path_factory.mktemp("tuned")
    made = {n: tune(trio.base, root / n, i, partial(moved, n)) for i, n in enumerate(MOVES)}
    return {"base": trio.base, **made}


def measured(tuned, parameters, *names, **top):
    """Return a recipe over the named experts (default: math and swahili)."""
    models = {
        role: [tuned[name] for name in names or ("math", "swahili") if name.startswith(language)]
        for role, language in (("task", "math"), ("language", "swahili"))
    }
    return recipe(models, parameters, tuned["base"], dtype="float32") | top


def inverse(tuned, *names):
    """Return folder -> 1 / (mean change of an expert), in float64 and not rounded."""
    base = stored(tuned["base"])
    return {tuned[name]: 1 / mean_change(stored(tuned[name]), base) for name in names}


def check(merged, sources, of):
    """Fail unless every tensor is that of its source: weights are rounded to six digits."""
    found = tensors_of(merged)
    assert found.keys() == sources["average"].keys()
    for name, tensor in found.items():
        exact = sources[of(name)][name].double()
        # An average of up to four: as many roundings to float32, a millionth of the largest change.
        slack = exact.abs() * 2**-22 + 2e-8 if of(name) == "average" else 0 * exact
        assert bool(((tensor.double() - exact).abs() <= slack).all()), name


RULES = [
    ({"delta_threshold": 0.001, "delta_blend": 0.9}, "average"),
    ({"delta_threshold": 0.03, "delta_blend": 0.3}, "average"),
    ({"delta_threshold": 0.001, "non_layer": "base"}, "base"),
]


@pytest.mark.parametrize("unit", ["layer", "module"])
@pytest.mark.parametrize(("rule", "outside"), RULES)
def test_every_tensor_goes_by_its_units_share(unit, rule, outside, tuned):
    """arXiv 2601.22620."""
    merged = merge_of(measured(tuned, {"placement": "delta_share", "delta_unit": unit, **rule}))
    base, task, language = (stored(tuned[name]) for name in ("base", "math", "swahili"))
    of_task, of_language = (published_shares(e, base, unit) for e in (task, language))
    places = {p: chosen(of_task[p] - of_language[p], rule["delta_threshold"]) for p in of_task}
    assert {"task", "language"} <= set(places.values())

    def source(name):
        if (layer := layer_number(name)) is None:
            return outside
        # With modules, in-layer norms stay with the model that is merged into.
        return places.get((layer, part_of(name) if unit == "module" else "layer"), "language")

    alpha = rule.get("delta_blend", 0.5)
    blend = mixture({tuned["math"]: alpha, tuned["swahili"]: 1 - alpha})
    check(merged, {"task": task, "language": language, "base": base, "average": blend}, source)
    units = {(u["layer"], u["part"]): u for u in merged.record["deltas"]["units"]}
    assert {place: each["source"] for place, each in units.items()} == places
    for place, each in units.items():
        assert merged.plan.source_of(*place) == places[place]
        assert each["task_share"] == pytest.approx(of_task[place], rel=1e-6)
        assert each["language_share"] == pytest.approx(of_language[place], rel=1e-6)
    signs = {"task": "·", "average": "▒", "language": "█", "base": "○"}
    for part in ("attention", "mlp") if unit == "module" else ("layer",):
        row = "".join(signs[places[layer, part]] for layer in range(LAYERS))
        assert row in str(merged.lines)


def test_shares_of_soups_go_with_magnitude_weights_and_your_own(tuned):
    """The task side is the soup of its experts (Table 6): it is its change that has the shares."""
    share = {"placement": "delta_share", "delta_threshold": 0.02, "delta_blend": 0.25}
    names = ("math", "math_2", "swahili")
    document = measured(tuned, {"weighting": "magnitude", **share}, *names)
    document["models"][1]["parameters"]["weight"] = 3
    merged, base, inverses = merge_of(document), stored(tuned["base"]), inverse(tuned, *names)
    weights = dict(zip(inverses, (0.25, 0.75, 1.0), strict=True))
    parts = {path: weight * inverses[path] for path, weight in weights.items()}
    swahili = tuned["swahili"]
    maths = {path: part for path, part in parts.items() if path != swahili}
    sides = {"task": mixture(maths), "language": stored(swahili)}
    of_task, of_language = (published_shares(e, base, "layer") for e in sides.values())
    layers = [chosen(of_task[p] - of_language[p], 0.02) for p in sorted(of_task)]
    assert merged.record["layers"] == layers
    assert set(layers) == {"task", "language", "average"}
    # 1/4 of every average for the task side, 3/4 for the language side, each times 1/MAV.
    blend = {path: part * (0.75 if path == swahili else 0.25) for path, part in parts.items()}
    sides["average"] = mixture(blend)
    of = {name: layer_number(name) for name in base}
    wanted = {n: sides["average" if of[n] is None else layers[of[n]]][n] for n in base}
    check(merged, {"average": wanted}, lambda name: "average")
    rows = merged.record["deltas"]["weights"]
    changes = [1 / inverses[path] for path in weights]
    assert [row["mean_change"] for row in rows] == pytest.approx(changes, rel=1e-6)
    said = f"mean |change| {rows[1]['mean_change']:.6g}, weight {rows[1]['merge_weight']:.6g}"
    assert said in str(merged.lines)


BF16, F32 = torch.bfloat16, torch.float32
REVERTS = [
    # parameters, layers and modules that go back whole, dtypes of expert and base
    ({"threshold": 1e-3}, set(), (), (BF16, BF16)),
    ({"threshold": 0.0}, set(), (), (BF16, F32)),
    ({"threshold": 9.0}, set(), (), (F32, BF16)),
    ({"threshold": 1e-5}, set(), (), (F32, BF16)),  # compared, then cast to bfloat16
    ({"threshold": 1e-3, "revert_modules": "norm"}, set(), ("norm",), (F32, BF16)),
    ({"keep_fraction": 0.0}, set(), (), (BF16, BF16)),
    ({"keep_fraction": 0.3}, set(), (), (BF16, F32)),
    ({"keep_fraction": 0.7}, set(), (), (BF16, BF16)),
    ({"keep_fraction": 1.0}, set(), (), (BF16, BF16)),
    ({"keep_fraction": 0.5, "bottom_layers": 1, "top_layers": 2}, {0, 4, 5}, (), (F32, BF16)),
    ({"revert_layers": "0,2-3"}, {0, 2, 3}, (), (BF16, F32)),
    ({"revert_modules": "attention,non_layer"}, set(), ("attention", None), (BF16, BF16)),
]


@pytest.mark.parametrize(("parameters", "layers", "modules", "dtypes"), REVERTS, ids=str)
def test_what_goes_back_goes_back_bit_for_bit(
    parameters, layers, modules, dtypes, experts, tmp_path
):
    base = experts("llama", dtype=dtypes[1]).base
    expert = uneven(base, tmp_path / "expert", 5e-3, dtypes[0])
    top = {"dtype": "bfloat16"} if parameters.get("threshold") == 1e-5 else {}
    document = revert_recipe(expert, base, parameters, **top)
    merged = merge_of(document)
    ours, theirs, record = stored(expert), stored(base), merged.record
    threshold = record["threshold"]
    assert threshold == parameters.get("threshold", threshold)

    def stays(name):
        layer = layer_number(name)
        if layer in layers or (None if layer is None else part_of(name)) in modules:
            return torch.zeros(ours[name].shape, dtype=torch.bool)
        change = row_change(name, ours[name], theirs[name], "llama")
        return (change >= (threshold or 0.0)).expand(ours[name].shape)

    kept, wanted = {name: stays(name) for name in ours}, {}
    for name, mask in kept.items():
        wanted[name] = (ours if mask.all() else theirs)[name]
        if mask.any() and not mask.all():
            wanted[name] = torch.where(mask, ours[name], theirs[name])
        wanted[name] = wanted[name].bfloat16() if top else wanted[name]
    assert_same(tensors_of(merged), wanted)
    count, total = sum(int(mask.sum()) for mask in kept.values()), record["kept"]["weights"]
    assert (record["kept"]["kept_weights"], total) == (count, sum(t.numel() for t in ours.values()))
    assert sum(each["kept_weights"] for each in record["kept_by_module"].values()) == count
    assert record["reverted_layers"] == sorted(layers)
    assert f"{count} of {total} weights" in str(merged.lines)
    fraction = parameters.get("keep_fraction")
    if fraction is not None and not layers:
        assert fraction * total <= count <= fraction * total + 96 * 16
    document["models"].append({"model": str(base)})  # listing the base changes nothing
    assert merge_of(document).tensors == merged.tensors


def test_what_stands_on_the_line():
    pairs = [(0.5, 0.25), (0.25, 0.25), (0.25, 0.5)]
    assert [choose_source(*pair, 0.25) for pair in pairs] == ["average"] * 3
    for rule in ((0.249,), ()):
        assert [choose_source(*pair, *rule) for pair in pairs] == ["task", "average", "language"]
    assert unit_norm([0.3, 0.4], "layer") == pytest.approx(0.7)
    assert unit_norm([0.3, 0.4], "module") == pytest.approx(0.5)


def test_examples_of_weights():
    """A weight has six digits: what is printed is what is used."""
    assert inverse_mav(1.9e-5) == 52631.6

    def coefficients(task, language, sides=(1.0, 1.0)):
        """Return those of experts that are given by weight and mean change."""
        roles = [*[("task", *each) for each in task], *[("language", *each) for each in language]]
        inputs = [Input(role, weight, scale=inverse_mav(mav)) for role, weight, mav in roles]
        return weighted_inputs("x", "average", inputs, sides).coefficients

    assert coefficients([(1, 2e-5)], [(1, 1e-5)]) == (5e4, 1e5)
    assert coefficients([(1, 2e-5)], [(3, 1e-5)], (1.0, 0.5)) == (5e4, 5e4)
    assert coefficients([(0, 1e-3), (1, 1e-5)], [(1, 1e-5)]) == (1e5, 1e5)
    task, *languages = coefficients([(1, 1e-5)], [(1, 2e-5)] * 12)
    assert task == 1e5
    assert sum(languages) == pytest.approx(5e4), "many experts of a role do not outvote one"


FEATURES = st.lists(
    st.tuples(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=6), st.integers(1, 9)),
    min_size=1,
    max_size=5,
)


@given(FEATURES, st.floats(0, 1))
def test_at_least_the_fraction_is_kept_and_no_higher_threshold_does(features, fraction):
    tensors = [(torch.tensor(mavs, dtype=torch.float32), size) for mavs, size in features]
    threshold = keep_threshold(tensors, fraction)
    flat = [(float(mav), size) for mavs, size in tensors for mav in mavs]
    total = sum(size for _, size in flat)

    def kept(limit):
        return sum(size for mav, size in flat if mav >= limit)

    assert kept(threshold) >= fraction * total - 1e-9 * total
    assert math.isfinite(threshold)
    if fraction == 0:
        assert kept(threshold) == 0
        return
    lowest = min(mav for mav, _ in flat if mav >= threshold)
    assert kept(math.nextafter(lowest, math.inf)) < max(fraction * total, 1e-12)
    # no feature stands on it, so that its last bit decides nothing
    below = max((mav for mav, _ in flat if mav < threshold), default=None)
    assert threshold == (0.0 if below is None else (lowest + below) / 2)
