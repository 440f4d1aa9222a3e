"""What `layerswap harmonize` refuses: one error with the field and both values, and no output."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, BertConfig, BertForMaskedLM

from ablations.cli import main
from tests.harmonize.models import logits, random_model
from tests.standins.zoo import make_model

FILE = "model.safetensors"


def run(*args: object) -> Result:
    return CliRunner().invoke(main, ["harmonize", *map(str, args)])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the model `plain`."""
    found: Path = tmp_path_factory.mktemp("models")
    random_model(found / "plain", num_hidden_layers=1)
    return found


def other(root: Path, **sizes: Any) -> Path:
    """Return another model of one layer."""
    return random_model(root / f"other{len(list(root.iterdir()))}", 1, num_hidden_layers=1, **sizes)


def with_config(root: Path, **changes: Any) -> Path:
    folder = other(root)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


def with_weights(root: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    """Return a model of two layers, of other sizes than `plain`, with some tensors changed."""
    folder = random_model(root / f"other{len(list(root.iterdir()))}", 1, num_hidden_layers=2)
    tensors = load_file(folder / FILE)
    change(tensors)
    save_file(tensors, folder / FILE, {"format": "pt"})
    return folder


UP = "model.layers.1.mlp.up_proj.weight"

REFUSED: dict[str, tuple[Callable[[Path], Path], str]] = {
    "head size": (lambda root: other(root, head_dim=12), r"head size: \S+plain 8; \S+other\d+ 12"),
    "activation": (lambda root: other(root, hidden_act="gelu"), r"activation: .* silu; .* gelu"),
    "biases": (lambda root: other(root, attention_bias=True), "biases: .* none; .* attention"),
    "RoPE": (
        lambda root: other(root, rope_parameters={"rope_type": "default", "rope_theta": 5e5}),
        r"RoPE base: .* 10000.0; .* 500000.0: layerswap harmonize --force",
    ),
    "scaling": (
        lambda root: other(
            root, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
        ),
        r"RoPE scaling: .* None; .*'factor': 2.0.*--force",
    ),
    "quantised": (
        lambda root: with_config(root, quantization_config={"quant_method": "gptq"}),
        r"is quantised \(gptq\)",
    ),
    "experts": (
        lambda root: make_model("mixtral", root / "moe", 1),
        r"experts \(MoE\): .* None; .* 3",
    ),
    "norm": (lambda root: make_model("gpt2", root / "gpt2", 1), "norm: .* RMSNorm; .* LayerNorm"),
    "another family": (
        lambda root: make_model("gemma2", root / "gemma2", 1),
        "architecture: .*LlamaForCausalLM; .*Gemma2ForCausalLM: only LlamaForCausalLM, Mistral.* "
        "and Qwen3ForCausalLM can be harmonised",
    ),
    "Qwen2": (
        lambda root: other(root, family="Qwen2"),
        "architecture: .*Llama.*; .*Qwen2ForCausalLM: nothing .*biases: .* none; .* attention: no",
    ),
    "Qwen3": (
        lambda root: other(root, family="Qwen3"),
        "norms of queries and keys: .* none; .* of each head: nothing reconciles it",
    ),
    "no weights": (lambda root: root, "no readable config"),
    "a config of other sizes": (
        lambda root: with_config(root, intermediate_size=41),
        r"gate_proj.weight is \[41, 24\] by config.json, and the weights hold \[40, 24\]",
    ),
    "a layer that lacks a tensor": (
        lambda root: with_weights(root, lambda held: held.pop(UP)),
        rf"other\d+: the weights lack {re.escape(UP)}; download or copy it again",
    ),
    "a layer of another shape": (
        lambda root: with_weights(root, lambda held: held.update({UP: torch.zeros(30, 24)})),
        rf"other\d+: {re.escape(UP)} is \[40, 24\] by config.json, and the weights hold \[30, 24\]",
    ),
    "a tensor that no known model has": (
        lambda root: with_weights(root, lambda held: held.update({"model.x": torch.zeros(2)})),
        r"other\d+: model.x: no tensor of Llama, Mistral, Qwen2 or Qwen3 has this name",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_reconciled_is_named(case: str, root: Path, tmp_path: Path) -> None:
    make, message = REFUSED[case]
    out = tmp_path / "out"
    result = run(root / "plain", make(root), "--out", out)
    assert (result.exit_code, out.exists()) == (2, False), result.output
    assert re.search(message, " ".join(result.output.split())), result.output


@pytest.mark.parametrize("family", ["mixtral", "bert"])
def test_an_unknown_architecture_stands_for_its_sizes(
    family: str, root: Path, tmp_path: Path
) -> None:
    """One line says what can be harmonised, not one a size."""
    if family == "bert":
        sizes = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
        model = BertForMaskedLM(BertConfig(vocab_size=48, num_hidden_layers=2, **sizes))
        model.save_pretrained(tmp_path / family)
    else:
        make_model(family, tmp_path / family, 1)
    result = run(root / "plain", tmp_path / family, "--out", tmp_path / "out")
    assert (result.exit_code, (tmp_path / "out").exists()) == (2, False)
    assert result.output.count("can be harmonised") == 1
    assert "hidden size" not in result.output
    wanted = "kind: " if family == "bert" else "experts (MoE): "
    assert f"{wanted}{root / 'plain'}" in result.output


def test_encoder_and_decoder_are_not_reconciled(root: Path, tmp_path: Path) -> None:
    folder = with_config(root, architectures=["LlamaForSequenceClassification"])
    result = run(root / "plain", folder, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "kind: " in result.output
    assert "decoder; " in result.output


def test_force_gives_the_first_models_rope_and_says_so(root: Path, tmp_path: Path) -> None:
    rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}
    folder = other(root, rope_parameters=rope)
    result = run(folder, root / "plain", "--out", tmp_path, "--force")
    assert result.exit_code == 0, result.output
    assert result.output.count("THE FUNCTION CHANGES: RoPE base 10000 and scaling None") == 1
    found = [AutoConfig.from_pretrained(tmp_path / each.name) for each in (folder, root / "plain")]
    assert found[0].rope_parameters == found[1].rope_parameters
    assert found[1].rope_parameters["rope_theta"] == 5e5
    unchanged, changed = (
        (logits(each) - logits(tmp_path / each.name)).abs().max()
        for each in (folder, root / "plain")
    )
    assert unchanged == 0
    assert changed > 1e-3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--align-depth", "1"], "have the same number of layers; leave it out"),
        (["--align-depth", "x"], "'x' is neither a layer nor a range"),
        (["--shard-size", "0"], "is not a size"),
        (["--dtype", "int8"], "is not one of"),
    ],
)
def test_options_that_do_not_fit(
    options: list[str], message: str, root: Path, tmp_path: Path
) -> None:
    result = run(root / "plain", other(root), "--out", tmp_path / "out", *options)
    assert (result.exit_code, (tmp_path / "out").exists()) == (2, False)
    assert message in " ".join(result.output.split())


def test_models_and_folders_that_do_not_fit(root: Path, tmp_path: Path) -> None:
    plain = root / "plain"
    for models, message in [
        ([plain], "give two or more"),
        ([plain, plain], "two models would be written to the same folder"),
    ]:
        result = run(*models, "--out", tmp_path / "out")
        assert result.exit_code == 2
        assert message in result.output
    inside = run(plain, other(root), "--out", plain / "new")
    assert inside.exit_code == 2
    assert "is inside" in inside.output
    stranger = Path(tmp_path / "out" / "plain")
    stranger.mkdir(parents=True)
    save_file({"weight": torch.zeros(1)}, stranger / FILE)
    taken = run(plain, other(root), "--out", tmp_path / "out")
    assert taken.exit_code == 2
    assert "the folder has weights that no merge has written" in taken.output
    assert [each.name for each in (tmp_path / "out").iterdir()] == ["plain"]


def test_weights_are_cast_once_and_written_over(root: Path, tmp_path: Path) -> None:
    """A second run replaces the first one's files; bits that no step touches are kept."""
    pair = (root / "plain", other(root, intermediate_size=64))
    assert run(*pair, "--out", tmp_path).exit_code == 0
    old, new = (load_file(folder / "plain" / FILE) for folder in (root, tmp_path))
    assert torch.equal(
        new["model.layers.0.mlp.up_proj.weight"][:40], old["model.layers.0.mlp.up_proj.weight"]
    )
    assert not new["model.layers.0.mlp.up_proj.weight"][40:].any()
    assert run(*pair, "--out", tmp_path, "--dtype", "bfloat16", "--shard-size", "9K").exit_code == 0
    files = sorted((tmp_path / "plain").glob("*.safetensors"))
    assert len(files) > 1
    for file in files:
        for name, tensor in load_file(file).items():
            assert torch.equal(tensor, new[name].to(torch.bfloat16))
    assert AutoConfig.from_pretrained(tmp_path / "plain").dtype == torch.bfloat16
