"""`layerswap compat`: what differs, what can be done, and whether models descend from a base."""

import json
import shutil

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from ablations.cli import main
from layerswap_method.checkpoint.compatible import match_tokens, read_vocabulary
from layerswap_method.errors import InputError
from tests.harmonize.models import random_model
from tests.standins.tokenizers import save_word_tokenizer, words
from tests.standins.tuned import tune
from tests.standins.zoo import make_model


def run(*args):
    return CliRunner().invoke(main, ["compat", *map(str, args)])


def report(*args):
    result = run(*args, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    return found | {"by_field": {row["field"]: row for row in found["fields"]}}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Return a folder with a Llama, its fine-tuned child, and a Mistral of other sizes."""
    found = tmp_path_factory.mktemp("models")
    random_model(found / "base", 0)
    tune(found / "base", found / "child", 1, 0.02, None)
    random_model(
        found / "mistral",
        2,
        "Mistral",
        intermediate_size=64,
        num_key_value_heads=1,
        sliding_window=64,
        num_hidden_layers=5,
    )
    tokens = words(48)
    save_word_tokenizer(found / "base", tokens)
    save_word_tokenizer(found / "child", tokens)
    moved = [*tokens[:40], *tokens[41:], "other"]
    save_word_tokenizer(found / "mistral", moved)
    return found


def test_models_of_one_base_match(root):
    found = report(root / "base", root / "child", "--base", root / "base")
    assert found["mergeable"]
    assert [row["field"] for row in found["fields"] if not row["same"]] == []
    assert found["base_cosines"][0] == pytest.approx(1)
    assert 0.9 < found["base_cosines"][1] < 1
    text = run(root / "base", root / "child").output
    assert "The merge methods take these models as they are." in text


def test_every_difference_has_what_can_be_done(root):
    found = report(root / "base", root / "mistral", "--base", root / "base")
    differing = {
        row["field"]: (row["values"], row["remedy"]) for row in found["fields"] if not row["same"]
    }
    assert differing == {
        "architecture": (["LlamaForCausalLM", "MistralForCausalLM"], "harmonize"),
        "layers": ([3, 5], "harmonize"),
        "key-value heads": ([2, 1], "harmonize"),
        "MLP neurons": ([40, 64], "harmonize"),
        "sliding window": ([None, 64], "harmonize"),
        "tokens": (
            ["48 tokens", "48 tokens: 40 at the same id, 7 at another, 1 not in the first"],
            "recipe",
        ),
    }
    assert not found["mergeable"]
    assert "layerswap compat" in found["problems"][0]
    assert found["base_cosines"][1] is None or abs(found["base_cosines"][1]) < 0.1
    wanted = f"layerswap harmonize {root / 'base'} {root / 'mistral'} --out DIR"
    assert found["verdict"] == f"Run: {wanted}"
    table = run(root / "base", root / "mistral", "--base", root / "base").output
    lines = {line.split("  ")[0]: line for line in table.splitlines()}
    assert "layerswap harmonize: layers that add nothing" in lines["layers"]
    assert lines["layers"].split()[1:3] == ["3", "5"]
    assert "yes (1.000)" in lines[f"descends from {root / 'base'}"]
    assert wanted in table


def test_the_command_that_compat_names_makes_the_pair_mergeable(root, tmp_path):
    words_ = report(root / "base", root / "mistral")["verdict"].removeprefix("Run: layerswap ")
    given = [str(tmp_path) if word == "DIR" else word for word in words_.split()]
    result = CliRunner().invoke(main, given)
    assert result.exit_code == 0, result.output
    found = report(tmp_path / "base", tmp_path / "mistral")
    assert found["mergeable"]
    left = {row["field"] for row in found["fields"] if not row["same"]}
    assert left == {"longest sequence", "tokens"}


def test_what_nothing_reconciles_is_said(root, tmp_path):
    gpt2 = make_model("gpt2", tmp_path / "gpt2", 1)
    found = report(root / "base", gpt2)
    assert found["by_field"]["norm"]["values"] == ["RMSNorm", "LayerNorm"]
    assert found["by_field"]["architecture"]["remedy"] == "impossible"
    assert found["verdict"].startswith("These models cannot be merged: nothing reconciles archit")


def test_two_quantised_models_are_not_called_mergeable(root, tmp_path):
    for name in ("base", "child"):
        shutil.copytree(root / name, tmp_path / name)
        file = tmp_path / name / "config.json"
        config = json.loads(file.read_text()) | {"quantization_config": {"quant_method": "awq"}}
        file.write_text(json.dumps(config))
    found = report(tmp_path / "base", tmp_path / "child")
    assert not found["mergeable"]
    assert found["by_field"]["quantised"]["remedy"] == "impossible"
    assert found["verdict"] == "These models cannot be merged: nothing reconciles quantised."


def test_scaling_of_many_parts_takes_a_line_a_part(root, tmp_path):
    rope = {"rope_type": "llama3", "rope_theta": 5e5, "low_freq_factor": 1.0}
    rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 128}
    for name, factor in (("eight", 8.0), ("thirty-two", 32.0)):
        random_model(tmp_path / name, rope_parameters=rope | {"factor": factor})
    table = run(tmp_path / "eight", tmp_path / "thirty-two").output
    lines = {line.split("  ")[0]: line.split() for line in table.splitlines()}
    force = ["layerswap", "harmonize", "--force:", "changes", "the", "function"]
    assert lines["RoPE scaling: factor"][3:] == ["8", "32", *force]
    assert lines["RoPE scaling: low_freq_factor"][3:] == ["1", "1", "-"]
    assert "RoPE scaling" not in lines


def test_vocabularies_alone_are_left_to_the_recipe(root, tmp_path):
    random_model(tmp_path / "wider", 3, vocab_size=52)
    found = report(root / "base", tmp_path / "wider")
    assert not found["mergeable"]
    assert found["verdict"] == (
        "Write into the recipe what the last column says of vocabulary rows, tokens."
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["base"], "give two or more"),
        (["base", "bse"], "did you mean 'base'?"),
        (["base", "child", "--base", "mistral"], "none of "),
    ],
)
def test_bad_input_is_one_error(args, message, root):
    result = run(*(each if each.startswith("--") else root / each for each in args))
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert "Traceback" not in result.output


def test_an_unrelated_base_of_the_same_shapes(root, tmp_path):
    stranger = random_model(tmp_path / "stranger", 7)
    result = run(root / "base", root / "child", "--base", stranger)
    assert result.exit_code == 2
    assert "descends from it (cosine of the weights: no (" in result.output


def test_tokens_are_read_from_either_form(root, tmp_path):
    tokens = read_vocabulary("base", root / "base")
    assert tokens is not None
    assert (len(tokens.tokens), tokens.tokens["<bos>"]) == (48, 1)
    assert match_tokens(tokens.tokens, tokens.tokens) == (48, 0, 0)
    document = {"model": {"type": "Unigram", "vocab": [["<pad>", 0.0], ["a", -1.5]]}}
    document |= {"added_tokens": [{"id": 2, "content": "<x>"}]}
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(document))
    found = read_vocabulary("model", tmp_path)
    assert (found.tokens, found.added) == ({"<pad>": 0, "a": 1, "<x>": 2}, {"<x>"})
    file.write_text("{}")
    with pytest.raises(InputError, match=r"model: .*tokenizer.json cannot be read as a tokenizer"):
        read_vocabulary("model", tmp_path)
    file.unlink()
    assert read_vocabulary("model", tmp_path) is None


def test_quantised_weights_that_no_config_tells_of(root, tmp_path):
    shutil.copytree(root / "child", tmp_path / "int8")
    file = tmp_path / "int8" / "model.safetensors"
    tensors = load_file(file)
    save_file({n: t.to(torch.int8) if t.ndim > 1 else t for n, t in tensors.items()}, file)
    found = report(root / "base", tmp_path / "int8")
    assert found["by_field"]["quantised"]["values"] == [None, "I8"]
    assert found["verdict"] == "These models cannot be merged: nothing reconciles quantised."


def test_only_headers_are_read(root, tmp_path, monkeypatch):
    """Without --base, weights of which every value is cut away are as good as whole ones."""
    import layerswap_method.checkpoint.stored as spans

    def fail(*_):
        raise AssertionError("weights were read")

    monkeypatch.setattr(spans, "read_rows", fail)
    monkeypatch.setattr(spans, "read_into", fail)
    shutil.copytree(root / "child", tmp_path / "copy")
    assert report(root / "base", tmp_path / "copy")["mergeable"]
