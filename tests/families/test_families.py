"""Every family: each tensor of a merge against the oracle, and transformers loads the result."""

import json
import math
import re

import pytest
import torch
from mergekit.architecture.json_definitions import NAME_TO_ARCH

from layerswap_method.errors import InputError, LayerSwapError
from layerswap_method.tensor_names import find_decoder, layer_part
from tests.standins.experts import assert_loads
from tests.standins.fine_tunes import restored, uneven
from tests.standins.merging import by_mergekit, recipe, revert_recipe, roles, tensors_of, write
from tests.standins.model_families import FAMILIES, LAYERS
from tests.standins.oracle import Swap, assert_same, expected, layer_number, row_change, stored

SWAP = Swap(LAYERS)
DECODERS = [family for family in FAMILIES if family != "t5"]
THRESHOLD = 5e-3


@pytest.mark.parametrize("family", DECODERS)
def test_every_tensor_is_the_oracles(family, experts, tmp_path):
    given = experts(family)
    models = [stored(folder) for folder in (given.task, given.language, given.base)]
    out = tmp_path / "merged"
    write(recipe(roles(given), SWAP.parameters(), given.base), out)
    merged = stored(out)
    assert_same(merged, expected(SWAP, *models))
    has_head = any(name.endswith(("lm_head.weight", "embed_out.weight")) for name in merged)
    assert has_head == (family not in ("llama_tied", "gemma2", "gemma3", "gpt2", "gemma3_vl"))
    plan = json.loads((out / "layer_swap_plan.json").read_text())
    assert plan["layers"] == [SWAP.of_layer(layer) for layer in range(LAYERS)]
    assert_loads(out)
    for non_layer in ("task", "language", "base"):  # vision towers and projectors follow it, too
        swap = Swap(LAYERS, non_layer=non_layer)
        found = tensors_of(recipe(roles(given), swap.parameters(), given.base))
        assert_same(found, expected(swap, *models))


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "mistral3_vl", "gpt2"])
def test_mergekits_executor_gives_the_same(family, experts, tmp_path):
    """mergekit may write other names (fused experts): then the values are those of its own."""
    given = experts(family)
    document = recipe(roles(given), SWAP.parameters())
    files, through = tensors_of(document), stored(by_mergekit(document, tmp_path / "out"))
    shared = files.keys() & through.keys()
    assert_same({n: files[n] for n in shared}, {n: through[n] for n in shared})
    assert len(shared) == len(files) or family in ("mixtral", "qwen3_moe")
    total = [sum(float(t.double().sum()) for t in held.values()) for held in (files, through)]
    assert total[0] == pytest.approx(total[1], rel=1e-9)


@pytest.mark.slow
def test_layers_that_mergekits_executor_loses_are_noticed(experts, tmp_path):
    """mergekit 0.1.5 does not find Video-LLaVA's text layers, and says nothing."""
    document = recipe(roles(experts("video_llava")), SWAP.parameters())
    with pytest.raises(LayerSwapError, match=r"lost weights of layers 0-5: .* VideoLlava"):
        by_mergekit(document, tmp_path / "out")
    assert [*tmp_path.iterdir()] == []


def with_prediction_layer(tensors):
    """Return a model's tensors with one more layer, which predicts further tokens."""
    layer = {n: t for n, t in tensors.items() if n.startswith("model.layers.5.")}
    return tensors | {n.replace(".5.", ".6.", 1): t.clone() for n, t in layer.items()}


def test_layers_that_predict_further_tokens_are_outside(experts, tmp_path):
    given = experts("glm4_moe", num_nextn_predict_layers=1)
    models = {n: restored(f, tmp_path / n, with_prediction_layer) for n, f in roles(given).items()}
    document = recipe(models, SWAP.parameters() | {"non_layer": "language"})
    language, found = stored(models["language"]), tensors_of(document)
    behind = [name for name in found if name.startswith("model.layers.6.")]
    assert len(behind) > 8
    assert_same({n: found[n] for n in behind}, {n: language[n] for n in behind})


def is_whole(name):
    """Whether the recipe below names the tensor's layer or module: the text decoder's only."""
    is_norm = re.search(r"\.(?:\w*layernorm|ln_\d|\w*norm\w*)\.\w+$", name)
    is_norm = is_norm and "self_attn" not in name and layer_number(name) is not None
    return layer_number(name) == 0 or bool(is_norm)


