"""What a feature is, and how far it moved: against float64, by one loop, once in a process."""

import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import transformers

from layerswap_method.checkpoint import stored as stored_module
from layerswap_method.deltas import pair as measure
from layerswap_method.deltas.features import feature_layout, input_axis, spread_features
from layerswap_method.deltas.pair import (
    feature_mav,
    feature_mavs,
    for_each_tensor,
    mean_feature_mav,
    read_pair,
)
from layerswap_method.errors import InputError
from layerswap_method.recipe.references import Model
from tests.standins.fine_tunes import uneven, write_adapter
from tests.standins.merging import merge_of, revert_recipe
from tests.standins.model_families import FAMILIES, make_config
from tests.standins.oracle import mean_change, stored


def pair_of(expert, base, adapter=None):
    return read_pair(Model(str(expert), expert, adapter), Model(str(base), base))


def features_of(tensor, axis):
    """Return the features by indexing: the mean runs along the other axis (axes)."""
    if axis is None:
        return list(tensor.reshape(-1, tensor.shape[-1] if tensor.ndim else 1))
    if tensor.ndim == 3:
        # [experts, in, out] is that many inputs of each expert, and so is [experts, out, in]
        return [matrix.select(axis - 1, i) for matrix in tensor for i in range(tensor.shape[axis])]
    if tensor.ndim > 3:
        flat = tensor.flatten(2)
        return [flat[:, i, k] for i in range(flat.shape[1]) for k in range(flat.shape[2])]
    return [tensor.select(axis, i) for i in range(tensor.shape[axis])]


AXES = [
    # tensor, its number of axes, model type, axis of the inputs
    ("model.embed_tokens.weight", 2, "llama", 1),
    ("model.norm.weight", 1, "llama", None),
    ("transformer.h.0.attn.c_attn.weight", 2, "gpt2", 0),
    ("transformer.h.0.attn.c_attn.weight", 2, "llama", 1),
    ("transformer.wte.weight", 2, "gpt2", 1),
    ("model.layers.0.mlp.experts.gate_up_proj", 3, "qwen3_moe", 2),
    ("model.layers.0.mlp.experts.gate_up_proj_bias", 2, "gpt_oss", None),
    ("transformer.blocks.0.ffn.experts.mlp.w2", 2, "dbrx", 0),
    ("visual.patch_embed.proj.weight", 4, "qwen2_vl", 1),
    ("visual.patch_embed.proj.weight", 5, "qwen2_vl", 1),
]


@pytest.mark.parametrize(("name", "ndim", "kind", "axis"), AXES)
def test_which_axis_counts_the_inputs(name, ndim, kind, axis):
    assert input_axis(name, ndim, kind) == axis
    with pytest.raises(InputError, match=f"{name} has 6 axes"):
        input_axis(name, 6, kind)


MODULES = [
    ("llama", "mlp.down_proj", 24),
    ("phi3", "self_attn.qkv_proj", 16),
    ("phi3", "mlp.gate_up_proj", 16),
    ("gpt2", "attn.c_attn", 16),
    ("gpt2", "mlp.c_proj", 64),
    ("gpt_oss", "mlp.experts", 16),
    ("mixtral", "mlp.experts", 16),
]


