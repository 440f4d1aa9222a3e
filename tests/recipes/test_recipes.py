"""What a recipe's header says, and every recipe's own command on tiny models of the real depth."""

import json
import os
import subprocess
import sys
import zlib
from types import SimpleNamespace

import pytest
import torch

from layerswap_method.methods.table import OUR_METHODS
from layerswap_method.tensor_names import split_layer
from tests.recipes.expected import OTHERS, REVERTS, SHARES, SWAPS
from tests.standins.fine_tunes import rewritten, train_adapter
from tests.standins.model_families import make_model
from tests.standins.oracle import stored
from tests.standins.recipe_files import (
    RECIPES,
    ROOT,
    command,
    is_hub_id,
    load,
    references,
)
from tests.standins.tokenizers import save_word_tokenizer, words
from tools.gallery_tables import page_text

MERGE_ALL = """
import json, sys, traceback
import huggingface_hub, layerswap_method
layerswap_method.register()
# mergekit asks the hub for these; the others are found in its cache
huggingface_hub.list_repo_files = lambda *names, **how: ["model.safetensors"]
from mergekit.scripts.run_yaml import main
errors = []
for words in json.loads(sys.argv[1]):
    try:
        main.main(args=words[1:], standalone_mode=False)
        errors.append(None)
    except (Exception, SystemExit):
        errors.append(traceback.format_exc())
print(json.dumps(errors))
"""


DEPTHS = {model: swap.layers for recipe, swap in SWAPS.items() for model, _ in references(recipe)}
"""Model -> its number of decoder layers; a model that no swap names has 32."""


def place(root, name):
    """Return where a model is; one of the hub in the hub's cache, as the commit that is named."""
    if not is_hub_id(name):
        return root / "workspace" / name
    repository, _, commit = name.partition("@")
    cached = root / "hub" / f"models--{repository.replace('/', '--')}"
    (cached / "refs").mkdir(parents=True, exist_ok=True)
    (cached / "refs" / "main").write_text("0" * 40)
    return cached / "snapshots" / (commit or "0" * 40)


def write_model(name, folder):
    """Write a fine-tune of one parent, whose layers and features moved unevenly far."""
    own, depth = torch.Generator().manual_seed(zlib.crc32(name.encode())), DEPTHS.get(name, 32)
    # Lugha-Llama is stored in float32 (a first-party page seen in part), others in bfloat16.
    is_half = is_hub_id(name) and not name.startswith("Lugha-Llama/")
    dtype = torch.bfloat16 if is_half else torch.float32
    sizes = {"num_hidden_layers": depth, "tie_word_embeddings": name.startswith("runs/pocket/")}
    parent = folder.with_name(f"{folder.name}-parent")
    make_model("llama", parent, 0, dtype=dtype, **sizes)
    paces = 0.7 + 0.6 * torch.rand(depth + 1, generator=own)

    def edit(tensor, values):
        change = torch.randn(values.shape, generator=own)
        moved = 0.04 * torch.rand(values.shape[-1:], generator=own).square()
        layer = split_layer(tensor)[0]
        pace = paces[-1 if layer is None else layer]
        return (values.float() + change * moved * pace).to(dtype)

    rewritten(parent, folder, edit)
    save_word_tokenizer(folder, words(96))


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    """Return a folder in which every recipe's own command ran, and recipe -> error or None."""
    root = tmp_path_factory.mktemp("recipes")
    (root / "workspace").mkdir()
    (root / "workspace" / "recipes").symlink_to(ROOT / "recipes")
    for model, adapter in sorted({pair for recipe in RECIPES for pair in references(recipe)}):
        if not place(root, model).exists():
            write_model(model, place(root, model))
        if adapter and not place(root, adapter).exists():
            targets = {"target_modules": ["q_proj", "down_proj"], "r": 2, "lora_alpha": 4}
            train_adapter(place(root, model), place(root, adapter), **targets)
    ours = ("HF_", "TRANSFORMERS_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    home = {"HF_HOME": str(root), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    line = [sys.executable, "-c", MERGE_ALL, json.dumps([command(r) for r in RECIPES])]
    how = {"cwd": root / "workspace", "env": kept | home, "capture_output": True, "timeout": 1200}
    done = subprocess.run(line, text=True, check=False, **how)
    assert done.returncode == 0, done.stderr[-4000:]
    errors = dict(zip(RECIPES, json.loads(done.stdout.splitlines()[-1]), strict=True))
    return SimpleNamespace(root=root, errors=errors)


def test_no_recipe_escapes():
    expected = [
        ("SWAPS or SHARES", SWAPS | SHARES, {"layer_swap"}),
        ("REVERTS", REVERTS, {"delta_revert"}),
        ("OTHERS", OTHERS, {load(each)["merge_method"] for each in RECIPES} - {*OUR_METHODS}),
    ]
    for names, table, methods in expected:
        recipes = {each for each in RECIPES if load(each)["merge_method"] in methods}
        differing = sorted(recipes ^ table.keys())
        assert differing == [], f"write into {names} of tests/recipes/expected.py what each gives"


def test_the_gallery_is_up_to_date():
    """Else: python -m tools.gallery_tables --write."""
    page = ROOT / "recipes" / "README.md"
    assert page_text(page) == page.read_text()


@pytest.fixture
def out(workshop, recipe):
    """Return the folder that the recipe's own command wrote, after a look at it."""
    assert workshop.errors[recipe] is None, workshop.errors[recipe]
    folder, document = workshop.root / "workspace" / command(recipe)[2], load(recipe)
    files = {"config.json", "tokenizer.json", "mergekit_config.yml", "README.md"}
    assert {file.name for file in folder.iterdir()} >= files
    config = json.loads((folder / "config.json").read_text())
    assert config["num_hidden_layers"] == DEPTHS.get(document["base_model"], 32)
    dtype = document.get("out_dtype", document["dtype"])
    assert config.get("dtype", config.get("torch_dtype")) == dtype
    found = stored(folder).values()
    assert {tensor.dtype for tensor in found} == {getattr(torch, dtype)}
    assert all(bool(tensor.isfinite().all()) for tensor in found)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("recipe", OTHERS)
def test_recipes_of_mergekits_own_methods(out, recipe):
    assert load(recipe)["merge_method"] == OTHERS[recipe]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", SWAPS)
def test_layer_swap_recipe(out, recipe):
    """What else it says, tests/recipe_commands compares; what becomes of tensors, tests/methods."""
    layers = json.loads((out / "layer_swap_plan.json").read_text())["layers"]
    assert {i for i, source in enumerate(layers) if source == "language"} == SWAPS[recipe].language
    is_weighted = load(recipe)["parameters"].get("weighting") == "magnitude"
    assert is_weighted == ("weighted" in recipe or "magnitude" in recipe)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", SHARES)
def test_delta_share_recipe(out, recipe):
    units = json.loads((out / "layer_swap_plan.json").read_text())["deltas"]["units"]
    assert {unit["part"] == "layer" for unit in units} == {SHARES[recipe] == "layer"}
    assert {"task", "language"} <= {unit["source"] for unit in units}, "it had no choice to make"


@pytest.mark.slow
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
