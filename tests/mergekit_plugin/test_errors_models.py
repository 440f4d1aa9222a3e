"""Recipes whose models are missing, damaged or do not fit: refused before anything is written."""

from __future__ import annotations

import json
import logging
import shutil

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from ablations.cli import main as layerswap
from ablations.gallery.check import check_recipe
from tests.mergekit_plugin.conftest import VOCAB, save_llama, write_recipe
from tests.mergekit_plugin.test_errors import assert_one_text
from tests.standins.merging import recipe, revert_recipe
from tests.standins.oracle import assert_same, stored
from tests.standins.tokenizers import save_word_tokenizer, words
from tests.standins.tuned import restored, rewritten, train_adapter, tune, uneven

SHARD, INDEX = "model-00001-of-00001.safetensors", "model.safetensors.index.json"


@pytest.mark.parametrize(
    ("parameters", "fragment"),
    [
        ({"bottom_layers": 6, "top_layers": 3}, "6 + 3 = 9 is more than the model's 8 layers"),
        ({"bottom_layers": 99}, "99 + 2 = 101 is more than the model's 8 layers"),
        ({"placement": "layers", "language_layers": "0-8"}, "layer 8 does not exist"),
        ({"revert_layers": "8"}, "layer 8 does not exist"),
    ],
)
def test_layers_that_the_model_has_not(parameters, fragment, experts, merge, tmp_path):
    document = experts.recipe(parameters=parameters)
    if "revert_layers" in parameters:
        document = revert_recipe(experts.task, experts.base, parameters)
    assert fragment in assert_one_text(document, tmp_path, merge, form=False)


def test_modules_to_swap_that_the_model_has_not(merge, tmp_path):
    from transformers import MambaConfig, MambaForCausalLM

    sizes = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 4, "state_size": 4}
    folders = {role: tmp_path / role for role in ("task", "language")}
    for folder in folders.values():
        MambaForCausalLM(MambaConfig(**sizes)).save_pretrained(folder)
    counts = {"bottom_layers": 1, "top_layers": 1}
    document = recipe(folders, {**counts, "swap_modules": "attention"})
    said = assert_one_text(document, tmp_path, merge, form=False)
    assert "swap_modules is attention" in said
    assert merge(recipe(folders, counts)).exit_code == 0


@pytest.mark.parametrize(
    ("written", "fragment"),
    [
        ("/no/such/folder", "/no/such/folder: no such folder"),
        ("./no-such-folder", "./no-such-folder: no such folder"),
        ("{root}/taks", "did you mean 'task'"),
        ("{root}/task/config.json", "is a file; write its folder"),
        ("~nobody/task", "no such folder"),
        ("./" + "x" * 300, "no such folder"),
        ("{root}/task+/no/such/adapter", "/no/such/adapter: no such folder"),
        ("{root}/task+{root}/base", "is not a PEFT adapter"),
    ],
)
def test_a_local_path_that_is_no_model(written, fragment, experts, merge, tmp_path):
    document = experts.with_models(written.format(root=experts.root))
    assert fragment in assert_one_text(document, tmp_path, merge, form=False)


def test_a_hub_id_that_is_not_on_this_machine(experts, refused):
    refused(experts.with_models("nobody/no-such-model"), "nobody/no-such-model: no such folder")


@pytest.mark.parametrize("written", ["task", "./task", "task/", "../{root}/./task", "{root}/task"])
def test_folders_however_they_are_written(written, experts, merge, monkeypatch, tmp_path):
    """`a/b` may be a hub id, and is a folder where one is there."""
    monkeypatch.chdir(experts.root.parent if written.startswith("{") else experts.root)
    document = experts.with_models(written.format(root=experts.root.name))
    result = merge(document)
    assert result.exit_code == 0, result.output
    path, out = write_recipe(tmp_path / "recipe.yml", document), tmp_path / "by_files"
    done = CliRunner().invoke(layerswap, ["merge", str(path), str(out)])
    assert done.exit_code == 0, done.output
    assert_same(stored(out), stored(result.folder))


def with_file(name, text):
    def damage(folder):
        (folder / name).write_text(text)

    return damage


def sharded(index=None, cut=None):
    """Return a damage: one shard under another name, an index, and so many bytes of it cut off."""

    def damage(folder):
        shard = (folder / "model.safetensors").rename(folder / SHARD)
        names = {"weight_map": dict.fromkeys(load_file(shard), SHARD)}
        (folder / INDEX).write_text(json.dumps(names if index is None else index))
        if cut is not None:
            shard.write_bytes(shard.read_bytes()[:-cut])

    return damage


