"""Merges that go by what fine-tuning changed: every tensor against float64."""

from __future__ import annotations

import json
import logging

import pytest
import torch

from layerswap_method.methods.read import read_recipe
from layerswap_method.recipe.references import find_model_files
from tests.mergekit_plugin.conftest import NUM_LAYERS
from tests.standins import merging
from tests.standins.merging import merge, revert_recipe
from tests.standins.oracle import (
    assert_same,
    chosen,
    dominant,
    layer_number,
    mean_change,
    mixture,
    part_of,
    published_shares,
    row_change,
    stored,
)
from tests.standins.tuned import rewritten, uneven

SOUP = {"weighting": "magnitude", "placement": "soup"}


def recipe(tuned, parameters, *names, **top):
    """Return a recipe over the named experts (default: math and swahili)."""
    models = {
        role: [tuned[name] for name in names or ("math", "swahili") if name.startswith(language)]
        for role, language in (("task", "math"), ("language", "swahili"))
    }
    return merging.recipe(models, parameters, tuned["base"], dtype="float32") | top


def inverse(tuned, *names):
    """Return folder -> 1 / (mean change of an expert), in float64 and not rounded."""
    base = stored(tuned["base"])
    return {tuned[name]: 1 / mean_change(stored(tuned[name]), base) for name in names}


def check(merged, sources, of):
    """Fail unless every tensor is that of its source: weights are rounded to six digits."""
    found = stored(merged)
    assert found.keys() == sources["average"].keys()
    for name, tensor in found.items():
        exact = sources[of(name)][name].double()
        # An average of up to four: as many roundings to float32, a millionth of the largest change.
        slack = exact.abs() * 2**-22 + 2e-8 if of(name) == "average" else 0 * exact
        assert bool(((tensor.double() - exact).abs() <= slack).all()), name


def plan_file(merged, method="layer_swap"):
    return json.loads((merged / f"{method}_plan.json").read_text())


def test_soups_within_the_roles_and_weights_of_your_own(tuned, tmp_path, caplog):
    """Table 6: experts of one role are souped first, each by its change times what is written."""
    names = ("math", "math_2", "swahili", "swahili_2")
    document = recipe(tuned, {**SOUP, "language_weight": 2.0}, *names)
    document["models"][1]["parameters"]["weight"] = 3
    with caplog.at_level(logging.INFO, "layerswap"):
        out = merge(document, tmp_path / "out", quiet=False)
    # Uniform shares: 1/4 and 3/4 of weight 1, 1/2 and 1/2 of weight 2; each times 1/MAV.
    parts = zip(inverse(tuned, *names).items(), (0.25, 0.75, 1.0, 1.0), strict=True)
    wanted = mixture({path: weight * part for (path, weight), part in parts})
    check(out, {"average": wanted}, lambda name: "average")
    assert plan_file(out)["layers"] == ["average"] * NUM_LAYERS
    rows = plan_file(out)["deltas"]["weights"]
    changes = [1 / weight for weight in inverse(tuned, *names).values()]
    assert [row["mean_change"] for row in rows] == pytest.approx(changes, rel=1e-6)
    said = f"mean |change| {rows[1]['mean_change']:.6g}, weight {rows[1]['merge_weight']:.6g}"
    assert said in caplog.text
    assert said in (out / "README.md").read_text()


@pytest.mark.parametrize("unit", ["layer", "module"])
@pytest.mark.parametrize(
    ("rule", "outside"),
    [
        ({"delta_threshold": 0.001, "delta_blend": 0.9}, "average"),
        ({"delta_threshold": 0.03, "delta_blend": 0.3}, "average"),
        ({"delta_dominance": 0.15, "non_layer": "base"}, "base"),
    ],
)
def test_every_tensor_goes_by_its_units_share(unit, rule, outside, tuned, tmp_path, caplog):
    document = recipe(tuned, {"placement": "delta_share", "delta_unit": unit, **rule})
    with caplog.at_level(logging.INFO, "layerswap"):
        out = merge(document, tmp_path / "out", quiet=False)
    base, task, language = (stored(tuned[name]) for name in ("base", "math", "swahili"))
    of_task, of_language = (published_shares(e, base, unit) for e in (task, language))
    places = {
        p: dominant(of_task[p], of_language[p], rule["delta_dominance"])
        if "delta_dominance" in rule
        else chosen(of_task[p] - of_language[p], rule["delta_threshold"])
        for p in of_task
    }
    assert {"task", "language"} <= set(places.values())

    def source(name):
        if (layer := layer_number(name)) is None:
            return outside
        # With modules, in-layer norms stay with the model that is merged into.
        return places.get((layer, part_of(name) if unit == "module" else "layer"), "language")

    alpha = rule.get("delta_blend", 0.5)
    blend = mixture({tuned["math"]: alpha, tuned["swahili"]: 1 - alpha})
    check(out, {"task": task, "language": language, "base": base, "average": blend}, source)
    plan = plan_file(out)
    units = {(each["layer"], each["part"]): each for each in plan["deltas"]["units"]}
    assert {place: each["source"] for place, each in units.items()} == places
    for place, each in units.items():
        assert each["task_share"] == pytest.approx(of_task[place], rel=1e-6)
        assert each["language_share"] == pytest.approx(of_language[place], rel=1e-6)
    assert ("modules" in plan) == (unit == "module")
    signs = {"task": "·", "average": "▒", "language": "█", "base": "○"}
    for part, written in plan.get("modules", {"layer": plan["layers"]}).items():
        if part in ("layer", "attention", "mlp"):
            assert written == [places[layer, part] for layer in range(NUM_LAYERS)]
            row = "".join(signs[source] for source in written)
            assert row in caplog.text
            assert row in (out / "README.md").read_text()


