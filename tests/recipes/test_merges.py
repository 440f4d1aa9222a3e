"""Every recipe's own command, run by `mergekit-yaml` on tiny models of the real layer counts."""

import json

import pytest
import torch

from tests.recipes.documents import load
from tests.recipes.expected import REVERTS, SHARES, SOUPS, SWAPS, TIES
from tests.recipes.standins import layer_count
from tests.recipes.workshop import Workshop
from tests.standins.oracle import layer_number, mean_change, part_of, row_change, stored

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    return Workshop(tmp_path_factory.mktemp("recipes"))


@pytest.fixture
def merged(workshop, recipe):
    """Return the tensors that the recipe's own command wrote, after a look at the folder."""
    assert workshop.errors[recipe] is None, workshop.errors[recipe]
    out, document = workshop.output(recipe), load(recipe)
    files = {"config.json", "tokenizer.json", "mergekit_config.yml", "README.md"}
    assert {file.name for file in out.iterdir()} >= files
    config = json.loads((out / "config.json").read_text())
    assert config["num_hidden_layers"] == layer_count(document["base_model"])
    dtype = document.get("out_dtype", document["dtype"])
    assert config.get("dtype", config.get("torch_dtype")) == dtype
    found = stored(out)
    assert {tensor.dtype for tensor in found.values()} == {getattr(torch, dtype)}
    return found


def plan_of(workshop, recipe, method="layer_swap"):
    return json.loads((workshop.output(recipe) / f"{method}_plan.json").read_text())


def models_of(workshop, recipe):
    """Return the tensors of the models of each role; models without a role have the role None."""
    document = load(recipe)
    models = {"base": [workshop.source(document["base_model"])]}
    for entry in document["models"]:
        role = entry.get("parameters", {}).get("role")
        models.setdefault(role, []).append(workshop.source(entry["model"]))
    return models


def check(merged, of, models, magnitude=False):
    """Fail unless every tensor is the cast of its source's, or near the mean of the two soups."""
    (base,) = models["base"]
    assert merged.keys() == base.keys()
    sides = {role: [models[role]] for role in ("task", "language", "base")}
    sides["average"] = [models["task"], models["language"]]
    inverse = {
        id(model): 1 / mean_change(model, base) if magnitude else 1.0
        for model in (*models["task"], *models["language"])
    }
    for name, tensor in merged.items():
        soups = sides[of(name)]
        if len(soups) == len(soups[0]) == 1:
            assert torch.equal(tensor, soups[0][0][name].to(tensor.dtype)), name
            continue
        weights = [inverse[id(model)] / len(soup) for soup in soups for model in soup]
        tensors = [model[name].double() for soup in soups for model in soup]
        exact = sum(w * t for w, t in zip(weights, tensors, strict=True)) / sum(weights)
        near = {"rtol": torch.finfo(tensor.dtype).eps, "atol": 1e-6}
        torch.testing.assert_close(tensor.double(), exact, msg=name, **near)


@pytest.mark.parametrize("recipe", SWAPS)
def test_layer_swap_recipe(workshop, merged, recipe):
    swap, models = SWAPS[recipe], models_of(workshop, recipe)
    check(merged, swap.source, models, swap.magnitude)
    layers = plan_of(workshop, recipe)["layers"]
    assert {i for i, source in enumerate(layers) if source == "language"} == swap.language
    if swap.average:  # the check can fail
        name = f"model.layers.{min(swap.average)}.self_attn.q_proj.weight"
        spoilt = merged | {name: models["task"][0][name].to(merged[name].dtype)}
        with pytest.raises(AssertionError, match=name):
            check(spoilt, swap.source, models, swap.magnitude)


@pytest.mark.parametrize("recipe", SHARES)
def test_delta_share_recipe(workshop, merged, recipe):
    units = plan_of(workshop, recipe)["deltas"]["units"]
    found = {(unit["layer"], unit["part"]): unit["source"] for unit in units}
    assert {"task", "language"} <= set(found.values()), "the rule had no choice to make"

    def source(name):
        if (layer := layer_number(name)) is None:
            return "base" if "dominance" in recipe else "average"
        part = part_of(name) if SHARES[recipe] == "module" else "layer"
        return found.get((layer, part), "language")

    check(merged, source, models_of(workshop, recipe))


@pytest.mark.parametrize("recipe", SOUPS)
def test_soup_recipe(workshop, merged, recipe):
    dtype = getattr(torch, load(recipe)["dtype"])  # to which `linear` casts before it averages
    cast = [{n: t.to(dtype) for n, t in m.items()} for m in models_of(workshop, recipe)[None]]
    models = {"task": cast[:1], "language": cast[1:], "base": cast[:1]}
    check(merged, lambda name: "average", models)


@pytest.mark.parametrize("recipe", TIES)
def test_ties_recipe(workshop, merged, recipe):
    base, changed = workshop.source(load(recipe)["base_model"]), 0
    for name, tensor in merged.items():
        assert bool(torch.isfinite(tensor).all()), name
        changed += int((tensor != base[name].to(tensor.dtype)).sum())
    share = changed / sum(tensor.numel() for tensor in merged.values())
    # Each expert keeps a fifth of its delta: between 0.2 (the same fifth) and 0.4 (disjoint).
    assert 0.2 <= share <= 0.41


@pytest.mark.parametrize("recipe", REVERTS)
def test_revert_recipe(workshop, merged, recipe):
    models, wanted, kept = models_of(workshop, recipe), REVERTS[recipe], 0
    (expert,), (base,) = models[None], models["base"]
    plan = plan_of(workshop, recipe, "delta_revert")
    threshold = wanted.threshold if wanted.keep is None else plan["threshold"]
    assert threshold == plan["threshold"]
    for name, tensor in merged.items():
        ours, theirs = expert[name], base[name]
        stays = row_change(name, ours, theirs, "llama").float() >= (threshold or 0.0)
        stays = (stays & (layer_number(name) not in wanted.layers)).expand(tensor.shape)
        assert torch.equal(tensor, torch.where(stays, ours, theirs).to(tensor.dtype)), name
        kept += int(stays.sum())
    assert plan["kept"]["kept_weights"] == kept
    share = kept / sum(tensor.numel() for tensor in merged.values())
    if wanted.keep is not None:
        assert wanted.keep <= share <= wanted.keep + 0.01
    elif "pocket" in recipe:
        assert 0.1 < share < 0.9, "the rule had no choice to make"


def test_nothing_but_the_outputs_is_left(workshop):
    outputs = {workshop.output(recipe).resolve() for recipe in workshop.errors}
    folders = {p for name in ("merged", "runs/merged") for p in (workshop.folder / name).iterdir()}
    found = {p.resolve() for p in folders}
    assert outputs <= found
    assert found - outputs == {workshop.folder / "merged/lora_cache"}
