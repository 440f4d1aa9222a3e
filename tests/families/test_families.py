"""Every family: each tensor of a merge against the oracle, and transformers loads the result."""

from __future__ import annotations

import json
import re

import pytest
import torch

from layerswap_method.errors import InputError
from layerswap_method.tensor_names import decoder_layer, layer_part
from tests.standins.merging import merge, recipe, revert_recipe, roles
from tests.standins.oracle import Swap, assert_same, expected, layer_number, row_change, stored
from tests.standins.tuned import restored, uneven
from tests.standins.zoo import FAMILIES, LAYERS, make_model

SWAP = Swap(LAYERS)
DECODERS = [family for family in FAMILIES if family != "t5"]
VISION = [family for family in FAMILIES if family.endswith("_vl") or family == "llava"]
THRESHOLD = 5e-3


@pytest.mark.parametrize("family", DECODERS)
def test_every_tensor_is_the_oracles(family, experts, loads, tmp_path):
    given = experts(family)
    out = merge(recipe(roles(given), SWAP.parameters()), tmp_path / "merged")
    assert_same(stored(out), expected(SWAP, stored(given.task), stored(given.language)))
    loads(out)
    plan = json.loads((out / "layer_swap_plan.json").read_text())
    assert plan["layers"] == [SWAP.of_layer(layer) for layer in range(LAYERS)]
    assert set(plan["layers"]) == {"task", "language", "average"}


@pytest.mark.parametrize("family", ["llama", *VISION])
def test_everything_outside_the_decoders_layers_follows_non_layer(family, experts, tmp_path):
    given = experts(family)
    models = [stored(folder) for folder in (given.task, given.language, given.base)]
    for non_layer in ("task", "language", "base"):
        swap = Swap(LAYERS, non_layer=non_layer)
        out = merge(recipe(roles(given), swap.parameters(), given.base), tmp_path / non_layer)
        assert_same(stored(out), expected(swap, *models))


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "mistral3_vl", "gpt2"])
def test_mergekits_executor_gives_the_same(family, experts, tmp_path):
    """mergekit may write other names (fused experts): then the values are those of its own."""
    given = experts(family)
    document = recipe(roles(given), SWAP.parameters())
    files = stored(merge(document, tmp_path / "files"))
    through = stored(merge(document, tmp_path / "executor", clone_tensors=True))
    shared = files.keys() & through.keys()
    assert_same({n: files[n] for n in shared}, {n: through[n] for n in shared})
    assert len(shared) == len(files) or "moe" in family or family == "mixtral"
    total = [sum(float(t.double().sum()) for t in held.values()) for held in (files, through)]
    assert total[0] == pytest.approx(total[1], rel=1e-9)


def is_whole(name, family):
    """Whether the recipe below names the tensor's layer or module: the text decoder's only."""
    layer = layer_number(name)
    if layer is None or "visual" in name:
        return False
    is_norm = re.search(r"\.(?:\w*layernorm|ln_\d|\w*norm\w*)\.\w+$", name)
    return layer == 0 or bool(is_norm and "self_attn" not in name)


@pytest.mark.parametrize("family", ["llama", "gpt2", "phi3", "mixtral", "qwen3_vl"])
def test_every_feature_is_the_side_that_its_change_says(family, loads, tmp_path):
    base = make_model(family, tmp_path / "base", 1, dtype=torch.float32)
    expert = uneven(base, tmp_path / "expert", 0.03)
    parameters = {"threshold": THRESHOLD, "bottom_layers": 1, "revert_modules": "norm"}
    out = merge(revert_recipe(expert, base, parameters), tmp_path / "merged")
    ours, theirs, found, kept, mixed = stored(expert), stored(base), stored(out), 0, 0
    assert found.keys() == ours.keys()
    for name, tensor in found.items():
        change = row_change(name, ours[name], theirs[name], family)
        assert bool(((change - THRESHOLD).abs() > 1e-8).all()), "too near to tell"
        keep = (change >= THRESHOLD).expand(tensor.shape)
        if is_whole(name, family):
            keep = torch.zeros_like(keep)
        assert torch.equal(tensor, torch.where(keep, ours[name], theirs[name])), name
        kept += int(keep.sum())
        mixed += int(bool(keep.any()) and not bool(keep.all()))
    assert mixed > len(found) / 4, "the features had no choice to make"
    plan = json.loads((out / "delta_revert_plan.json").read_text())
    assert plan["kept"]["kept_weights"] == kept
    loads(out)


def test_encoder_decoders_are_refused(experts, tmp_path):
    given = experts("t5")
    swap = recipe(roles(given), {"bottom_layers": 1, "top_layers": 1})
    for document in (swap, revert_recipe(given.task, given.base, {"bottom_layers": 1})):
        with pytest.raises(InputError, match="one text decoder"):
            merge(document, tmp_path / "new" / "merged")
    assert not (tmp_path / "new").exists()


def test_stored_masks_are_copied_and_older_names_are_read(experts, loads, tmp_path):
    """As on the hub: GPT-NeoX with its buffers, Gemma 3 with its vision tower under other names."""

    def with_buffers(tensors):
        for layer in range(LAYERS):
            prefix = f"gpt_neox.layers.{layer}.attention"
            tensors[f"{prefix}.bias"] = torch.ones(1, 1, 64, 64, dtype=torch.uint8).tril()
            tensors[f"{prefix}.masked_bias"] = torch.tensor(-1e9)
        return tensors

    def renamed(tensors):
        old, new = "vision_tower.", "vision_tower.vision_model."
        return {name.replace(old, new): tensor for name, tensor in tensors.items()}

    for family, edit in (("gpt_neox", with_buffers), ("gemma3_vl", renamed)):
        given, root = experts(family), tmp_path / family
        root.mkdir()
        models = {n: restored(f, root / n, edit) for n, f in roles(given).items()}
        out = merge(recipe(models, SWAP.parameters()), root / "merged")
        task, language, found = stored(models["task"]), stored(models["language"]), stored(out)
        floats = {n: t for n, t in task.items() if t.is_floating_point() and "masked" not in n}
        assert_same({n: found[n] for n in floats}, expected(SWAP, floats, language))
        assert all(torch.equal(found[name], task[name]) for name in found.keys() - floats.keys())
        loads(out)


NO_ATTENTION = ("mamba.", "mixer.", "conv.")
"""Layer modules that are neither attention nor feed-forward (and `mixer` of Phi's old code)."""


def test_layers_and_parts_are_read_off_the_names_of_all_of_mergekits_architectures():
    from mergekit.architecture.json_definitions import NAME_TO_ARCH

    seen = 0
    for name, architectures in NAME_TO_ARCH.items():
        for architecture in architectures:
            for key, module in architecture.modules.items():
                if key not in ("default", "text_decoder") or "bert" in name.lower():
                    continue
                definition, prefix = module.architecture.definition, module.weight_prefix or ""
                for weight in definition.layer_templates.weights:
                    own = weight.name.replace("${layer_index}", "17")
                    assert decoder_layer(prefix + own) == 17, (name, own)
                    is_other = layer_part(prefix + own) == "other"
                    rest = own.partition("17.")[2]
                    assert is_other == rest.startswith(NO_ATTENTION), (name, own)
                for weight in (*definition.pre_weights, *definition.post_weights):
                    is_layer = decoder_layer(prefix + weight.name) is not None
                    # Phi's first remote code calls its embeddings layer 0.
                    assert not is_layer or name == "MixFormerSequentialForCausalLM", weight.name
                seen += 1
    assert seen >= 50