def test_shares_of_soups_go_with_magnitude_weights(tuned, tmp_path):
    """The task side is the soup of its experts: its change, not theirs, has the shares."""
    parameters = {"placement": "delta_share", "delta_threshold": 0.02, "delta_blend": 0.25}
    document = recipe(tuned, {"weighting": "magnitude", **parameters}, "math", "math_2", "swahili")
    out = merge(document, tmp_path / "out")
    base, maths = stored(tuned["base"]), inverse(tuned, "math", "math_2")
    sides = {"task": mixture(maths), "language": stored(tuned["swahili"])}
    of_task, of_language = (published_shares(e, base, "layer") for e in sides.values())
    layers = [chosen(of_task[p] - of_language[p], 0.02) for p in sorted(of_task)]
    assert plan_file(out)["layers"] == layers
    assert set(layers) == {"task", "language", "average"}
    # 1/4 of every average for the task side, 3/4 for the language side, each times 1/MAV.
    parts = {path: 0.25 / 2 * weight for path, weight in maths.items()}
    (swahili,) = inverse(tuned, "swahili").values()
    sides["average"] = mixture({**parts, tuned["swahili"]: 0.75 * swahili})
    of = {name: layer_number(name) for name in base}
    wanted = {n: sides["average" if of[n] is None else layers[of[n]]][n] for n in base}
    check(out, {"average": wanted}, lambda name: "average")


REVERTS = [
    ({"bottom_layers": 2, "top_layers": 1}, {0, 1, 7}, ()),
    ({"revert_layers": "3", "top_layers": 1}, {3, 7}, ()),
    ({"revert_modules": "mlp,non_layer", "bottom_layers": 1}, {0}, ("mlp", None)),
    ({"keep_fraction": 0.0}, set(), ()),
    ({"keep_fraction": 0.3, "bottom_layers": 2}, {0, 1}, ()),
    ({"keep_fraction": 0.7}, set(), ()),
    ({"keep_fraction": 1.0}, set(), ()),
    ({"threshold": 0.01, "revert_modules": "norm"}, set(), ("norm",)),
]


@pytest.mark.parametrize(("parameters", "layers", "modules"), REVERTS)
def test_layers_modules_and_features_go_back(
    parameters, layers, modules, experts, tmp_path, caplog
):
    expert = uneven(experts.base, tmp_path / "expert", 0.05)
    document = revert_recipe(expert, experts.base, parameters)
    with caplog.at_level(logging.INFO, "layerswap"):
        out = merge(document, tmp_path / "out", quiet=False)
    ours, theirs, plan = stored(expert), stored(experts.base), plan_file(out, "delta_revert")

    def stays(name):
        layer = layer_number(name)
        if layer in layers or (None if layer is None else part_of(name)) in modules:
            return torch.zeros(ours[name].shape, dtype=torch.bool)
        change = row_change(name, ours[name], theirs[name], "llama")
        threshold = (
            plan["threshold"] if "keep_fraction" in parameters else parameters.get("threshold", 0.0)
        )
        return (change >= threshold).expand(ours[name].shape)

    assert_same(stored(out), {n: torch.where(stays(n), ours[n], theirs[n]) for n in ours})
    kept, total = sum(int(stays(n).sum()) for n in ours), sum(t.numel() for t in ours.values())
    assert (plan["kept"]["kept_weights"], plan["kept"]["weights"]) == (kept, total)
    assert sum(each["kept_weights"] for each in plan["kept_by_layer"].values()) == kept
    assert plan["reverted_layers"] == sorted(layers)
    said = f"{kept} of {total} weights"
    assert said in caplog.text
    assert said in (out / "README.md").read_text()
    fraction = parameters.get("keep_fraction")
    if fraction is not None and not layers:
        assert fraction * total <= kept <= fraction * total + 64 * 16
    document["models"].append({"model": str(experts.base)})  # listing the base changes nothing
    assert_same(stored(merge(document, tmp_path / "again")), stored(out))


def test_features_are_compared_as_stored_and_cast_after(experts, tmp_path):
    """A light change vanishes in bfloat16; compared before the cast it does not."""
    tuned, threshold = uneven(experts.base, tmp_path / "light", 1e-4, torch.float32), 1e-7
    document = revert_recipe(tuned, experts.base, {"threshold": threshold}, dtype="bfloat16")
    out = merge(document, tmp_path / "out")
    ours, theirs = stored(tuned), stored(experts.base)
    rows = {name: row_change(name, ours[name], theirs[name], "llama") for name in ours}
    wanted = {n: torch.where(rows[n] >= threshold, ours[n], theirs[n]).bfloat16() for n in ours}
    assert_same(stored(out), wanted)
    assert plan_file(out, "delta_revert")["kept"]["fraction"] > 0.5


def test_an_expert_is_measured_once_in_a_process(tuned, tmp_path):
    moved = rewritten(tuned["math"], tmp_path / "math", lambda name, tensor: tensor + 1e-4)
    measured = []
    for parameters in (SOUP, {"weighting": "magnitude", "bottom_layers": 1}):
        own = read_recipe(recipe({**tuned, "math": moved}, parameters))
        models = {reference: find_model_files(reference) for reference in own.references}
        own.merge(models, lambda what, names: measured.append(what) or names)
        measured.append("")
    assert measured[0]
    assert measured.index("") == len(measured) - 2, "measured again"
