"""`layerswap compat`: whether models can be merged; and how long a context may be."""

import json
import shutil
from functools import partial

import pytest
import torch
from transformers import AutoConfig

from ablations.models.compat import check_compatibility
from ablations.models.fit import check_context
from layerswap_method.checkpoint import stored
from layerswap_method.checkpoint.tokens import match_tokens, read_vocabulary
from layerswap_method.errors import InputError
from tests.harmonize.models import random_model
from tests.standins.command import layerswap
from tests.standins.fine_tunes import edited, rewritten, train_adapter, tune
from tests.standins.merging import linear_recipe, merge_of
from tests.standins.tokenizers import save_word_tokenizer, words

run = partial(layerswap, "compat")


def compare(*models, base=None):
    return check_compatibility([str(model) for model in models], base and str(base))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Return a folder with a Llama, its fine-tuned child, and a Mistral of other sizes."""
    found = tmp_path_factory.mktemp("models")
    random_model(found / "base", 0)
    tune(found / "base", found / "child", 1, 0.02, None)
    sizes = {"intermediate_size": 64, "num_key_value_heads": 1, "num_hidden_layers": 5}
    random_model(found / "mistral", 2, "Mistral", sliding_window=64, **sizes)
    tokens = words(48)
    save_word_tokenizer(found / "base", tokens)
    save_word_tokenizer(found / "child", tokens)
    save_word_tokenizer(found / "mistral", [*tokens[:40], *tokens[41:], "other"])
    return found


def test_models_of_one_base_match(root):
    found = compare(root / "base", root / "child", base=root / "base")
    assert (found.problems, found.warnings, found.changes[0]) == ((), (), 0)
    assert 0 < found.changes[1] < 0.5
    text = run(root / "base", root / "child").output
    assert text.strip() == "The merge methods take these models as they are."


def test_an_adapter_is_compared_on_its_base(root, tmp_path):
    adapter = train_adapter(
        root / "base", tmp_path / "adapter", scale=0.05, target_modules=["q_proj"]
    )
    model = f"{root / 'base'}+{adapter}"
    found = compare(root / "base", model, base=root / "base")
    assert (found.problems, found.changes[0]) == ((), 0)
    assert 0 < found.changes[1] < 0.5


def test_problems_are_those_of_a_merge(root, tmp_path):
    models = (root / "base", root / "mistral")
    found = compare(*models, base=root / "base")
    with pytest.raises(InputError) as refused:
        merge_of(linear_recipe(models))
    assert refused.value.problems == found.problems
    assert "have different architectures (LlamaForCausalLM, MistralForCausalLM)" in str(found)
    assert found.changes[1] is None or found.changes[1] > 1
    result = run(*models, "--base", root / "base")
    assert result.exit_code == 1
    assert f"base descends from {root / 'base'}: yes (0.000)" in result.output
    assert found.verdict() in result.output


@pytest.mark.parametrize("where", ["config", "weights"])
def test_quantised_models_are_not_called_mergeable(root, tmp_path, where):
    if where == "config":
        model = shutil.copytree(root / "child", tmp_path / "child")
        edited(model, quantization_config={"quant_method": "awq"})
    else:
        model = rewritten(root / "child", tmp_path / "int8", lambda n, t: t.to(torch.int8))
    found = compare(model, shutil.copytree(model, tmp_path / "other"))
    assert "quantised" in str(found)
    assert found.verdict() == "The merge methods refuse these models: 2 problems."


def test_another_number_of_tokens_is_a_problem_with_what_the_recipe_can_do(root, tmp_path):
    found = compare(root / "base", random_model(tmp_path / "wider", 3, vocab_size=52))
    assert "tokenizer: {source: union}" in str(found)
    assert found.problems


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["base"], "give two or more"),
        (["base", "bse"], "did you mean 'base'?"),
        (
            ["base", "child", "--base", "mistral"],
            "descends from it (||delta|| / ||weights|| in a sample: no (",
        ),
    ],
)
def test_bad_input_is_one_error(args, message, root):
    result = run(*(each if each.startswith("--") else root / each for each in args))
    assert (result.exit_code, message in " ".join(result.output.split())) == (2, True)


def test_an_empty_name_is_not_the_current_folder(root, monkeypatch):
    monkeypatch.chdir(root / "base")
    result = run("", root / "child")
    assert (result.exit_code, "a model's path is empty" in result.output) == (2, True)


def test_tokens_are_read_from_either_form(root, tmp_path):
    tokens = read_vocabulary("base", root / "base")
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


def test_headers_and_first_rows_are_read(root, tmp_path, monkeypatch):
    """Of a model of 16 GB no whole matrix is read. The copies are new, so no read is remembered."""
    models = [shutil.copytree(root / name, tmp_path / name) for name in ("base", "child")]
    headers = [stored.read_header(model / "model.safetensors") for model in models]
    first_rows = [
        (name, 0, t.shape[-1] * t.itemsize) for header in headers for name, t in header.items()
    ]
    read_into, read = stored.read_into, []

    def note(opened, tensor, start, into):
        read.append((tensor.name, start, len(into)))
        return read_into(opened, tensor, start, into)

    monkeypatch.setattr(stored, "read_into", note)
    assert compare(*models).problems == ()
    assert sorted(read) == sorted(first_rows)


STRETCHED = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
TRAINED_LONG = STRETCHED | {"rope_type": "yarn", "original_max_position_embeddings": 32}


@pytest.mark.parametrize(
    ("kind", "settings", "most"),
    [
        ("llama", {"max_position_embeddings": 128}, 128),
        ("llama", {"max_position_embeddings": 128, "rope_parameters": STRETCHED}, 512),
        ("llama", {"max_position_embeddings": 128, "rope_parameters": TRAINED_LONG}, 128),
        ("gpt2", {"n_positions": 64}, 64),
    ],
)
def test_a_context_beyond_the_positions_is_refused(kind, settings, most, tmp_path):
    AutoConfig.for_model(kind, **settings).save_pretrained(tmp_path)
    check_context(str(tmp_path), None)
    check_context(str(tmp_path), most)
    with pytest.raises(InputError, match=rf"{most + 1} tokens .* positions for \({most}\)$"):
        check_context(str(tmp_path), most + 1)
