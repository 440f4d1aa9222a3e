"""Merges against an independent average in float64; linear and passthrough against mergekit."""

import random
import shutil

import pytest
import torch

from layerswap_method.errors import InputError
from layerswap_method.tensors import MIXES
from tests.standins.fine_tunes import (
    restored,
    rewritten,
    tune,
    with_value,
    write_adapter,
)
from tests.standins.merging import (
    linear_recipe,
    merge,
    merge_of,
    recipe,
    revert_recipe,
    roles,
    tensors_of,
)
from tests.standins.model_families import LAYERS, make_model
from tests.standins.oracle import Swap, assert_same, expected, merge_parts, same_bits, stored

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
        merged, wanted = merge_of(document), merge_parts(document, LAYERS)
        found = tensors_of(merged)
        assert set(found) == set(wanted)
        for name, parts in wanted.items():
            shares, tensors = zip(*parts, strict=True)
            assert len(merged.tensors[name].terms) == len(parts), "nothing else is read"
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


TOPS = [
    ({}, None),
    *(({"dtype": str(dtype)[6:]}, dtype) for dtype in (*ULP, torch.float64)),
    ({"out_dtype": "float32"}, torch.float32),
    ({"dtype": "float32", "out_dtype": "float16"}, torch.float16),
    ({"dtype": "float16", "out_dtype": "float32"}, torch.float32),
]


@pytest.mark.parametrize("stored_as", ULP, ids=str)
def test_dtypes_are_kept_or_rounded_to_once(stored_as, experts):
    given, swap = experts("llama", dtype=stored_as), Swap(LAYERS)
    both = stored(given.task), stored(given.language)
    for top, dtype in TOPS:
        found = tensors_of(recipe(roles(given), swap.parameters(), given.base, **top))
        assert_same(found, expected(swap, *both, dtype=dtype))


@pytest.mark.parametrize("dtype", [None, "bfloat16", "float16", "float32"])
@pytest.mark.parametrize("out_dtype", [None, "float16"])
def test_experts_of_different_dtypes(dtype, out_dtype, experts, tmp_path):
    task = experts("llama").task
    language = make_model("llama", tmp_path / "language", 5, dtype=torch.float32)
    half = make_model("llama", tmp_path / "half", 6, dtype=torch.float16)
    top = {key: value for key, value in (("dtype", dtype), ("out_dtype", out_dtype)) if value}
    document = recipe({"task": task, "language": [language, half]}, SWAP, **top)
    merged, written = merge_of(document), out_dtype or dtype
    assert merged.dtype == (written or "bfloat16")
    assert ("different dtypes" in str(merged.warnings)) == (written is None)
    assert ("is stored in float32" in str(merged.warnings)) == (written in ("bfloat16", "float16"))
    found = tensors_of(merged)
    for name, parts in merge_parts(document, LAYERS).items():
        wanted = parts[0][1].dtype if len(parts) == 1 else torch.float32
        assert found[name].dtype == (getattr(torch, written) if written else wanted)
        exact = sum(s * t.double() for s, t in parts)
        torch.testing.assert_close(found[name].double(), exact, rtol=2**-7, atol=1e-7)


def dtype_warnings(models, base, more=(), **top):
    warnings = merge_of(recipe(models, SWAP | dict(more), base, **top)).warnings
    return [text for text in warnings if " dtype" in text]


def test_dtypes_are_warned_of_where_the_merge_has_them(experts, tmp_path):
    plain, half = experts("llama"), experts("llama", dtype=torch.float16)
    wide = experts("llama", dtype=torch.float32).base
    for top in ({}, {"dtype": "bfloat16"}):
        assert dtype_warnings(roles(plain), wide, **top) == []  # no tensor is the base's
        assert dtype_warnings(roles(plain), wide, {"non_layer": "base"}, **top)
    first, second = dtype_warnings(roles(half), half.base, dtype="bfloat16")
    assert (str(half.task) in first, str(half.language) in second) == (True, True)
    lost = "is stored in float16 and the merge is written in bfloat16: what light training changed"
    assert lost in first
    assert first.endswith("; write dtype: float16, and no other out_dtype")
    mixed = roles(half) | {"task": plain.task}
    for dtype, model in (("bfloat16", half.language), ("float16", plain.task)):
        (warning,) = dtype_warnings(mixed, half.base, dtype=dtype)
        assert warning.startswith(f"{model} is stored in")
        assert warning.endswith("; write dtype: float32, and no other out_dtype")


def test_dtypes_of_buffers_and_of_a_few_tensors(experts, tmp_path):
    half, routed = experts("llama", dtype=torch.float16), experts("glm4_moe", dtype=torch.float32)
    angles = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": torch.ones(4) for i in range(3)}
    task = restored(half.task, tmp_path / "angles", lambda tensors: tensors | angles)
    narrow = [
        rewritten(folder, tmp_path / folder.name, lambda n, t: t if "e_sc" in n else t.bfloat16())
        for folder in (routed.task, routed.base)
    ]
    every = rewritten(routed.language, tmp_path / "every", lambda n, t: t.bfloat16())
    norm = rewritten(half.task, tmp_path / "n", lambda n, t: t.float() if "norm" in n else t)
    for top in ({}, {"dtype": "float16"}):
        assert dtype_warnings({"task": task, "language": half.language}, half.base, **top) == []
    for top in ({}, {"dtype": "bfloat16"}):
        models = {"task": narrow[0], "language": every}
        assert dtype_warnings(models, narrow[1], **top) == []
    models = {"task": norm, "language": half.language}
    (warning,) = dtype_warnings(models, half.base, dtype="float16")
    assert "stores 13 of its 57 tensors in float32 and the merge" in warning
    assert warning.endswith("; leave out dtype and out_dtype: each tensor then keeps its own")


