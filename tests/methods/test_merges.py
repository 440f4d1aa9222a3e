"""Merges against an independent average in float64, and against mergekit's own executor."""

from __future__ import annotations

import random

import pytest
import torch

from layerswap_method.errors import InputError
from layerswap_method.tensors import mixes_from_json, mixes_to_json, read_mix
from tests.standins.merging import (
    by_mergekit,
    linear_recipe,
    merge,
    merge_of,
    recipe,
    revert_recipe,
    roles,
    tensors_of,
    write,
)
from tests.standins.oracle import (
    Swap,
    assert_same,
    chosen,
    dominant,
    expected,
    mean_change,
    merge_parts,
    part_of,
    published_shares,
    row_change,
    same_bits,
    stored,
)
from tests.standins.tuned import rewritten, train_adapter, tune, uneven, write_adapter
from tests.standins.zoo import LAYERS, make_model

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch_dtype.*"),
    pytest.mark.filterwarnings("ignore:Model (has|with) `tie_word_embeddings=True`"),
]
SWAP = {"bottom_layers": 2, "top_layers": 1, "bottom_transition": 1}
ULP = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 2**-24}
"""Half of the last bit, as a part of the value."""


def random_recipe(draw, given, others):
    """Return a recipe of any placement by counts, with one or two experts a role."""
    kinds = ["outer", "middle", "random", "alternating", "layers", "soup"]
    parameters = {"placement": draw.choice(kinds)}
    if parameters["placement"] == "layers":
        parameters["language_layers"] = draw.choice(["0", "1-2", "0,3,5", "2-4"])
    elif parameters["placement"] != "soup":
        parameters |= {"bottom_layers": draw.randint(1, 2), "top_layers": draw.randint(0, 2)}
    if parameters["placement"] != "soup":
        parameters |= {f"{end}_transition": draw.randint(0, 1) for end in ("bottom", "top")}
        parameters["swap_modules"] = draw.choice(["all", "all", "attention", "mlp"])
    parameters["non_layer"] = draw.choice(["average", "task", "language", "base"])
    parameters["layer_norms"] = draw.choice(["block", "average"])
    if draw.random() < 0.5:
        parameters |= {"task_weight": draw.choice([0, 0.3, 2]), "language_weight": 0.7}
    document = recipe(roles(given), parameters, given.base)
    for role, folder in others.items():
        if draw.random() < 0.4:
            weight = draw.choice([0, 0.25, 1, 3])
            more = {"model": str(folder), "parameters": {"role": role, "weight": weight}}
            document["models"].append(more)
    return document


@pytest.mark.parametrize("dtype", ULP, ids=str)
def test_random_recipes_are_the_average_in_float64(dtype, experts, tmp_path):
    given = experts("llama", dtype=dtype)
    others = {
        role: make_model("llama", tmp_path / role, seed, dtype=dtype)
        for seed, role in enumerate(("task", "language"), start=7)
    }
    averaged, draw = 0, random.Random(str(dtype))
    for _ in range(25):
        document = random_recipe(draw, given, others)
        found = tensors_of(document)
        wanted = merge_parts(document, LAYERS)
        assert set(found) == set(wanted)
        for name, parts in wanted.items():
            shares, tensors = zip(*parts, strict=True)
            if len(parts) == 1:
                assert same_bits(found[name], tensors[0]), (document, name)
                continue
            exact = sum(s * t.double() for s, t in parts)
            size = sum(s * t.double().abs() for s, t in parts)
            if len(parts) == 2 and shares[0] == shares[1]:
                assert same_bits(found[name], exact.float().to(dtype)), (document, name)
            slack = ULP[dtype] * exact.abs() + 4 * ULP[torch.float32] * size + 1e-7
            assert found[name].dtype == dtype
            assert ((found[name].double() - exact).abs() <= slack).all(), (document, name)
            averaged += 1
    assert averaged > 200


