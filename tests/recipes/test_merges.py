"""Every recipe's own command, run by the real `mergekit-yaml`, and every tensor of the result.

The models are tiny stand-ins with the real layer counts under the recipes' own names: hub ids lie
in a hub's cache, local paths in the working folder. What averages and measured rules must give to
the last bit is in tests/methods.
"""

import json

import pytest
import torch

from tests.recipes.documents import ROOT, first_commands, header, load
from tests.recipes.expected import DOMINANCE, REVERTS, SHARES, SOUPS, SWAPS, TIES
from tests.recipes.standins import ORIGINALS, VOCABULARY, build_model, folder_of, layer_count
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
    files = {"config.json", "tokenizer.json", "tokenizer_config.json", "mergekit_config.yml"}
    assert {file.name for file in out.iterdir()} >= files | {"README.md"}
    config = json.loads((out / "config.json").read_text())
    assert config["num_hidden_layers"] == layer_count(document["base_model"])
    dtype = document.get("out_dtype", document["dtype"])
    assert config.get("dtype", config.get("torch_dtype")) == dtype
    found = stored(out)
    assert {tensor.dtype for tensor in found.values()} == {getattr(torch, dtype)}
    return found


def sources(workshop, recipe, role=None):
    entries = load(recipe)["models"]
    chosen = [e for e in entries if role is None or e["parameters"]["role"] == role]
    return [workshop.source(entry["model"]) for entry in chosen]


def plan_of(workshop, recipe, method="layer_swap"):
    return json.loads((workshop.output(recipe) / f"{method}_plan.json").read_text())


def check(merged, of, models, magnitude=False):
    """Fail unless every tensor is the cast of its source's, or near the mean of the two soups."""
    base, task, language = models["base"], models["task"], models["language"]
    assert merged.keys() == task[0].keys()
    soups = {"task": [task], "language": [language], "average": [task, language], "base": [[base]]}
    inverse = {
        id(model): 1 / mean_change(model, base) if magnitude else 1.0
        for model in (*task, *language, base)
        if model is not base or not magnitude
    }
    for name, tensor in merged.items():
        sides = soups[of(name)]
        if len(sides) == len(sides[0]) == 1:
            assert torch.equal(tensor, sides[0][0][name].to(tensor.dtype)), name
            continue
        weights = [inverse[id(model)] / len(models) for models in sides for model in models]
        tensors = [model[name].double() for models in sides for model in models]
        exact = sum(w * t for w, t in zip(weights, tensors, strict=True)) / sum(weights)
        near = {"rtol": torch.finfo(tensor.dtype).eps, "atol": 1e-6}
        torch.testing.assert_close(tensor.double(), exact, msg=name, **near)


def models_of(workshop, recipe):
    experts = {role: sources(workshop, recipe, role) for role in ("task", "language")}
    return {**experts, "base": workshop.source(load(recipe)["base_model"])}


@pytest.mark.parametrize("recipe", SWAPS)
def test_layer_swap_recipe(workshop, merged, recipe):
    swap = SWAPS[recipe]
    check(merged, swap.source, models_of(workshop, recipe), swap.magnitude)
    layers = plan_of(workshop, recipe)["layers"]
    assert {i for i, source in enumerate(layers) if source == "language"} == swap.language


@pytest.mark.parametrize("recipe", SHARES)
def test_delta_share_recipe(workshop, merged, recipe):
    units = plan_of(workshop, recipe)["deltas"]["units"]
    found = {(unit["layer"], unit["part"]): unit["source"] for unit in units}
    assert {"task", "language"} <= set(found.values()), "the rule had no choice to make"
    outside = "base" if recipe in DOMINANCE else "average"

    def source(name):
        if (layer := layer_number(name)) is None:
            return outside
        part = part_of(name) if SHARES[recipe] == "module" else "layer"
        return found.get((layer, part), "language")

    check(merged, source, models_of(workshop, recipe))


