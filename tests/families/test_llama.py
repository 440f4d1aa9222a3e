"""Llama in depth: stored dtypes, casts, weights, ties, adapters, and what is read at all."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from layerswap_method.errors import InputError
from layerswap_method.methods.read import read_recipe
from layerswap_method.recipe.references import find_model_files
from tests.standins.merging import merge, recipe, roles
from tests.standins.oracle import (
    Swap,
    assert_same,
    average,
    expected,
    layer_number,
    part_of,
    stored,
)
from tests.standins.tuned import train_adapter, with_head
from tests.standins.zoo import LAYERS

SWAP = Swap(LAYERS)
DTYPES = {name: getattr(torch, name) for name in ("bfloat16", "float16", "float32", "float64")}


@pytest.mark.parametrize("stored_as", DTYPES)
@pytest.mark.parametrize(
    ("top", "wanted_as"),
    [
        ({}, None),
        *(({"dtype": name}, name) for name in DTYPES),
        ({"out_dtype": "float32"}, "float32"),
        ({"dtype": "float32", "out_dtype": "float16"}, "float16"),
    ],
    ids=str,
)
def test_dtypes_are_kept_or_rounded_to_once(top, wanted_as, stored_as, experts, tmp_path):
    given = experts("llama", dtype=DTYPES[stored_as])
    out = merge(recipe(roles(given), SWAP.parameters(), **top), tmp_path / "merged")
    dtype = DTYPES.get(wanted_as)
    wanted = expected(SWAP, stored(given.task), stored(given.language), dtype=dtype)
    found = stored(out)
    assert {tensor.dtype for tensor in found.values()} == {dtype or DTYPES[stored_as]}
    if stored_as == "float64" and wanted_as in ("bfloat16", "float16", "float32", None):
        # A float64 average is rounded to the float type by torch, by way of float32.
        steps = {"bfloat16": 2**-8, "float16": 2**-11, "float32": 2**-24}.get(wanted_as, 2**-53)
        for name, tensor in wanted.items():
            assert torch.allclose(
                found[name].double(), tensor.double(), rtol=2.01 * steps, atol=1e-7
            )
    else:
        assert_same(found, wanted)


@pytest.mark.parametrize(("w_task", "w_lang"), [(1.0, 2.0), (3.0, 1.0), (0.25, 0.75)])
def test_unequal_weights(w_task, w_lang, experts, tmp_path):
    given, swap = experts("llama"), Swap(LAYERS, w_task=w_task, w_lang=w_lang)
    out = merge(recipe(roles(given), swap.parameters()), tmp_path / "merged")
    found, wanted = stored(out), expected(swap, stored(given.task), stored(given.language))
    off = 0
    for name, tensor in wanted.items():  # sums in float32: a value may round to its neighbour
        assert torch.allclose(found[name].float(), tensor.float(), rtol=2**-7, atol=0)
        off += int((found[name] != tensor).sum())
    assert off <= 0.005 * sum(tensor.numel() for tensor in wanted.values())


@pytest.mark.parametrize(("kept", "weights"), [("task", (1.0, 0.0)), ("language", (0.0, 1.0))])
def test_a_weight_of_zero_keeps_the_other_expert_bit_for_bit(kept, weights, experts, tmp_path):
    given = experts("llama")
    swap = Swap(LAYERS, b=0, u=0, t_b=3, t_u=3, w_task=weights[0], w_lang=weights[1])
    out = merge(recipe(roles(given), swap.parameters()), tmp_path / "merged")
    assert_same(stored(out), stored(getattr(given, kept)))


def test_experts_of_different_dtypes_meet_in_the_wider_one(experts, tmp_path):
    task, language = experts("llama"), experts("llama", dtype=torch.float32, shard="4KB")
    assert len(list(language.language.glob("*.safetensors"))) > 3
    models = {"task": task.task, "language": language.language}
    out = merge(recipe(models, SWAP.parameters()), tmp_path / "merged")
    first, second = stored(task.task), stored(language.language)
    averages = {n: average(first[n], second[n], SWAP, torch.float32) for n in first}
    wanted = expected(SWAP, first, second)
    of_both = {n: averages[n] for n in wanted if SWAP.of_tensor(n) == "average"}
    assert_same(stored(out), wanted | of_both)


def test_tied_embeddings(experts, loads, tmp_path):
    """Older checkpoints store a tied head as a copy; the other expert does not."""
    tied, untied = experts("llama_tied"), experts("llama")
    for models in ((tied.task, untied.language), (untied.task, tied.language)):
        document = recipe(dict(zip(("task", "language"), models, strict=True)), SWAP.parameters())
        with pytest.raises(InputError, match=r"ties its output embedding .* untie the first"):
            merge(document, tmp_path / "refused")
    assert not (tmp_path / "refused").exists()
    folder = with_head(tied.task, tmp_path / "task")
    models = {"task": folder, "language": tied.language}
    out = merge(recipe(models, SWAP.parameters()), tmp_path / "merged")
    wanted, found = expected(SWAP, stored(tied.task), stored(tied.language)), stored(out)
    if "lm_head.weight" in found:
        wanted["lm_head.weight"] = wanted["model.embed_tokens.weight"]
    assert_same(found, wanted)
    loads(out)


def with_lora(base, adapter):
    """Return base + alpha/r * B @ A in float64."""
    weights = {name: tensor.double() for name, tensor in stored(base).items()}
    for name, down in load_file(adapter / "adapter_model.safetensors").items():
        if "lora_A" in name:
            up = load_file(adapter / "adapter_model.safetensors")[name.replace("lora_A", "lora_B")]
            target = name.removeprefix("base_model.model.").replace("lora_A.weight", "weight")
            weights[target] = weights[target] + 3 * up.double() @ down.double()
    return weights


@pytest.mark.parametrize("adapted", [("task",), ("language",), ("task", "language")], ids="+".join)
def test_adapters(adapted, experts, loads, tmp_path):
    given = experts("llama", dtype=torch.float32)
    models, values = dict(roles(given)), {n: stored(f) for n, f in roles(given).items()}
    for seed, role in enumerate(adapted):
        targets = ["q_proj", "v_proj", "down_proj"]
        settings = {"r": 2, "lora_alpha": 6, "target_modules": targets}
        adapter = train_adapter(given.base, tmp_path / role, seed, **settings)
        models[role] = f"{given.base}+{adapter}"
        values[role] = with_lora(given.base, adapter)
    out = merge(recipe(models, SWAP.parameters(), given.base), tmp_path / "merged")
    found = stored(out)
    assert found.keys() == values["task"].keys()
    for name, tensor in found.items():
        sides = [values[role][name].double() for role in ("task", "language")]
        wanted = {"task": sides[0], "language": sides[1], "average": sum(sides) / 2}
        exact = wanted[SWAP.of_tensor(name)]
        step = torch.finfo(torch.float32).eps * exact.abs().max()
        assert tensor.dtype == torch.float32
        assert (tensor.double() - exact).abs().max() <= 2 * step, name
    loads(out)


@pytest.mark.parametrize("non_layer", ["average", "task", "language", "base"])
@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"placement": "middle", "bottom_layers": 2, "top_layers": 1, "bottom_transition": 1},
        {"placement": "random", "bottom_layers": 2, "top_layers": 1, "seed": 3},
        {"swap_modules": "mlp"},
        {"language_weight": 0.0},
    ],
    ids=str,
)
def test_only_the_tensors_that_the_plan_needs_are_read(parameters, non_layer, experts):
    given = experts("llama")
    placed = {} if "placement" in parameters else SWAP.parameters()
    own = {**placed, **parameters, "non_layer": non_layer}
    reference = read_recipe(recipe(roles(given), own, given.base))
    merged = reference.merge({name: find_model_files(name) for name in reference.references})
    assert merged.tensors.keys() == stored(given.task).keys()
    zero = parameters.get("language_weight") == 0
    for name, mix in merged.tensors.items():
        layer = layer_number(name)
        source = non_layer if layer is None else merged.plan.sources[layer]
        if layer is not None and parameters.get("swap_modules", part_of(name)) != part_of(name):
            source = "task"
        needed = ["task"] if zero else ["task", "language"]
        read = [at.file.parent.name for term in mix.terms for at in term.all_stored]
        assert read == (needed if source == "average" else [source]), name
        assert all(at.name == name for term in mix.terms for at in term.all_stored)