@pytest.mark.parametrize("family", ["llama", "gpt2", "phi3", "mixtral", "qwen3_vl"])
def test_every_feature_is_the_side_that_its_change_says(family, experts, tmp_path):
    base = experts(family, dtype=torch.float32).base
    expert, out = uneven(base, tmp_path / "expert", 0.03), tmp_path / "merged"
    parameters = {"threshold": THRESHOLD, "bottom_layers": 1, "revert_modules": "norm"}
    write(revert_recipe(expert, base, parameters), out)
    ours, theirs, found, kept, mixed = stored(expert), stored(base), stored(out), 0, 0
    assert found.keys() == ours.keys()
    for name, tensor in found.items():
        change = row_change(name, ours[name], theirs[name], family)
        assert bool(((change - THRESHOLD).abs() > 1e-8).all()), "too near to tell"
        keep = (change >= (math.inf if is_whole(name) else THRESHOLD)).expand(tensor.shape)
        assert torch.equal(tensor, torch.where(keep, ours[name], theirs[name])), name
        kept += int(keep.sum())
        mixed += bool(keep.any()) and not bool(keep.all())
    assert mixed > len(found) / 4, "the features had no choice to make"
    plan = json.loads((out / "delta_revert_plan.json").read_text())
    assert plan["kept"]["kept_weights"] == kept
    assert_loads(out)


def test_encoder_decoders_are_refused(experts):
    given = experts("t5")
    swap = recipe(roles(given), {"bottom_layers": 1, "top_layers": 1})
    for document in (swap, revert_recipe(given.task, given.base, {"bottom_layers": 1})):
        with pytest.raises(InputError, match="not one stack"):
            tensors_of(document)


def with_buffers(tensors):
    for layer in range(LAYERS):
        prefix = f"gpt_neox.layers.{layer}.attention"
        tensors[f"{prefix}.bias"] = torch.ones(1, 1, 64, 64, dtype=torch.uint8).tril()
        tensors[f"{prefix}.masked_bias"] = torch.tensor(-1e9)
    return tensors


def renamed(tensors):
    return {n.replace("tower.", "tower.vision_model."): tensor for n, tensor in tensors.items()}


@pytest.mark.parametrize(("family", "edit"), [("gpt_neox", with_buffers), ("gemma3_vl", renamed)])
def test_buffers_and_older_names_are_read(family, edit, experts, tmp_path):
    """As on the hub: GPT-NeoX with its buffers, Gemma 3's vision tower under other names."""
    given, out = experts(family), tmp_path / "merged"
    models = {n: restored(f, tmp_path / n, edit) for n, f in roles(given).items()}
    write(recipe(models, SWAP.parameters()), out)
    task, language, found = stored(models["task"]), stored(models["language"]), stored(out)
    floats = {n: t for n, t in task.items() if t.is_floating_point() and "masked" not in n}
    assert_same({n: found[n] for n in floats}, expected(SWAP, floats, language))
    assert all(torch.equal(found[name], task[name]) for name in found.keys() - floats.keys())
    assert_loads(out)


NO_ATTENTION = ("mamba.", "mixer.", "conv.")
"""Layer modules that are neither attention nor feed-forward (and `mixer` of Phi's old code)."""


def test_layers_and_parts_are_read_off_the_names_of_all_of_mergekits_architectures():
    modules = [
        (name, module.architecture.definition, module.weight_prefix or "")
        for name, architectures in NAME_TO_ARCH.items()
        for architecture in architectures
        for key, module in architecture.modules.items()
        if key in ("default", "text_decoder") and "bert" not in name.lower()
    ]
    assert len(modules) >= 50
    for name, definition, prefix in modules:
        templates = [prefix + weight.name for weight in definition.layer_templates.weights]
        layered = [n.replace("${layer_index}", str(i)) for n in templates for i in range(18)]
        others = [*definition.pre_weights, *definition.post_weights]
        decoder = find_decoder([*layered, *(prefix + weight.name for weight in others)])
        for weight in definition.layer_templates.weights:
            own = weight.name.replace("${layer_index}", "17")
            is_other = own.partition("17.")[2].startswith(NO_ATTENTION)
            found = decoder.layer(prefix + own), layer_part(prefix + own) == "other"
            assert found == (17, is_other), (name, own)
        for weight in others:
            # Phi's first remote code calls its embeddings layer 0.
            if name != "MixFormerSequentialForCausalLM":
                assert decoder.layer(prefix + weight.name) is None, weight.name
