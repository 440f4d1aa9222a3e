"""What `layerswap harmonize` refuses: one error with the field and both values, and no output."""

import re

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.harmonize.models import random_model, run
from tests.standins.fine_tunes import edited
from tests.standins.model_families import make_model

FILE = "model.safetensors"
UP, BIAS = "model.layers.0.mlp.up_proj.weight", "model.norm.bias"
GPTQ = {"quant_method": "gptq"}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return random_model(tmp_path_factory.mktemp("models") / "plain", num_hidden_layers=1)


def other(folder, **sizes):
    return random_model(folder, 1, **{"num_hidden_layers": 1, **sizes})


def with_config(folder, **changes):
    return edited(other(folder), **changes)


def with_weights(folder, **changes):
    tensors = load_file(other(folder) / FILE)
    tensors = {name: value for name, value in {**tensors, **changes}.items() if value is not None}
    save_file(tensors, folder / FILE, {"format": "pt"})
    return folder


def rope(folder, kind, theta, **more):
    return other(folder, rope_parameters={"rope_type": kind, "rope_theta": theta, **more})


REFUSED = [
    (lambda to: other(to, head_dim=12), r"head size: .+plain 8; .+other 12"),
    (lambda to: other(to, hidden_act="gelu"), "activation: .* silu; .* gelu"),
    (lambda to: other(to, attention_bias=True), "biases: .* none; .* attention"),
    (lambda to: rope(to, "default", 5e5), r"RoPE base: .*10000.0; .*500000.0: .*--force"),
    (lambda to: rope(to, "linear", 1e4, factor=2.0), "None; .*'factor': 2.0.*--force"),
    (lambda to: with_config(to, quantization_config=GPTQ), r"is quantised \(gptq\)"),
    (lambda to: make_model("mixtral", to, 1), r"experts \(MoE\): .* None; .* 3"),
    (lambda to: make_model("gpt2", to, 1), "Llama.*; .*GPT2LMHeadModel: only Llama"),
    (lambda to: make_model("gemma2", to, 1), "Llama.*; .*Gemma2ForCausalLM: only Llama"),
    (lambda to: other(to, family="Qwen2"), "Llama.*; .*Qwen2ForCausalLM.*biases: .* none"),
    (lambda to: other(to, family="Qwen3"), "norms of queries and keys: .* none; "),
    (lambda to: with_config(to, architectures=["LlamaModel"]), "Llama.*; .*LlamaModel: only Llama"),
    (lambda to: to.mkdir() or to, "other: no config.json in it, so it is not a model"),
    (
        lambda to: with_config(to, intermediate_size=41),
        r"gate_proj.weight is \[41, 24\] by config.json, and the weights hold \[40, 24\]",
    ),
    (lambda to: with_weights(to, **{UP: None}), f"lack {UP}"),
    (lambda to: with_weights(to, **{BIAS: torch.zeros(24)}), f"{BIAS}: no tensor of"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_be_reconciled_is_named(make, message, plain, tmp_path):
    code, output = run(plain, make(tmp_path / "other"), "--out", tmp_path / "out")
    assert (code, (tmp_path / "out").exists()) == (2, False), output
    assert re.search(message, output), output
    # An unknown architecture is one line, not one a size.
    assert output.count("can be harmonised") <= 1
    assert "hidden size" not in output


def test_options_and_folders_that_do_not_fit(plain, tmp_path):
    folder, out = other(tmp_path / "other"), tmp_path / "out"
    large = with_weights(tmp_path / "large", **{UP: torch.full((40, 24), 1e6)})
    for models, to, options, message in [
        ([plain, folder], out, ["--shard-size", "0"], "is not a size"),
        ([plain, folder], out, ["--dtype", "int8"], "is not one of"),
        ([plain], out, [], "give two or more"),
        ([plain, plain], out, [], "two models would be written to the same folder"),
        ([plain, folder], plain / "new", [], "is inside"),
        ([large, folder], out, ["--dtype", "float16"], f"large: {UP} is not finite as float16"),
    ]:
        code, output = run(*models, "--out", to, *options)
        assert (code, to.exists()) == (2, False)
        assert message in output
    (out / "plain").mkdir(parents=True)
    save_file({"weight": torch.zeros(1)}, out / "plain" / FILE)
    code, output = run(plain, folder, "--out", out)
    assert (code, "the folder has files that no earlier run has listed" in output) == (2, True)
    assert [path.name for path in out.iterdir()] == ["plain"]