@pytest.mark.parametrize("recipe", SOUPS)
def test_soup_recipe(workshop, merged, recipe):
    dtype = getattr(torch, load(recipe)["dtype"])  # to which `linear` casts before it averages
    task, language = (
        {name: tensor.to(dtype) for name, tensor in model.items()}
        for model in sources(workshop, recipe)
    )
    models = {"task": [task], "language": [language], "base": task}
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
    (expert,) = sources(workshop, recipe)
    base = workshop.source(load(recipe)["base_model"])
    plan, wanted, kept = plan_of(workshop, recipe, "delta_revert"), REVERTS[recipe], 0
    threshold = wanted.threshold if wanted.keep is None else plan["threshold"]
    assert threshold == plan["threshold"]
    for name, tensor in merged.items():
        ours, theirs = expert[name], base[name]
        stays = row_change(name, ours, theirs, "llama").float() >= (threshold or 0.0)
        stays = (stays & (layer_number(name) not in wanted.layers)).expand(tensor.shape)
        assert torch.equal(tensor, torch.where(stays, ours, theirs).to(tensor.dtype)), name
        kept += int(stays.sum())
    assert plan["kept"]["kept_weights"] == kept
    total = sum(tensor.numel() for tensor in merged.values())
    if wanted.keep is not None:
        assert wanted.keep <= kept / total <= wanted.keep + 0.01
    elif "pocket" in recipe:
        assert 0.1 < kept / total < 0.9, "the rule had no choice to make"


def test_nothing_but_the_outputs_is_left(workshop):
    outputs = {workshop.output(recipe).resolve() for recipe in workshop.errors}
    folders = {p for name in ("merged", "runs/merged") for p in (workshop.folder / name).iterdir()}
    assert {p.resolve() for p in folders} - outputs == {workshop.folder / "merged/lora_cache"}
    assert outputs <= {p.resolve() for p in folders}


@pytest.mark.parametrize("recipe", [r for r in SWAPS if "/different_bases/" in r])
def test_different_bases_are_harmonised_by_the_headers_commands(workshop, recipe, tmp_path):
    compat, harmonize = first_commands(recipe)
    assert (compat[1], harmonize[1]) == ("compat", "harmonize")
    models = [word for word in compat if word in ORIGINALS]
    said = f"harmonize {' '.join(f'./originals/{name}' for name in models)} --out DIR"
    assert said in workshop.run_first(compat)
    out = harmonize[harmonize.index("--out") + 1]
    named = {entry["model"] for entry in load(recipe)["models"]}
    assert named == {f"{out}/{name.split('/')[1]}" for name in models}
    assert load(recipe)["base_model"] in named
    text = (ROOT / recipe).read_text(encoding="utf-8")
    for name in models:
        text = text.replace(f"{out}/{name.split('/')[1]}", f"./originals/{name}")
    (tmp_path / "raw.yml").write_text(text)
    (refused,) = workshop.merge([["mergekit-yaml", f"{tmp_path}/raw.yml", "./variants/raw"]])
    assert refused is not None
    assert "layerswap compat ./originals/" in refused


def test_the_headers_advice_on_vocabularies_works(workshop):
    recipe, math, wider = "recipes/swahili.yml", "MergeBench/Llama-3.1-8B_math", "stand/in-wider"
    advice = "tokenizer: {source: base}"
    assert f"`{advice}`" in header(recipe)["To change"]
    build_model(wider, folder_of(wider, workshop.hub, None), vocabulary=VOCABULARY + 8)
    text = (ROOT / recipe).read_text(encoding="utf-8").replace(math, wider)
    (workshop.folder / "plain.yml").write_text(text)
    (workshop.folder / "aligned.yml").write_text(f"{text}{advice}\n")
    plain, aligned = workshop.merge(
        [["mergekit-yaml", f"{name}.yml", f"./variants/{name}"] for name in ("plain", "aligned")]
    )
    assert plain is not None
    assert "different vocabularies" in plain
    assert advice in plain
    assert not (workshop.folder / "variants/plain").exists()
    assert aligned is None, aligned
    models = models_of(workshop, recipe)
    models["task"] = [
        {
            name: tensor[:VOCABULARY] if tensor.shape[0] == VOCABULARY + 8 else tensor
            for name, tensor in workshop.source(wider).items()
        }
    ]
    for role in ("task", "language"):  # mergekit's executor casts before it averages
        models[role] = [{n: t.bfloat16() for n, t in model.items()} for model in models[role]]
    check(stored(workshop.folder / "variants/aligned"), SWAPS[recipe].source, models)


def test_the_check_can_fail(workshop):
    recipe = "recipes/swahili_transition.yml"
    models = models_of(workshop, recipe)
    for name, role in {
        "model.layers.4.mlp.up_proj.weight": "task",
        "model.layers.6.input_layernorm.weight": "language",
        "model.layers.5.self_attn.q_proj.weight": "task",
        "model.norm.weight": "language",
    }.items():
        spoilt = stored(workshop.output(recipe)) | {name: models[role][0][name].bfloat16()}
        with pytest.raises(AssertionError, match=name):
            check(spoilt, SWAPS[recipe].source, models)