def pickled(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


DAMAGES = {
    "pickle": (pickled, ["only pickled weights (pytorch_model.bin)", "save_pretrained"]),
    "cut short": (sharded(cut=100), [f"{SHARD}", "damaged"]),
    "no map": (sharded([]), ["weight_map"]),
    "empty map": (sharded({"weight_map": {}}), ["weight_map"]),
    "a number": (sharded({"weight_map": {"a": 3}}), ["a", "3"]),
    "other names": (sharded({"weight_map": {"a": SHARD}}), ["1 tensors", "a"]),
    "lost shard": (sharded({"weight_map": {"a": "gone.safetensors"}}), ["1 of 1 shards"]),
    "config": (with_file("config.json", "{"), ["config"]),
    "tokenizer": (with_file("tokenizer.json", "{"), ["cannot be read as a tokenizer"]),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_checkpoint(name, experts, merge, tmp_path):
    damage, fragments = DAMAGES[name]
    folder = shutil.copytree(experts.language, tmp_path / "odd")
    damage(folder)
    said = assert_one_text(experts.with_models(None, folder), tmp_path, merge, form=False)
    for fragment in (str(folder), *fragments):
        assert fragment in said, said


UP = "model.layers.0.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("make", "fragments"),
    [
        (
            lambda e, to: save_llama(to, 9, vocab_size=72),
            ["different vocabularies", "[64, 16] against [72, 16]", "add tokenizer:"],
        ),
        (lambda e, to: save_llama(to, 9, attention_bias=True), ["lacks 32 tensors", "k_proj.bias"]),
        (lambda e, to: save_llama(to, 9, num_hidden_layers=6), ["different depths", "8 and 6"]),
        (lambda e, to: save_llama(to, 9, intermediate_size=32), ["different shapes", "up_proj"]),
        (lambda e, to: save_llama(to, 9, tie_word_embeddings=True), ["ties its output embedding"]),
        (
            lambda e, to: restored(e.task, to, lambda t: {**t, UP: t[UP].to(torch.int8)}),
            ["stores weights as I8 (quantised)"],
        ),
        (
            lambda e, to: restored(e.task, to, lambda t: {n: t[n] for n in t if n != UP}),
            ["lacks 1 tensors", UP],
        ),
    ],
)
def test_models_that_do_not_fit(make, fragments, experts, merge, tmp_path):
    document = experts.with_models(None, make(experts, tmp_path / "odd"))
    said = assert_one_text(document, tmp_path, merge, form=False)
    for fragment in fragments:
        assert fragment in said, said


def test_integers_that_are_buffers_are_no_quantised_weights(experts, merge, tmp_path):
    buffers = {"model.position_ids": torch.arange(8)[None]}
    odd = restored(experts.language, tmp_path / "odd", lambda held: {**held, **buffers})
    result = merge(experts.with_models(None, odd))
    assert result.exit_code == 0, result.output


def test_rows_of_other_tokens_are_not_averaged(experts, merge, tmp_path, caplog):
    """Ordinary tokens that differ: refused, with two ways out. Added ones: a warning."""
    odd = shutil.copytree(experts.language, tmp_path / "odd")
    tokens = words(VOCAB)
    save_word_tokenizer(odd, [*tokens[:10], tokens[11], tokens[10], *tokens[12:]])
    document = experts.with_models(None, odd)
    said = assert_one_text(document, tmp_path, merge, form=False)
    assert "different tokens at 2 ids" in said
    assert repr(tokens[10]) in said
    assert "tokenizer: {source: union}" in said
    for way in ({"tokenizer": {"source": "union"}}, {"parameters": {"non_layer": "task"}}):
        counts = {"bottom_layers": 2, "top_layers": 1}
        fixed = document | way | {"parameters": {**counts, **way.get("parameters", {})}}
        result = merge(fixed)
        assert result.exit_code == 0, result.output
        shutil.rmtree(result.folder)
    save_word_tokenizer(odd, tokens)
    file = odd / "tokenizer.json"
    file.write_text(file.read_text().replace("<bos>", "<begin>"))
    assert warned(document, tmp_path, merge, caplog) == {"all added or special tokens"}


WARNINGS = {
    "different dtypes",
    "is stored in float32 and dtype is bfloat16",
    "different settings",
    "of the 8 layers come from the language expert",
    "all added or special tokens",
}


def warned(document, tmp_path, merge, caplog):
    """Return which warnings check, merge and mergekit-yaml give: all three the same."""
    path = write_recipe(tmp_path / "warned.yml", document)
    out, said = tmp_path / "warned", []
    for run in (
        lambda: merge(document),
        lambda: CliRunner().invoke(layerswap, ["merge", str(path), str(out)]),
    ):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "layerswap"):
            result = run()
        assert result.exit_code == 0, result.output
        said.append({r.message for r in caplog.records if r.levelno == logging.WARNING})
    found = check_recipe(path, hub=False)
    said.append({finding.message for finding in found if finding.level == "warning"})
    assert said[0] == said[1] == said[2]
    shutil.rmtree(out)
    return {known for known in WARNINGS for text in said[0] if known in text}