PARAMETERS = {
    "outer": SWAP,
    "nothing swapped": {"bottom_layers": 0, "top_layers": 0},
    "both transitions": {**SWAP, "bottom_layers": 1, "top_transition": 2},
    "middle": {**SWAP, "placement": "middle"},
    "random": {"bottom_layers": 2, "top_layers": 1, "placement": "random", "seed": 3},
    "alternating": {"bottom_layers": 2, "top_layers": 1, "placement": "alternating"},
    "layers": {"placement": "layers", "language_layers": "0,2-3", "top_transition": 1},
    "language outside": {**SWAP, "non_layer": "language"},
    "base outside, attention": {**SWAP, "non_layer": "base", "swap_modules": "attention"},
    "mlp": {**SWAP, "swap_modules": "mlp"},
    "norms": {**SWAP, "layer_norms": "average"},
    "weights": {**SWAP, "task_weight": 0.7, "language_weight": 0.3},
    "weight 0": {**SWAP, "task_weight": 0},
    "magnitude": {**SWAP, "weighting": "magnitude"},
    "delta_share": {"placement": "delta_share", "delta_threshold": 0.01},
    "modules": {"placement": "delta_share", "delta_unit": "module", "delta_blend": 0.3},
    "dominance": {"placement": "delta_share", "delta_dominance": 0.15},
}


@pytest.mark.parametrize("kind", PARAMETERS)
def test_files_and_mergekits_executor_agree(kind, trio, tmp_path):
    document = recipe(roles(trio), PARAMETERS[kind], trio.base)
    write(document, tmp_path / "files")
    by_mergekit(document, tmp_path / "mergekit")
    assert_same(stored(tmp_path / "files"), stored(tmp_path / "mergekit"))
    plans = [tmp_path / way / "layer_swap_plan.json" for way in ("files", "mergekit")]
    assert plans[0].read_text() == plans[1].read_text()


FAMILIES = ("llama_tied", "qwen2", "qwen3", "gemma2", "phi3", "gpt2", "opt", "olmo2", "mistral")
MORE = ("gpt_neox", "gpt_oss", "mixtral", "qwen2_moe", "glm4_moe", "mistral3_vl", "qwen2_vl")


@pytest.mark.parametrize("family", [*FAMILIES, *MORE])
def test_every_family_is_the_swap_of_its_tensors(family, experts):
    given, swap = experts(family), Swap(LAYERS)
    merged = merge_of(recipe(roles(given), swap.parameters(), given.base))
    wanted = expected(swap, stored(given.task), stored(given.language))
    assert_same(tensors_of(merged), wanted)
    assert merged.donor == given.base
    assert str(merged.plan.to_text()) == "llatal"
    has_head = any(name.endswith(("lm_head.weight", "embed_out.weight")) for name in wanted)
    assert has_head == (family not in ("llama_tied", "gemma2", "gpt2"))


@pytest.mark.parametrize("dtype", [None, "bfloat16", "float16", "float32"])
@pytest.mark.parametrize("out_dtype", [None, "float16"])
def test_experts_of_different_dtypes(dtype, out_dtype, experts, tmp_path):
    task = experts("llama").task
    language = make_model("llama", tmp_path / "language", 5, dtype=torch.float32)
    half = make_model("llama", tmp_path / "half", 6, dtype=torch.float16)
    top = {key: value for key, value in (("dtype", dtype), ("out_dtype", out_dtype)) if value}
    document = recipe({"task": task, "language": [language, half]}, SWAP, **top)
    merged, written = merge_of(document), out_dtype or dtype
    found = tensors_of(merged)
    assert merged.dtype == (written or "bfloat16")
    assert ("different dtypes" in str(merged.warnings)) == (written is None)
    assert ("is stored in float32" in str(merged.warnings)) == (written in ("bfloat16", "float16"))
    for name, parts in merge_parts(document, LAYERS).items():
        exact = sum(s * t.double() for s, t in parts)
        wanted = parts[0][1].dtype if len(parts) == 1 else torch.float32
        assert found[name].dtype == (getattr(torch, written) if written else wanted)
        slack = ULP.get(found[name].dtype) + (0 if dtype is None else ULP[getattr(torch, dtype)])
        assert ((found[name].double() - exact).abs() <= slack * exact.abs() + 1e-7).all()
    if written in (None, "float32"):
        by_mergekit(document, tmp_path / "out")  # which gives copies the widest dtype
        theirs = stored(tmp_path / "out")
        assert all(torch.equal(theirs[name].double(), t.double()) for name, t in found.items())