@pytest.mark.parametrize(("family", "name", "count"), MODULES)
def test_a_feature_whose_weights_are_zero_has_no_influence(family, name, count):
    torch.manual_seed(0)
    model = getattr(transformers, FAMILIES[family].model)(make_config(family)).float().eval()
    name = f"{'transformer.h' if family == 'gpt2' else 'model.layers'}.0.{name}"
    module = model.get_submodule(name)
    experts = [torch.tensor([[0, 1], [1, 2], [2, 0], [0, 2]]), torch.full((4, 2), 0.5)]
    more = experts if name.endswith("experts") else []
    inputs = torch.randn(4, count)
    other = inputs.clone()
    other[:, 5] += 1
    assert (module(other, *more) != module(inputs, *more)).any()
    weight, name = (module.gate_up_proj, f"{name}.gate_up_proj") if more else (module.weight, name)
    axis = input_axis(f"{name}.weight", weight.ndim, model.config.model_type)
    others = torch.ones(feature_layout(weight.shape, axis).features)
    others.view(len(weight) if more else 1, -1)[:, 5] = 0
    weight.data *= spread_features(others, weight.shape, axis)
    torch.testing.assert_close(module(other, *more), module(inputs, *more), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("family", ["llama", "gpt2", "mixtral", "qwen3_vl", "gpt_oss"])
def test_the_mean_change_of_each_feature_is_that_in_float64(
    family, dtype, experts, tmp_path, monkeypatch
):
    monkeypatch.setattr(stored_module, "_BLOCK", 100)
    base = experts(family, dtype=dtype).base
    given_pair = pair_of(uneven(base, tmp_path / "expert", 5e-3), base)
    ours, theirs = stored(tmp_path / "expert"), stored(base)
    found = feature_mavs(given_pair)
    assert set(found) == set(theirs)
    for name, mav in found.items():
        change = (ours[name].double() - theirs[name].double()).abs()
        features = features_of(change, given_pair.axis(name))
        wanted = torch.stack([feature.mean() for feature in features])
        torch.testing.assert_close(mav.double(), wanted, rtol=1e-5, atol=1e-9)
    if family == "llama":
        assert mean_feature_mav(given_pair) == pytest.approx(mean_change(ours, theirs), rel=1e-6)


def test_an_adapter_is_measured_without_rounding_it_to_the_base(experts, tmp_path):
    base, module = experts("llama").base, "model.layers.1.mlp.down_proj"
    adapter = write_adapter(tmp_path / "adapter", module, 24, 16, 1e-3)
    given_pair = pair_of(base, base, adapter)
    changed = feature_mav(given_pair, f"{module}.weight")
    left, right = given_pair.changes[f"{module}.weight"].factors()
    torch.testing.assert_close(changed, (left @ right).abs().mean(0), rtol=1e-3, atol=1e-12)
    assert feature_mav(given_pair, "model.norm.weight").item() == 0


def test_one_pass_serves_a_whole_study(experts, tmp_path, monkeypatch):
    base = experts("llama").base
    expert = uneven(base, tmp_path / "expert", 5e-3)
    read, real = [], measure.feature_mav

    def counting(given_pair, name):
        read.append(name)
        return real(given_pair, name)

    monkeypatch.setattr(measure, "feature_mav", counting)
    feature_mavs.cache_clear()
    keep = [0.1, 0.5, 0.9]
    merges = [merge_of(revert_recipe(expert, base, {"keep_fraction": part})) for part in keep]
    assert sorted(read) == sorted(stored(base))
    again = merge_of(revert_recipe(expert, base, {"keep_fraction": 0.5}))
    assert again.tensors == merges[1].tensors != merges[0].tensors
    assert len(read) == len(stored(base))
    file = expert / "model.safetensors"  # a file that was written anew is read anew
    shutil.copyfile(file, tmp_path / "copy")
    (tmp_path / "copy").replace(file)
    merge_of(revert_recipe(expert, base, {"keep_fraction": 0.5}))
    assert len(read) == 2 * len(stored(base))


def test_every_tensor_is_worked_on_in_order():
    threads = torch.get_num_threads()
    names = list(map(str, range(30)))
    found = list(for_each_tensor(names, lambda name: int(name) + 1))
    assert found == [(name, int(name) + 1) for name in names]
    assert torch.get_num_threads() == threads
    with pytest.raises(ValueError, match="'a'"):
        list(for_each_tensor(["a"], int))


def test_threads_of_others_keep_their_cores_while_tensors_are_worked_on():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        results = for_each_tensor(list(map(str, range(9))), lambda name: torch.get_num_threads())
        assert next(results) == ("0", 1)
        with ThreadPoolExecutor(1) as others:
            assert others.submit(torch.get_num_threads).result() == 3
        assert [count for _, count in results] == [1] * 8
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