def test_the_bias_of_a_router_keeps_its_dtype(experts):
    """transformers loads it as float32 whatever the dtype; a cast made 7.3 to 7.3125."""
    given = experts("glm4_moe", dtype=torch.float32)
    average = {"parameters": {"placement": "soup"}}
    linear = linear_recipe([given.task, given.language])
    for document in (
        recipe(roles(given), SWAP, given.base),
        recipe(roles(given), {}, given.base) | average,
        revert_recipe(given.task, given.base, {"bottom_layers": 1}),
        linear,
        {"merge_method": "passthrough", "models": [{"model": str(given.task)}]},
    ):
        wide, found = tensors_of(document), tensors_of(document | {"dtype": "bfloat16"})
        biases = {name for name in found if "e_score_correction_bias" in name}
        assert biases
        assert_same({n: found[n] for n in biases}, {n: wide[n] for n in biases})
        others = {found[name].dtype for name in found.keys() - biases}
        assert others == {torch.bfloat16}


@pytest.mark.parametrize("weights", [(1.0, 1.0), (0.3, 0.7), (1.0, 0.0)])
@pytest.mark.parametrize("top", [{}, {"dtype": "float32"}], ids=str)
def test_linear_is_stock_mergekits(weights, top, experts, tmp_path):
    given = experts("llama")
    document = linear_recipe([given.task, given.language], weights) | top
    theirs, found = stored(merge(document, tmp_path / "out")), tensors_of(document)
    assert set(found) == set(theirs)
    for name, tensor in found.items():
        if weights == (0.3, 0.7):  # mergekit divides in another order
            torch.testing.assert_close(tensor, theirs[name], rtol=2**-7, atol=1e-6)
        else:  # but for the sign of zeros
            torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=0)


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
    for document in (
        recipe(roles(trio), SWAP, trio.base, dtype="float32"),
        revert_recipe(trio.task, trio.base, {"keep_fraction": 0.5}),
    ):
        mixes = merge_of(document).tensors
        assert MIXES.validate_json(MIXES.dump_json(dict(mixes))) == mixes


UP = "model.layers.1.mlp.up_proj.weight"


def cannot_be_merged(trio, root, stranger):
    """Yield recipes that are wrong only beside their models, and what is said of them."""
    adapter = write_adapter(root / "adapter", "model.layers.1.self_attn.k_proj", 16, 8)
    outside = with_value(trio.task, root / "outside", "model.norm.weight", torch.nan)
    inside = with_value(trio.task, root / "inside", UP, torch.nan)
    copy = rewritten(trio.base, root / "copy", lambda name, tensor: tensor)
    still = tune(trio.base, root / "still", 7, lambda name: 1e-2 * ("layers." not in name), None)
    magnitude, share = {"weighting": "magnitude", "placement": "soup"}, {"placement": "delta_share"}
    based = f"{trio.base}+{adapter}"

    def swap(parameters, base=trio.base, **models):
        return recipe({**roles(trio), **models}, parameters, base)

    yield swap({"placement": "layers", "language_layers": "0-6"}), ["layer 6 does not exist"]
    yield swap(magnitude, based), ["base has an adapter", "merge it into a folder"]
    yield swap(magnitude, task=stranger), ["is not the base of", "trained"]
    yield swap(magnitude, task=outside), [str(outside), "model.norm.weight", "NaN or infinite"]
    yield swap(share, task=inside), [str(inside), UP, "NaN or infinite"]
    yield swap(magnitude, language=copy), [f"{copy} is equal to {trio.base}"]
    yield swap(share, task=still), [f"the layers of {still} are equal"]
    yield revert_recipe(trio.task, trio.base, {"bottom_layers": 7}), ["= 7 is more than"]
    for parameters in ({"threshold": 1e-3}, {"keep_fraction": 0.5}):
        yield revert_recipe(stranger, trio.base, parameters), ["is not the base of", "trained"]
        yield revert_recipe(outside, trio.base, parameters), [str(outside), "1 of 16", "NaN"]
        yield revert_recipe(trio.task, based, parameters), ["base has an adapter", "merge it"]


def test_what_cannot_be_merged(trio, experts, tmp_path):
    stranger = shutil.copytree(experts("llama").task, tmp_path / "stranger")
    shutil.copy(trio.base / "tokenizer.json", stranger)  # without, it is refused for its tokens
    for document, parts in cannot_be_merged(trio, tmp_path, stranger):
        with pytest.raises(InputError) as caught:
            merge_of(document)
        assert all(part in caught.value.message for part in parts), (parts, caught.value.message)
    models = {"task": tmp_path / "outside", "language": trio.language}
    merge_of(recipe(models, {"placement": "delta_share"}, trio.base))  # it is not measured
    merge_of(revert_recipe(stranger, trio.base, {"bottom_layers": 1}))  # nothing is compared


@pytest.mark.parametrize("dtype", [torch.int8, torch.complex64, torch.float8_e4m3fn], ids=str)
def test_weights_that_are_no_plain_numbers(dtype, trio, tmp_path):
    """An int8 norm was averaged as numbers, complex values lost their imaginary part."""
    odd = tmp_path / "odd"
    rewritten(trio.task, odd, lambda _, tensor: tensor.to(dtype) if tensor.ndim == 1 else tensor)
    with pytest.raises(InputError, match=rf"{odd} stores weights as .*unquantised"):
        merge_of(recipe({"task": odd, "language": trio.language}, SWAP, trio.base))
    buffers = {"model.position_ids": torch.arange(8)[None]}  # integers, and no weights
    odd = restored(trio.task, tmp_path / "buffers", lambda held: {**held, **buffers})
    merge_of(recipe({"task": odd, "language": trio.language}, SWAP, trio.base))
