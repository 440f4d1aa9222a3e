"""One judgement of a pair of checkpoints, for merges and deltas alike, and names of tensors."""

import shutil

import pytest

from ablations.models.compat import SAME_ORIGIN, weight_cosine
from layerswap_method.checkpoint.checkpoint import read_checkpoint
from layerswap_method.checkpoint.compatible import merge_problems, pair_problems
from layerswap_method.deltas.pair import open_pair
from layerswap_method.errors import InputError
from layerswap_method.recipe.references import Model
from layerswap_method.tensor_names import decoder_layer, is_norm, layer_part, split_layer
from tests.standins.merging import (
    by_mergekit,
    linear_recipe,
    merge_of,
    recipe,
    revert_recipe,
    tensors_of,
)
from tests.standins.oracle import assert_same, stored
from tests.standins.tuned import edited, tune, with_head
from tests.standins.zoo import make_model

ONE_EACH = {"bottom_layers": 1, "top_layers": 1}


@pytest.mark.parametrize(
    ("make", "part"),
    [
        ({"vocab_size": 100}, "lm_head.weight [96, 16] against [100, 16]"),
        ({"attention_bias": True}, "lacks 24 tensors"),
        ({"intermediate_size": 96}, "shapes: model.layers.0.mlp.down_proj.weight"),
        ({"num_hidden_layers": 7}, "(6 and 7 layers)"),
        ({"family": "mistral"}, "(LlamaForCausalLM, MistralForCausalLM)"),
        ({"family": "llama_tied"}, "ties its output embedding"),
        ({"quantization_config": {"quant_method": "gptq"}}, "is quantised (gptq)"),
    ],
    ids=str,
)
def test_merges_and_deltas_refuse_the_same_pairs(make, part, experts, tmp_path):
    plain, folder = experts("llama").base, tmp_path / "other"
    make_model(**{"family": "llama", "folder": folder, "seed": 1, **make})
    models = {"task": plain, "language": folder}
    for way in (
        lambda: merge_of(recipe(models, ONE_EACH)),
        lambda: merge_of(linear_recipe([plain, folder])),
        lambda: merge_of(revert_recipe(plain, folder, {"threshold": 0.1})),
        lambda: open_pair(Model(str(folder), folder), Model(str(plain), plain)),
    ):
        with pytest.raises(InputError) as caught:
            way()
        assert part in caught.value.message
        assert str(folder) in caught.value.message


def test_what_to_do_about_another_vocabulary(experts, tmp_path):
    plain = experts("llama").base
    other = make_model("llama", tmp_path / "other", 1, vocab_size=100)
    pair = [read_checkpoint(str(each), each) for each in (plain, other)]

    def problems(**how):
        return "; ".join(pair_problems(*pair, **how))

    assert "tokenizer: {source: base}" in problems()
    assert f"layerswap compat {plain} {other}" in problems()
    assert problems(aligned=True) == ""
    assert list(merge_problems(pair, rows_from={str(plain)})) == []
    for how in ({"by_feature": True}, {"by_feature": True, "aligned": True}):
        assert "resize_token_embeddings" in problems(**how)
        assert "tokenizer:" not in problems(**how)


@pytest.fixture(scope="module")
def tied(tmp_path_factory):
    """Return models of one base that tie their embeddings, each with and without a head."""
    root = tmp_path_factory.mktemp("tied")
    found = {"base": make_model("llama_tied", root / "base", 1)}
    for name, seed in (("task", 2), ("language", 3)):
        found[name] = tune(found["base"], root / name, seed, 0.02, None)
    for name, folder in tuple(found.items()):
        found[f"{name} twice"] = with_head(folder, root / f"{name}_twice")
    return found


@pytest.mark.parametrize(
    ("task", "language", "base"),
    [("", "", " twice"), ("", " twice", ""), (" twice", "", " twice")],
    ids=lambda each: each or " once",
)
def test_a_tied_head_stored_once_or_twice_is_one_tensor(task, language, base, tied, tmp_path):
    def documents(task, language, base):
        both = {"task": tied[f"task{task}"], "language": tied[f"language{language}"]}
        donor, counts = tied[f"base{base}"], {"bottom_layers": 2, "top_layers": 1}
        return (
            recipe(both, counts, donor),
            recipe(both, {**counts, "non_layer": "task"}, donor),
            linear_recipe([*both.values()]),
            revert_recipe(both["task"], donor, {"threshold": 0.016}),
            revert_recipe(both["task"], donor, {"bottom_layers": 1}),
        )

    head, table = "lm_head.weight", "model.embed_tokens.weight"
    given, once = documents(task, language, base), documents("", "", "")
    for document, same in zip(given, once, strict=True):
        found, wanted = tensors_of(document), tensors_of(same)
        if head in found:
            assert_same({head: found.pop(head)}, {head: wanted[table]})
        assert_same(found, wanted)
    by_mergekit(given[0], tmp_path / "out")
    assert_same({table: stored(tmp_path / "out")[table]}, {table: tensors_of(once[0])[table]})


def test_configs_that_do_not_say_whether_they_tie(tied, tmp_path):
    def silent(name):
        folder = shutil.copytree(tied[name], tmp_path / name)
        return read_checkpoint(name, edited(folder, tie_word_embeddings=None))

    once, twice = silent("task"), silent("language twice")
    assert list(pair_problems(once, twice)) == []
    assert list(pair_problems(once, read_checkpoint("base", tied["base twice"]))) == []


def test_a_fine_tune_is_told_from_a_stranger(tied, tmp_path):
    stranger = make_model("llama_tied", tmp_path / "stranger", 9)
    base, task, other = (
        read_checkpoint("x", each) for each in (tied["base"], tied["task"], stranger)
    )
    assert weight_cosine(base, task) > SAME_ORIGIN > abs(weight_cosine(base, other))
    narrow = make_model("llama_tied", tmp_path / "narrow", 9, hidden_size=32, intermediate_size=40)
    assert weight_cosine(base, read_checkpoint("x", narrow)) is None


NAMES = [
    ("model.layers.3.self_attn.q_norm.weight", 3, "attention", True),
    ("model.layers.3.post_attention_layernorm.weight", 3, "norm", True),
    ("model.layers.11.mlp.experts.4.down_proj.weight", 11, "mlp", False),
    ("transformer.h.2.ln_1.weight", 2, "norm", True),
    ("model.layers.5.something.weight", 5, "other", False),
    # F4: the module is called norm_attn_norm, and its attention was taken for a norm
    ("transformer.blocks.7.norm_attn_norm.attn.Wqkv.weight", 7, "attention", False),
    ("transformer.blocks.7.norm_attn_norm.norm_1.weight", 7, "norm", True),
    # F7: layers that predict further tokens were layer 0 of the decoder
    ("model.mtp.layers.0.input_layernorm.weight", None, None, True),
    ("model.vision_tower.encoder.layers.3.self_attn.q_proj.weight", None, None, False),
    ("lm_head.weight", None, None, False),
]


@pytest.mark.parametrize(("name", "layer", "part", "norm"), NAMES)
def test_layer_and_part_follow_from_the_name(name, layer, part, norm):
    assert decoder_layer(name) == layer
    assert is_norm(name) == norm
    if layer is not None:
        assert layer_part(name) == part
        assert split_layer(name)[0] == layer
        assert layer_part(split_layer(name)[1]) == part
