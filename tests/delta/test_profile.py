"""Profiles of real tiny models and adapters against float64 on files read by hand."""

import math
import re

import numpy as np
import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from ablations.delta.analysis import measure_profiles
from tests.delta.conftest import family_pair, fine_tuned
from tests.standins.fine_tunes import train_adapter
from tests.standins.model_families import FAMILIES, make_model
from tests.standins.oracle import fused_mixtral, stored

THRESHOLD = 8e-4
"""About the mean |delta| of noise with a standard deviation of 1e-3."""


def read(folder):
    return {name: tensor.double().numpy() for name, tensor in stored(folder).items()}


def rows(name, delta, family):
    """Return the MAV of every input feature: the mean over the outputs, by how each is stored."""
    magnitude = np.abs(delta)
    if delta.ndim == 1:
        return magnitude.mean(keepdims=True)
    if family == "gpt2" and re.search(r"(c_attn|c_proj|c_fc)\.weight$", name):
        return magnitude.mean(axis=1)  # [in, out]
    if family == "gpt_oss" and "experts" in name:
        return magnitude.mean(axis=-1).ravel()  # [experts, in, out], and a bias an expert
    return magnitude.mean(axis=0).ravel()  # [out, in], [out, channels, height, width]


def statistics(name, expert, base, family, threshold):
    """Return what `delta.csv` says of one tensor."""
    delta = expert - base
    mav, norm = rows(name, delta, family), np.linalg.norm(base)
    found = {
        "rows": mav.size,
        "mav": mav.mean(),
        "mav_max": mav.max(),
        "share_above": (mav > threshold).mean(),
        "share_changed": (delta != 0).mean(),
    }
    return found | ({"relative_norm": np.linalg.norm(delta) / norm} if norm > 0 else {})


def profile(expert, base, threshold=THRESHOLD):
    (found,) = measure_profiles([str(expert)], str(base), threshold=threshold)
    return found


def assert_agrees(found, expert, base, family):
    ours, theirs = read(expert), read(base)
    assert set(found.tensors["name"]) == set(theirs)
    for tensor in found.tensors.itertuples():
        name = tensor.name
        wanted = statistics(name, ours[name], theirs[name], family, found.threshold)
        for key, value in wanted.items():
            assert getattr(tensor, key) == pytest.approx(value, rel=2e-5, abs=1e-9), (name, key)
    delta = {name: ours[name] - theirs[name] for name in theirs}
    every = np.concatenate([rows(name, delta[name], family) for name in theirs])
    assert found.mean_row_mav == pytest.approx(every.mean(), rel=2e-6)
    norms = [math.fsum((v**2).sum() for v in side.values()) for side in (delta, theirs)]
    assert found.relative_norm == pytest.approx(math.sqrt(norms[0] / norms[1]), rel=1e-5)


KINDS = [(name,) for name in FAMILIES if name != "qwen2_vl"]
KINDS += [("gpt2", dtype) for dtype in (torch.bfloat16, torch.float16, torch.float64)]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_family_and_dtype_agrees_with_float64(kind, pair):
    found = profile(*pair(*kind))
    assert_agrees(found, *pair(*kind), kind[0])
    assert found.grid().columns
    assert len(found.grid().values) == found.num_layers
    tower = found.tensors[found.tensors["name"].str.contains("vision")]
    assert tower["layer"].isna().all()


def test_large_tensors_are_read_in_parts_and_shards(tmp_path):
    sizes = {"hidden_size": 192, "intermediate_size": 500, "vocab_size": 30_000}
    base = make_model("llama", tmp_path / "base", 1, shard="8MB", **sizes)
    assert len(list(base.glob("*.safetensors"))) > 2
    expert = fine_tuned(base, tmp_path / "expert", 2)
    assert_agrees(profile(expert, base), expert, base, "llama")


QKVO = tuple(f"self_attn.{kind}_proj" for kind in "qkvo")
MLP = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
GPT2 = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
EXPERTS = (*(f"block_sparse_moe.experts.*.w{n}" for n in (1, 3, 2)), "block_sparse_moe.gate")
FUSED = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj", "mlp.router")