@pytest.mark.parametrize("weights", [(1.0, 1.0), (0.3, 0.7), (1.0, 0.0)])
@pytest.mark.parametrize("top", [{}, {"dtype": "float32"}], ids=str)
def test_linear_is_stock_mergekits(weights, top, experts, tmp_path):
    given = experts("llama")
    document = linear_recipe([given.task, given.language], weights) | top
    theirs = stored(merge(document, tmp_path / "out"))
    found = tensors_of(document)
    assert set(found) == set(theirs)
    for name, tensor in found.items():
        assert tensor.dtype == theirs[name].dtype
        if weights == (0.3, 0.7):  # mergekit divides in another order
            torch.testing.assert_close(tensor, theirs[name], rtol=2**-7, atol=1e-6)
        else:
            assert torch.equal(tensor, theirs[name])  # but for the sign of zeros


def test_one_model_in_shards_and_in_another_dtype(experts, tmp_path):
    folder = experts("qwen2", shard="4KB").task
    assert len(list(folder.glob("*.safetensors"))) > 3
    document = {"merge_method": "passthrough", "models": [{"model": str(folder)}]}
    for number, top in enumerate(({}, {"dtype": "float32"}, {"out_dtype": "float16"})):
        theirs = stored(merge(document | top, tmp_path / str(number)))
        assert_same(tensors_of(document | top), theirs)


def test_equal_weights_have_equal_mixes(experts):
    given = experts("llama")
    plain = merge_of({"merge_method": "passthrough", "models": [{"model": str(given.task)}]})
    nothing = {"bottom_layers": 0, "top_layers": 0, "non_layer": "task"}
    for top in ({}, {"dtype": "bfloat16"}):
        assert merge_of(recipe(roles(given), nothing, given.base, **top)).tensors == plain.tensors
    one = merge_of(recipe(roles(given), {**nothing, "bottom_layers": 1}, given.base)).tensors
    for name, mix in plain.tensors.items():
        assert (one[name] != mix) == name.startswith("model.layers.0.")


def test_a_mix_survives_the_way_to_another_process(trio):
    documents = [
        recipe(roles(trio), SWAP, trio.base, dtype="float32"),
        revert_recipe(trio.task, trio.base, {"keep_fraction": 0.5}),
    ]
    for document in documents:
        merged = merge_of(document)
        mixes = mixes_from_json(mixes_to_json(merged.tensors))
        assert mixes == merged.tensors
        assert_same({name: read_mix(mix) for name, mix in mixes.items()}, tensors_of(merged))


