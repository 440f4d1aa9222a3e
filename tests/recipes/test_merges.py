"""Every recipe's own command, run by `mergekit-yaml` on tiny models of the real layer counts."""

import json

import pytest
import torch

from tests.recipes.documents import command, layer_count, load
from tests.recipes.expected import OTHERS, REVERTS, SHARES, SWAPS
from tests.recipes.workshop import Workshop
from tests.standins.oracle import stored

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    return Workshop(tmp_path_factory.mktemp("recipes"))


@pytest.fixture
def out(workshop, recipe):
    """Return the folder that the recipe's own command wrote, after a look at it."""
    assert workshop.errors[recipe] is None, workshop.errors[recipe]
    folder, document = workshop.folder / command(recipe)[2], load(recipe)
    files = {"config.json", "tokenizer.json", "mergekit_config.yml", "README.md"}
    assert {file.name for file in folder.iterdir()} >= files
    config = json.loads((folder / "config.json").read_text())
    assert config["num_hidden_layers"] == layer_count(document["base_model"])
    dtype = document.get("out_dtype", document["dtype"])
    assert config.get("dtype", config.get("torch_dtype")) == dtype
    found = stored(folder).values()
    assert {tensor.dtype for tensor in found} == {getattr(torch, dtype)}
    assert all(bool(tensor.isfinite().all()) for tensor in found)
    return folder


@pytest.mark.parametrize("recipe", OTHERS)
def test_recipes_of_mergekits_own_methods(out, recipe):
    assert load(recipe)["merge_method"] == OTHERS[recipe]


@pytest.mark.parametrize("recipe", SWAPS)
def test_layer_swap_recipe(workshop, out, recipe):
    """Copies are the cast of their source; what an average is, tests/methods shows."""
    swap, merged, copied = SWAPS[recipe], stored(out), 0
    layers = json.loads((out / "layer_swap_plan.json").read_text())["layers"]
    assert {i for i, source in enumerate(layers) if source == "language"} == swap.language
    experts = [(each["parameters"]["role"], each["model"]) for each in load(recipe)["models"]]
    of = {role: [workshop.path(m) for own, m in experts if own == role] for role, _ in experts}
    single = {role: stored(at[0]) for role, at in of.items() if len(at) == 1 and at[0].exists()}
    for name, tensor in merged.items():
        if (held := single.get(swap.source(name))) is not None:
            assert torch.equal(tensor, held[name].to(tensor.dtype)), name
            copied += 1
    assert copied or not single or not swap.language


@pytest.mark.parametrize("recipe", SHARES)
def test_delta_share_recipe(out, recipe):
    units = json.loads((out / "layer_swap_plan.json").read_text())["deltas"]["units"]
    assert {unit["part"] == "layer" for unit in units} == {SHARES[recipe] == "layer"}
    assert {"task", "language"} <= {unit["source"] for unit in units}, "it had no choice to make"


@pytest.mark.parametrize("recipe", REVERTS)
def test_revert_recipe(out, recipe):
    wanted, plan = REVERTS[recipe], json.loads((out / "delta_revert_plan.json").read_text())
    assert set(plan["reverted_layers"]) == wanted.layers
    share = plan["kept"]["kept_weights"] / plan["kept"]["weights"]
    if wanted.keep is not None:
        assert wanted.keep <= share <= wanted.keep + 0.01
    else:
        assert plan["threshold"] == wanted.threshold
        assert 0.1 < share < 0.9 or "pocket" not in recipe, "it had no choice to make"