@pytest.mark.parametrize(
    ("family", "columns"),
    [
        ("llama", (*QKVO, *MLP)),
        ("gpt2", GPT2),
        ("mixtral", (*QKVO, *EXPERTS)),
        ("gpt_oss", (*QKVO, *FUSED)),
    ],
)
def test_columns_are_the_paper_s_for_llamas_and_named_otherwise(family, columns, pair):
    assert profile(*pair(family)).grid().columns == columns


def test_a_layer_without_a_parameter_has_a_gap(pair):
    grid = profile(*pair("glm4_moe")).grid()
    column = grid.columns.index("mlp.experts.*.gate_proj")
    assert [math.isnan(row[column]) for row in grid.values] == [True, True, *[False] * 4]


def test_experts_in_one_tensor_have_the_rows_of_experts_one_a_tensor(tmp_path):
    expert, base = family_pair(tmp_path, "mixtral")
    single = profile(expert, base).grid()
    for folder in (expert, base):
        fused = {name: t.contiguous() for name, t in fused_mixtral(folder).items()}
        save_file(fused, folder / "model.safetensors", {"format": "pt"})
    stacked = profile(expert, base).grid()
    down = single.columns.index("block_sparse_moe.experts.*.w2")
    fused_down = stacked.columns.index("mlp.experts.down_proj")
    shares = np.array(single.values)[:, down]
    np.testing.assert_allclose(shares, np.array(stacked.values)[:, fused_down], rtol=1e-6)
    assert 0 < shares.mean() < 1


def test_an_eighth_of_the_rows_is_above_the_threshold(pair):
    shown = profile(*pair("llama"), None).matrices
    above = (shown["share_above"] * shown["rows"]).sum()
    assert round(above) == math.floor(shown["rows"].sum() / 8)


def test_a_model_is_its_own_expert_without_a_change(pair):
    base = pair("gpt2")[1]
    found = profile(base, base, None)
    assert found.threshold == found.mean_row_mav == found.relative_norm == found.share_changed == 0
    assert not found.tensors["share_above"].any()


def test_buffers_are_no_weights_and_tied_embeddings_count_once(tmp_path, pair):
    expert, base = family_pair(tmp_path, "llama")
    before = profile(expert, base)
    tensors = load_file(base / "model.safetensors")
    buffers = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4),
        "model.position_ids": torch.arange(64),
    }
    save_file({**tensors, **buffers}, base / "model.safetensors", {"format": "pt"})
    assert profile(expert, base).tensors.equals(before.tensors)
    assert "lm_head.weight" not in set(profile(*pair("llama_tied")).tensors["name"])


TARGETS = {"llama": ["q_proj", "v_proj", "down_proj"], "gpt2": ["c_attn", "c_proj"]}


@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", list(TARGETS))
def test_the_change_is_peft_s_and_is_not_rounded(family, dtype, tmp_path):
    base = make_model(family, tmp_path / "base", 1, dtype=dtype)
    options = {"r": 2, "lora_alpha": 6, "target_modules": TARGETS[family], "scale": 0.01}
    adapter = train_adapter(base, tmp_path / "adapter", 3, task_type="CAUSAL_LM", **options)
    whole = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    merged = peft.PeftModel.from_pretrained(whole, adapter).merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")
    ours, theirs = read(tmp_path / "merged"), read(base)
    found = profile(f"{base}+{adapter}", base, 1e-5)
    changed = set(found.tensors["name"][found.tensors["share_changed"] > 0])
    assert len(changed) == 6 * 3  # GPT-2 has two c_proj
    for tensor in found.tensors.itertuples():
        wanted = rows(tensor.name, ours[tensor.name] - theirs[tensor.name], family)
        # peft's merged float32 copy is rounded to the weights' last digit; the change here is not.
        assert tensor.mav == pytest.approx(wanted.mean(), rel=1e-3, abs=1e-9)
        assert tensor.mav_max == pytest.approx(wanted.max(), rel=1e-3, abs=1e-9)
    every = np.concatenate([rows(n, ours[n] - theirs[n], family) for n in theirs])
    assert found.mean_row_mav == pytest.approx(every.mean(), rel=1e-3)