@pytest.mark.parametrize("kinds", [{}, {"r": 3, "use_rslora": True}], ids=["plain", "rslora"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_adapters_are_merged_as_mergekit_merges_them(kinds, dtype, experts, tmp_path):
    base = experts("llama", dtype=dtype).base
    config = {"target_modules": ["q_proj", "v_proj", "down_proj"], "r": 2, "lora_alpha": 7}
    models = {
        role: f"{base}+{train_adapter(base, tmp_path / role, seed, **config | kinds)}"
        for seed, role in enumerate(("task", "language"))
    }
    for number, top in enumerate(({}, {"dtype": "float32"})):
        document = recipe(models, SWAP, base, **top)
        by_mergekit(document, tmp_path / str(number))
        assert_same(tensors_of(document), stored(tmp_path / str(number)))
    merged, plain = tensors_of(recipe(models, SWAP, base)), stored(base)
    untouched = "model.layers.0.self_attn.k_proj.weight"
    assert same_bits(merged[untouched], plain[untouched])


def test_weights_and_places_follow_from_the_changes(trio, tmp_path):
    """Section 5.1 and arXiv 2601.22620, measured in float64 by hand."""
    base, both = stored(trio.base), {role: stored(f) for role, f in roles(trio).items()}
    soup = {"placement": "soup", "weighting": "magnitude"}
    merged = merge_of(recipe(roles(trio), soup, trio.base))
    inverse = {role: 1 / mean_change(each, base) for role, each in both.items()}
    for row in merged.record["deltas"]["weights"]:
        assert row["mean_change"] == pytest.approx(1 / inverse[row["role"]], rel=1e-6)
        share = inverse[row["role"]] / sum(inverse.values())
        assert row["share_of_average"] == pytest.approx(share, rel=1e-5)
    name = "model.layers.3.mlp.up_proj.weight"
    exact = sum(inverse[r] * both[r][name].double() for r in both) / sum(inverse.values())
    torch.testing.assert_close(
        read_mix(merged.tensors[name]).double(), exact, rtol=2**-8, atol=1e-6
    )
    scales = {"task": [4, 1, 1, 2, 3, 1], "language": [1, 4, 1, 2, 1, 3]}
    models = {
        role: tune(
            trio.base,
            tmp_path / role,
            seed,
            lambda n, s=s: 1e-3 * (s[int(n.split(".")[2])] if "layers" in n else 1),
        )
        for seed, (role, s) in enumerate(scales.items())
    }
    tuned = {role: stored(folder) for role, folder in models.items()}
    for unit in ("layer", "module"):
        shares = {role: published_shares(each, base, unit) for role, each in tuned.items()}
        for rule in ({"delta_threshold": 0.02}, {"delta_dominance": 0.15}):
            if unit == "module":
                rule = {**rule, "delta_unit": unit}
            merged = merge_of(recipe(models, {"placement": "delta_share", **rule}, trio.base))
            sources = set()
            for place, task in shares["task"].items():
                language = shares["language"][place]
                if "delta_threshold" in rule:
                    wanted = chosen(task - language, 0.02)
                else:
                    wanted = dominant(task, language, 0.15)
                assert merged.plan.source_of(*place) == wanted, (rule, place)
                sources.add(wanted)
            assert len(sources) == 3


REVERTS = [
    {"threshold": 1e-3},
    {"threshold": 0.0},
    {"threshold": 9.0},
    {"keep_fraction": 0.0},
    {"keep_fraction": 0.3},
    {"keep_fraction": 1.0},
    {"keep_fraction": 0.5, "bottom_layers": 1, "top_layers": 2, "revert_modules": "norm"},
    {"revert_layers": "0,2-3"},
    {"revert_modules": "attention,non_layer", "top_layers": 1},
]
REVERTED_DTYPES = [
    (torch.bfloat16, torch.bfloat16),
    (torch.float32, torch.bfloat16),
    (torch.bfloat16, torch.float32),
]


def revert_by_hand(spec, expert, base, threshold, family="llama"):
    """Return what goes back: whole tensors by layer and module, features by their change."""
    made = {}
    layers = set(range(spec.get("bottom_layers", 0)))
    layers |= set(range(LAYERS - spec.get("top_layers", 0), LAYERS))
    layers |= {0, 2, 3} if "revert_layers" in spec else set()
    modules = spec.get("revert_modules", "").split(",")
    for name, ours in expert.items():
        inside = ".layers." in name or ".h." in name
        number = int(name.split(".")[2]) if inside else None
        part = part_of(name) if inside else "non_layer"
        dtype = torch.promote_types(ours.dtype, base[name].dtype)
        if number in layers or part in modules:
            made[name] = base[name]
        elif threshold is None:
            made[name] = ours
        else:
            stays = row_change(name, ours, base[name], family) >= threshold
            if stays.all() or not stays.any():
                made[name] = ours if stays.all() else base[name]
            else:
                made[name] = torch.where(stays, ours.to(dtype), base[name].to(dtype))
    return made


@pytest.mark.parametrize("dtypes", REVERTED_DTYPES, ids=str)
@pytest.mark.parametrize("spec", REVERTS, ids=str)
def test_what_goes_back_goes_back_bit_for_bit(spec, dtypes, experts, tmp_path):
    parent = experts("llama", dtype=dtypes[1]).base
    expert = uneven(parent, tmp_path / "expert", 5e-3, dtypes[0])
    merged = merge_of(revert_recipe(expert, parent, spec))
    threshold = merged.record["threshold"]
    assert threshold == spec.get("threshold", threshold)
    wanted = revert_by_hand(spec, stored(expert), stored(parent), threshold)
    assert_same(tensors_of(merged), wanted)
    kept = merged.record["kept"]
    if fraction := spec.get("keep_fraction"):
        assert kept["kept_weights"] >= fraction * kept["weights"] * (len(spec) == 1)
    by_mergekit(revert_recipe(expert, parent, spec), tmp_path / "out")
    theirs = stored(tmp_path / "out")
    assert all(torch.equal(theirs[n].double(), t.double()) for n, t in wanted.items())


@pytest.mark.parametrize("family", [*FAMILIES, "mistral3_vl", "gpt_oss", "mixtral"])
def test_features_of_every_family_go_back(family, experts, tmp_path):
    parent = experts(family).base
    expert = uneven(parent, tmp_path / "expert", 5e-3)
    merged = merge_of(revert_recipe(expert, parent, {"keep_fraction": 0.4}))
    ours, theirs, found = stored(expert), stored(parent), tensors_of(merged)
    assert sum(mix.mask is not None for mix in merged.tensors.values()) > LAYERS
    for name, tensor in found.items():
        is_ours, is_theirs = tensor == ours[name], tensor == theirs[name]
        assert (is_ours | is_theirs).all()
        mask = merged.tensors[name].mask
        if mask is not None and mask.axis is not None and tensor.ndim == 2:
            axis = 1 - mask.axis  # a feature is one side's along all its outputs
            assert (is_ours.all(axis) | is_theirs.all(axis)).all()
    kept = merged.record["kept"]
    assert 0.4 <= kept["fraction"] < 0.55


def damaged(base, to):
    def edit(name, tensor):
        if name == "model.norm.weight":
            tensor[3] = torch.nan
        return tensor

    return rewritten(base, to, edit)


def test_what_cannot_be_merged(trio, experts, tmp_path):
    stranger, wide = (
        experts("llama").task,
        make_model("llama", tmp_path / "wide", 1, hidden_size=32),
    )
    deep = make_model("llama", tmp_path / "deep", 1, num_hidden_layers=LAYERS + 1)
    adapter = write_adapter(tmp_path / "adapter", "model.layers.1.self_attn.k_proj", 16, 8)
    nan = damaged(trio.task, tmp_path / "nan")
    magnitude = {"weighting": "magnitude", "placement": "soup"}
    both, based = roles(trio), f"{trio.base}+{adapter}"
    cases = [
        (recipe({**both, "language": wide}, SWAP, deep), "shapes", "depths (6 and 7", "compat"),
        (recipe(both, {"bottom_layers": 5}, trio.base), "= 7 is more than", "6 layers"),
        (recipe(both, magnitude, based), "base has an adapter", "merge it into a folder"),
        (recipe({**both, "task": stranger}, magnitude, trio.base), "is not the base of", "trained"),
        (recipe({**both, "task": nan}, magnitude, trio.base), str(nan), "model.norm.weight"),
        (
            recipe({**both, "task": nan}, {"placement": "delta_share"}, trio.base),
            "",
        ),
        (revert_recipe(stranger, trio.base, {"threshold": 1e-3}), "is not the base of", "trained"),
        (revert_recipe(trio.task, trio.base, {"bottom_layers": 7}), "= 7 is more than", "6 layers"),
        (revert_recipe(nan, trio.base, {"keep_fraction": 0.5}), str(nan), "1 of 16", "NaN"),
        (revert_recipe(trio.task, based, {"threshold": 0.1}), "base has an adapter", "merge it"),
    ]
    for document, *parts in cases:
        if parts == [""]:
            merge_of(document)  # what is outside the layers is not measured
            continue
        with pytest.raises(InputError) as caught:
            merge_of(document)
        assert all(part in caught.value.message for part in parts), (parts, caught.value.message)
    merge_of(revert_recipe(stranger, trio.base, {"bottom_layers": 1}))  # nothing is compared
