"""One judgement of a pair of checkpoints, for merges and deltas alike, and names of tensors."""

import shutil

import pytest
import torch

from layerswap_method.checkpoint.checkpoint import read_checkpoint
from layerswap_method.checkpoint.compatible import merge_problems, own_problems, pair_problems
from layerswap_method.checkpoint.tied_heads import ties
from layerswap_method.deltas.pair import read_pair
from layerswap_method.errors import InputError
from layerswap_method.recipe.references import Model
from tests.standins.fine_tunes import edited, restored, tune, with_head
from tests.standins.merging import linear_recipe, merge_of, recipe, revert_recipe, tensors_of
from tests.standins.model_families import make_model
from tests.standins.oracle import assert_same

ONE_EACH = {"bottom_layers": 1, "top_layers": 1}


PAIRS = [
    ({"vocab_size": 100}, "lm_head.weight [96, 16] against [100, 16]"),
    ({"attention_bias": True}, "lacks 24 tensors"),
    ({"intermediate_size": 96}, "shapes: model.layers.0.mlp.down_proj.weight"),
    ({"num_hidden_layers": 7}, "(6 and 7 layers)"),
    ({"family": "mistral"}, "(LlamaForCausalLM, MistralForCausalLM)"),
    ({"family": "llama_tied"}, "ties its output embedding"),
    ({"quantization_config": {"quant_method": "gptq"}}, "is quantised (gptq)"),
    ({"vocab_size": 100, "rows": 96}, "vocab_size 100 and its model.embed_tokens.weight has 96"),
]


@pytest.mark.parametrize(("make", "part"), PAIRS, ids=str)
def test_merges_and_deltas_refuse_the_same_pairs(make, part, experts, tmp_path):
    plain, folder = experts("llama").base, tmp_path / "other"
    rows = make.get("rows")
    sizes = {key: value for key, value in make.items() if rows is None}
    make_model(**{"family": "llama", "folder": folder, "seed": 1, **sizes})
    if rows is not None:
        edited(folder, vocab_size=make["vocab_size"])
    models = {"task": plain, "language": folder}
    for way in (
        lambda: merge_of(recipe(models, ONE_EACH)),
        lambda: merge_of(linear_recipe([plain, folder])),
        lambda: merge_of(revert_recipe(plain, folder, {"threshold": 0.1})),
        lambda: read_pair(Model(str(folder), folder), Model(str(plain), plain)),
    ):
        with pytest.raises(InputError) as caught:
            way()
        assert part in caught.value.message
        assert str(folder) in caught.value.message


def test_what_to_do_about_another_vocabulary(experts, tmp_path):
    plain = experts("llama").base
    other = make_model("llama", tmp_path / "an other", 1, vocab_size=100)
    pair = [read_checkpoint(str(each), each) for each in (plain, other)]

    def problems(**how):
        return "; ".join(pair_problems(*pair, **how))

    assert "tokenizer: {source: base}" in problems()
    assert problems(aligned=True) == ""
    assert list(merge_problems(pair, givers=[pair[0]])) == []
    assert "resize_token_embeddings" in problems(is_revert=True)
    assert "tokenizer:" not in problems(is_revert=True)


@pytest.fixture(scope="module")
def tied(tmp_path_factory):
    """Return models of one base that tie their embeddings, each with and without a head."""
    root = tmp_path_factory.mktemp("tied")
    base = make_model("llama_tied", root / "base", 1)
    tuned = {n: tune(base, root / n, i, 0.02, None) for i, n in enumerate(("task", "language"))}
    once = {"base": base, **tuned}
    return once | {f"{n} twice": with_head(at, root / f"{n}_twice") for n, at in once.items()}


@pytest.mark.parametrize(
    ("task", "language", "base"),
    [("", "", " twice"), ("", " twice", ""), (" twice", "", " twice")],
    ids=lambda each: each or " once",
)
def test_a_tied_head_stored_once_or_twice_is_one_tensor(task, language, base, tied):
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


def test_configs_that_do_not_say_whether_they_tie(tied, tmp_path):
    once, twice = (
        edited(shutil.copytree(tied[name], tmp_path / name), tie_word_embeddings=None)
        for name in ("task", "language twice")
    )
    for other in (twice, tied["base twice"]):
        assert not [*pair_problems(read_checkpoint("once", once), read_checkpoint("other", other))]


def test_a_head_of_other_content_is_not_tied_where_no_config_says_so(tied, tmp_path):
    """A model beside it without a head does not make it one: the weights decide."""

    def halved(tensors):
        return tensors | {"lm_head.weight": tensors["lm_head.weight"] / 2}

    folders = {
        "twice": shutil.copytree(tied["task twice"], tmp_path / "twice"),
        "other": restored(tied["task twice"], tmp_path / "other", halved),
        "once": shutil.copytree(tied["language"], tmp_path / "once"),
    }
    twice, other, once = (
        read_checkpoint(name, edited(folder, tie_word_embeddings=None))
        for name, folder in folders.items()
    )
    assert ties(twice, once)
    assert not ties(other, once)
    assert "output embedding" in " ".join(pair_problems(other, once))


def test_a_weight_with_a_scale_beside_it_is_quantised_whatever_its_dtype(experts, tmp_path):
    weight = "model.layers.1.mlp.up_proj.weight"
    stem = weight.removesuffix(".weight")
    names = (f"{weight}_scale_inv", f"{weight}_scale", f"{stem}.scale", f"{stem}.qscale_weight")
    for number, name in enumerate(names):
        add = {name: torch.ones(1, 1)}
        folder = restored(
            experts("llama").base, tmp_path / str(number), lambda t, a=add: {**t, **a}
        )
        (problem,) = own_problems(read_checkpoint("model", folder))
        assert f"is quantised: it stores scales beside its weights ({name}" in problem
    norm = {"model.norm.scale": torch.ones(16), "logit_scale": torch.ones(1)}
    plain = restored(experts("llama").base, tmp_path / "plain", lambda t: {**t, **norm})
    assert not [*own_problems(read_checkpoint("model", plain))]


def test_a_quantisation_that_is_none_is_taken_away_as_advised(experts, tmp_path):
    folder = shutil.copytree(experts("llama").base, tmp_path / "left")
    edited(folder, quantization_config={"quant_method": "bitsandbytes"})
    (problem,) = own_problems(read_checkpoint("model", folder))
    assert problem.endswith("weights are bfloat16; remove quantization_config from its config.json")
    edited(folder, quantization_config=None)
    assert not [*own_problems(read_checkpoint("model", folder))]


def test_a_class_with_a_wrapper_in_its_name_is_renamed_as_advised(experts, tmp_path):
    plain = experts("llama").base
    folder = shutil.copytree(experts("llama").task, tmp_path / "wrapped")
    edited(folder, architectures=["FSDPLlamaForCausalLM"])
    pair = read_checkpoint("plain", plain), read_checkpoint("wrapped", folder)
    (problem,) = pair_problems(*pair)
    assert "alike in weights and model_type" in problem
    assert problem.endswith('write "architectures": ["LlamaForCausalLM"] in its config.json')
    edited(folder, architectures=["LlamaForCausalLM"])
    assert not [*pair_problems(pair[0], read_checkpoint("wrapped", folder))]