def test_what_check_warns_of_merges_warn_of(experts, merge, tmp_path, caplog):
    wide = tune(experts.base, tmp_path / "wide", 3)
    document = experts.with_models(wide)
    assert warned(experts.recipe(), tmp_path, merge, caplog) == set()
    assert warned(document, tmp_path, merge, caplog) == {"different dtypes"}
    narrow = document | {"dtype": "bfloat16"}
    assert warned(narrow, tmp_path, merge, caplog) == {"is stored in float32 and dtype is bfloat16"}
    other = save_llama(tmp_path / "other", 9, rms_norm_eps=1e-3)
    save_word_tokenizer(other, words(VOCAB))
    assert warned(experts.with_models(other), tmp_path, merge, caplog) == {"different settings"}
    for parameters, is_large in (
        ({}, True),
        ({"placement": "layers", "language_layers": "0-6"}, True),
        ({"bottom_layers": 3, "top_layers": 1}, False),
        ({"swap_modules": "mlp"}, False),
    ):
        said = warned(experts.recipe(parameters=parameters), tmp_path, merge, caplog)
        assert said == ({"of the 8 layers come from the language expert"} if is_large else set())


def test_experts_that_cannot_be_weighed(tuned, refused, merge, tmp_path):
    def weighed(parameters=None, **changes):
        models = tuned | changes
        sides = {"task": models["math"], "language": models["swahili"]}
        return recipe(sides, parameters or {"weighting": "magnitude"}, models["base"])

    def broken(name, tensor):
        if name == "model.layers.3.mlp.up_proj.weight":
            tensor[1, 2] = torch.nan
        return tensor

    base = tuned["base"]
    said = assert_one_text(weighed(base=tuned["math"]), tmp_path, merge)
    assert f"base_model {tuned['math']} is also the task expert" in said
    copy = shutil.copytree(base, tmp_path / "copy")
    refused(weighed(swahili=copy), f"{copy} is equal to {base}")
    other = save_llama(tmp_path / "other", 99)
    refused(weighed(base=other), f"{other} is not the base of")
    nan = rewritten(tuned["math"], tmp_path / "nan", broken)
    refused(weighed(math=nan), "model.layers.3.mlp.up_proj.weight", "NaN or infinite")
    still = tune(base, tmp_path / "still", 7, lambda name: 1e-3 * ("layers." not in name))
    refused(weighed({"placement": "delta_share"}, math=still), f"the layers of {still} are equal")


def test_what_cannot_be_reverted(experts, refused, tmp_path):
    for parameters in ({"threshold": 0.1}, {"keep_fraction": 0.5}):
        refused(revert_recipe(experts.task, experts.base, parameters), "is not the base of")
    wider = save_llama(tmp_path / "wider", 0, vocab_size=72)
    parameters = {"threshold": 0.1}
    said = refused(revert_recipe(wider, experts.base, parameters), "different vocabularies")
    assert "tokenizer:" not in said, "delta_revert takes none"
    expert = uneven(experts.base, tmp_path / "expert", 0.05)
    for name in ("model.norm.weight", "model.layers.1.mlp.up_proj.weight"):

        def damaged(tensor_name, tensor, name=name):
            if tensor_name == name:
                tensor.view(-1)[0] = torch.nan
            return tensor

        folder = rewritten(expert, tmp_path / name, damaged)
        for parameters in ({"keep_fraction": 0.5}, {"threshold": 1.0e-3}):
            refused(revert_recipe(folder, experts.base, parameters), name)


def test_a_damaged_adapter(experts, refused, tmp_path):
    adapter = tmp_path / "adapter"
    train_adapter(experts.base, adapter, r=2, target_modules=["q_proj"])
    (adapter / "adapter_model.safetensors").write_bytes(b"not safetensors")
    refused(
        experts.with_models(f"{experts.base}+{adapter}"), "adapter_model.safetensors", "damaged"
    )
