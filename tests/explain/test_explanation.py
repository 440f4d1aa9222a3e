"""Merges by mergekit's methods and by ours, read back from samples of their tensors."""

from types import SimpleNamespace

import pytest
import torch

from ablations.explain.explanation import OUTSIDE, explain
from ablations.models.find import open_model
from ablations.models.verify import compare
from layerswap_method.errors import InputError
from tests.standins.fine_tunes import rewritten, tune
from tests.standins.merging import linear_recipe, merge, recipe

LAYERS = 6


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Return a base in bfloat16, three fine-tunes of it, and a model of another parent."""
    from transformers import LlamaConfig, LlamaForCausalLM

    root = tmp_path_factory.mktemp("models")
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    for seed, name in enumerate(("base", "stranger")):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config).to(torch.bfloat16)
        model.save_pretrained(root / name, max_shard_size="100KB" if name == "base" else "5GB")
    for seed, name in enumerate(("a", "b", "c")):
        tune(root / "base", root / name, seed, 0.002, torch.bfloat16)
    return SimpleNamespace(**{n: str(root / n) for n in ("base", "stranger", "a", "b", "c")})


def explained(document, parents, tmp_path):
    """Merge a recipe by mergekit, and explain what it wrote."""
    return explain(str(merge(document, tmp_path / "merged")), parents)


def assert_recipe_gives(explanation, tmp_path, steps=0.0):
    """Assert that the recipe gives the merge, up to so many rounding steps of bfloat16."""
    again = merge(explanation.recipe, tmp_path / "again")
    result = compare(
        open_model(str(again)),
        open_model(str(tmp_path / "merged")),
    )
    assert (result.first_only, result.second_only, result.shapes, result.dtypes) == ((),) * 4
    assert result.tensors > 50
    assert all(row.relative <= steps * 2**-8 for row in result.differences)


SWAPS = {
    "outer": {"bottom_layers": 2, "top_layers": 1},
    "zones": {"bottom_layers": 1, "top_layers": 1, "bottom_transition": 2, "top_transition": 1},
    "no_top": {"bottom_layers": 2, "top_layers": 0, "top_transition": 1},
    "middle": {"bottom_layers": 1, "top_layers": 1, "placement": "middle"},
    "random": {"bottom_layers": 2, "top_layers": 1, "placement": "random", "seed": 3},
    "alternating": {"bottom_layers": 2, "top_layers": 1, "placement": "alternating"},
    "layers": {"placement": "layers", "language_layers": "1,4", "bottom_transition": 1},
    "soup": {"placement": "soup"},
    "attention": {"bottom_layers": 2, "top_layers": 1, "swap_modules": "attention"},
    "norms": {"bottom_layers": 2, "top_layers": 1, "layer_norms": "average"},
    "base": {"bottom_layers": 2, "top_layers": 1, "non_layer": "base"},
    "task": {"bottom_layers": 2, "top_layers": 1, "non_layer": "task"},
    "weights": {"bottom_layers": 2, "top_layers": 1, "bottom_transition": 1, "task_weight": 3.0},
}


@pytest.mark.parametrize("parameters", SWAPS.values(), ids=SWAPS)
def test_the_recipe_of_a_swap_gives_it_bit_for_bit(models, parameters, tmp_path):
    document = recipe({"task": models.a, "language": models.b}, parameters, base=models.base)
    explanation = explained(document, [models.a, models.b, models.base], tmp_path)
    assert not explanation.unexplained
    # `linear` averages its base_model in.
    base = models.a if explanation.recipe["merge_method"] == "linear" else models.base
    assert explanation.recipe["base_model"] == base
    assert_recipe_gives(explanation, tmp_path)


def test_soups_of_several_experts_are_told_from_single_ones(models, tmp_path):
    roles = {"task": [models.a, models.c], "language": models.b}
    document = recipe(roles, {"bottom_layers": 2, "top_layers": 1}, base=models.base)
    explanation = explained(document, [models.a, models.b, models.c, models.base], tmp_path)
    assert dict(explanation.rows()) == {
        "layers 0-1,5": f"copy of {models.b}",
        "layers 2-4": f"0.5 {models.a} + 0.5 {models.c}",
        OUTSIDE: f"0.25 {models.a} + 0.5 {models.b} + 0.25 {models.c}",
    }
    assert_recipe_gives(explanation, tmp_path)


def test_weights_of_an_average_are_read_back(models, tmp_path):
    document = linear_recipe([models.a, models.b], (0.3, 0.7))
    explanation = explained(document, [models.a, models.b, models.base], tmp_path)
    text = f"0.3 {models.a} + 0.7 {models.b}"
    assert dict(explanation.rows()) == {"layers 0-5": text, OUTSIDE: text}
    assert_recipe_gives(explanation, tmp_path)


def test_task_arithmetic_is_a_sum_with_the_base(models, tmp_path):
    document = {
        "merge_method": "task_arithmetic",
        "base_model": models.base,
        "models": [
            {"model": models.a, "parameters": {"weight": 0.7}},
            {"model": models.b, "parameters": {"weight": 0.4}},
        ],
        "dtype": "bfloat16",
    }
    explanation = explained(document, [models.a, models.b, models.base], tmp_path)
    text = f"0.7 {models.a} + 0.4 {models.b} - 0.1 {models.base}"
    assert dict(explanation.rows()) == {"layers 0-5": text, OUTSIDE: text}
    # mergekit rounds each difference and product to bfloat16, a linear recipe only the sum.
    assert_recipe_gives(explanation, tmp_path, steps=2.0)


def test_slices_in_another_order_are_found(models, tmp_path):
    document = {
        "merge_method": "passthrough",
        "slices": [
            {"sources": [{"model": models.a, "layer_range": [0, 4]}]},
            {"sources": [{"model": models.b, "layer_range": [2, 6]}]},
        ],
        "dtype": "bfloat16",
    }
    explanation = explained(document, [models.a, models.b], tmp_path)
    assert dict(explanation.rows())["layers 4-7"] == f"copy of layers 2-5 of {models.b}"
    assert explanation.recipe["slices"] == document["slices"]
    assert_recipe_gives(explanation, tmp_path)


@pytest.mark.parametrize("method", ["ties", "dare_linear", "slerp"])
def test_other_methods_are_not_explained(models, method, tmp_path):
    weights = {"weight": 0.5, "density": 0.5}
    document = {
        "merge_method": method,
        "base_model": models.base,
        "models": [{"model": m, "parameters": weights} for m in (models.a, models.b)],
        "dtype": "bfloat16",
    }
    if method == "slerp":
        document["models"] = [{"model": models.base}, {"model": models.stranger}]
        document["parameters"] = {"t": 0.4}
    explanation = explained(document, [models.a, models.b, models.base], tmp_path)
    matrices = [o for o in explanation.origins if len(o.sample.values) == 1024]
    assert matrices
    assert all(origin.kind == "unexplained" for origin in matrices)
    assert explanation.recipe is None
    text = str(explanation)
    assert "No recipe: not everything is explained." in text
    assert "100 to 100 %" not in text


def test_a_parent_that_is_missing_is_noticed(models, tmp_path):
    roles = {"task": [models.a, models.c], "language": models.b}
    document = recipe(roles, {"bottom_layers": 2, "top_layers": 1}, base=models.base)
    explanation = explained(document, [models.a, models.b], tmp_path)
    assert dict(explanation.rows())["layers 0-1,5"] == f"copy of {models.b}"
    assert explanation.recipe is None
    assert {o.layer for o in explanation.unexplained} == {2, 3, 4, None}
    assert "Either a parent is missing, such as the base, or the method" in str(explanation)


def test_unrelated_models_explain_nothing(models):
    explanation = explain(models.stranger, [models.a, models.b])
    kinds = {o.kind for o in explanation.origins if len(o.sample.values) == 1024}
    assert kinds == {"unexplained"}


def test_a_merge_in_another_dtype_is_read_back(models, tmp_path):
    roles = {"task": models.a, "language": models.b}
    document = recipe(roles, SWAPS["outer"], base=models.base, dtype="float32")
    explanation = explained(document, [models.a, models.b], tmp_path)
    assert not explanation.unexplained
    assert explanation.recipe["dtype"] == "float32"


def test_a_copy_but_for_rounding_is_said(models, tmp_path):
    def edited(name, first):
        def edit(_, tensor):
            moved = tensor.clone()
            bits = moved.view(torch.int16).view(-1)  # every fourth value moves by one step
            bits[first::8] += 1
            bits[first + 4 :: 8] -= 1
            return moved

        return str(rewritten(models.a, tmp_path / name, edit))

    merged, other = edited("merged", 0), edited("other", 2)
    twin = str(rewritten(models.a, tmp_path / "twin", lambda name, tensor: tensor.clone()))
    for parents, name in (
        ([models.a, models.stranger], models.a),
        ([models.a, twin], f"{models.a} = {twin}"),
        ([models.a, other], f"{models.a} or {other}"),
    ):
        explanation = explain(merged, parents)
        text = f"copy of {name}, but for rounding"
        assert dict(explanation.rows()) == {"layers 0-5": text, OUTSIDE: text}


def test_a_copy_has_a_recipe_of_one_model(models):
    explanation = explain(models.a, [models.b, models.a])
    assert explanation.recipe["models"] == [{"model": models.a}]


@pytest.mark.parametrize(
    ("parents", "words"), [([], "--parents A B"), (["a", "b", "a"], "a is named twice")]
)
def test_parents_are_named_once(models, parents, words):
    with pytest.raises(InputError, match=words):
        explain(models.a, parents)
