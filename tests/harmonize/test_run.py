"""`layerswap harmonize`: every step, and pairs of the real ratios, keep their logits in float64."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoConfig

from ablations.harmonize.conversion import read_conversion
from ablations.harmonize.run import HARMONIZE_FILE
from ablations.harmonize.shape import read_shape
from ablations.harmonize.steps import deepen, untie, widen_heads, widen_hidden, widen_neurons
from layerswap_method.checkpoint.checkpoint import read_checkpoint
from layerswap_method.checkpoint.compatible import pair_problems
from tests.harmonize.models import distance, random_model, run, save
from tests.standins.tokenizers import save_word_tokenizer, words

ROOT = Path(__file__).parents[2]
FILE = "model.safetensors"


def sizes(hidden, intermediate, layers, heads, head_dim=2, **others):
    return {
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "head_dim": head_dim,
        **others,
    }


TIED = {"tie_word_embeddings": True}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
LLAMA3 = {"rope_parameters": LLAMA3_ROPE}
QWEN3 = {"family": "Qwen3", "rms_norm_eps": 1e-6}
PAIRS = {
    # Llama-2-7B and Mistral-7B-v0.1 over 64: h 4096, MLP 11008 and 14336, 32/32 and 32/8 heads
    "llama2_mistral": {
        "llama2": sizes(64, 172, 4, (32, 32)),
        "mistral": sizes(64, 224, 4, (32, 8), sliding_window=64, family="Mistral"),
    },
    # Llama-3.1-8B and Llama-3.2-3B over 64: h 4096 and 3072, MLP 14336 and 8192, 32/8 and 24/8
    "llama31_llama32": {
        "llama31": sizes(64, 224, 8, (32, 8), **LLAMA3),
        "llama32": sizes(48, 128, 7, (24, 8), **LLAMA3, **TIED),
    },
    # the pocket's two sizes over 4: neither number of key-value heads serves both
    "pocket_sizes": {
        "same_size": sizes(24, 64, 8, (3, 3), 8, **TIED),
        "other_size": sizes(32, 64, 6, (4, 2), 8, **TIED),
    },
    # Qwen3-8B and Qwen3-1.7B over 64: h 4096 and 2048, MLP 12288 and 6144, 32/8 and 16/8 heads
    "qwen3_sizes": {
        "qwen3_8b": sizes(64, 192, 5, (32, 8), **QWEN3),
        "qwen3_2b": sizes(32, 96, 4, (16, 8), **QWEN3, **TIED),
    },
    "mistrals_of_one_window": {
        name: sizes(24, neurons, 1, (4, 2), 8, family="Mistral", sliding_window=64)
        for name, neurons in (("m40", 40), ("m56", 56))
    },
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Return name -> model, of all pairs."""
    root = tmp_path_factory.mktemp("models")
    named = {name: sizes for pair in PAIRS.values() for name, sizes in pair.items()}
    return {
        name: random_model(root / name, seed, **sizes)
        for seed, (name, sizes) in enumerate(named.items())
    }


@pytest.mark.parametrize("pair", PAIRS)
def test_a_pair_becomes_one_architecture_and_keeps_its_logits(pair, models, tmp_path):
    folders = [models[name] for name in PAIRS[pair]]
    code, output = run(*folders, "--out", tmp_path, "--shard-size", "9K")
    assert code == 0, output
    assert ("7 become 8 layers; new, and adding nothing" in output) == (pair == "llama31_llama32")
    shapes = []
    for name in PAIRS[pair]:
        new = tmp_path / name
        assert len(list(new.glob("*.safetensors"))) > 1
        # Llama 3 scales by wavelengths against 128; Mistral's window has 64 tokens.
        for length in (7, 60) if name == "mistral" else (7, 60, 500):
            assert distance(new, models[name], length) < 1e-9
        shapes.append(read_shape(read_checkpoint(name, new)).model_dump(exclude={"positions"}))
        record = json.loads((new / HARMONIZE_FILE).read_text())
        assert all(step in output for step in record["steps"])
    assert shapes[0] == shapes[1]
    family = {"qwen3": "Qwen3", "mistrals": "Mistral"}.get(pair.partition("_")[0], "Llama")
    assert shapes[0]["architecture"] == f"{family}ForCausalLM"
    assert shapes[0]["sliding_window"] == (64 if pair == "mistrals_of_one_window" else None)
    both = [read_checkpoint(name, tmp_path / name) for name in PAIRS[pair]]
    assert list(pair_problems(*both)) == []


def test_a_mistral_is_a_llama_within_its_window_only(models, tmp_path):
    _, output = run(models["mistral"], models["llama2"], "--out", tmp_path)
    assert "the same for sequences of up to 64 tokens (its sliding window)" in output
    config = json.loads((tmp_path / "mistral" / "config.json").read_text())
    assert (config["model_type"], config["max_position_embeddings"]) == ("llama", 64)
    assert "sliding_window" not in config
    assert distance(models["mistral"], tmp_path / "mistral", 64) < 1e-9
    assert distance(models["mistral"], tmp_path / "mistral", 200) > 1e-9


LLAMA2, MISTRAL = ({**each, "num_hidden_layers": 8} for each in PAIRS["llama2_mistral"].values())
LLAMA31, LLAMA32 = PAIRS["llama31_llama32"].values()
MORE, ROPE_32 = {"vocab_size": 49}, {"rope_parameters": {**LLAMA3_ROPE, "factor": 32.0}}
MATH_3B, MATH_LLAMA2 = LLAMA32 | MORE | ROPE_32, LLAMA2 | MORE
RATIOS = {
    # the real models that headers name, over 64
    "Lugha-Llama/Lugha-Llama-8B-wura": LLAMA31,
    "MergeBench/Llama-3.1-8B_math": LLAMA31 | MORE,
    "MergeBench/Llama-3.2-3B_math": MATH_3B,
    "augmxnt/shisa-gamma-7b-v1": MISTRAL,
    "LeoLM/leo-mistral-hessianai-7b": MISTRAL,
    "meta-math/MetaMath-Mistral-7B": MISTRAL | MORE,
    "meta-math/MetaMath-7B-V1.0": MATH_LLAMA2,
}
COMMANDS = [  # files with a command in their headers
    "ablations/studies/experts/llama_bases.yml",
    "ablations/studies/experts/mistral_bases.yml",
    "recipes/different_bases/llama2_mistral_german.yml",
    "recipes/different_bases/llama31_llama32_swahili.yml",
]


@pytest.mark.parametrize("file", COMMANDS)
def test_the_command_in_a_header_makes_the_models_that_are_named_below(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / file).read_text()
    header = text.replace("\n#", " ")
    (harmonize,) = map(shlex.split, re.findall(r"`layerswap harmonize ([^`]+)`", header))
    for seed, name in enumerate(harmonize[: harmonize.index("--out")]):
        folder = random_model(tmp_path / name, seed, **RATIOS[name])
        save_word_tokenizer(folder, words(RATIOS[name].get("vocab_size", 48)))
    done, output = run(*harmonize)
    assert done == 0, output
    assert ("THE FUNCTION CHANGES" in output) == ("llama31" in file or "llama_" in file)
    written = set(re.findall(r"experts/different_bases/[\w./-]+", str(yaml.safe_load(text))))
    assert written
    assert all((tmp_path / name / "config.json").is_file() for name in written)


def test_make_different_bases_gives_the_folders_of_its_experts_file(tmp_path, monkeypatch):
    """Models of one name get that of the folder above them, too."""
    command = ["make", "-n", "different-bases"]
    commands = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (harmonize,) = map(shlex.split, re.findall(r"layerswap harmonize (.+)", commands))
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(harmonize[: harmonize.index("--out")]):
        random_model(tmp_path / name, seed, **PAIRS["pocket_sizes"]["same_size"])
    done, output = run(*harmonize)
    assert done == 0, output
    experts = yaml.safe_load((ROOT / "ablations/studies/experts/pocket_bases.yml").read_text())
    assert all((tmp_path / path / FILE).is_file() for path in experts["experts"].values())


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Return two models of one layer that differ in their neurons."""
    root, sizes = tmp_path_factory.mktemp("plain"), {"num_hidden_layers": 1}
    neurons = enumerate((40, 64))
    return [random_model(root / f"m{i}", i, intermediate_size=n, **sizes) for i, n in neurons]


def test_force_gives_the_first_models_rope_and_says_so(plain, tmp_path):
    rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}
    first = random_model(tmp_path / "first", 1, num_hidden_layers=1, rope_parameters=rope)
    code, output = run(first, plain[0], "--out", tmp_path / "out", "--force")
    assert code == 0, output
    assert output.count("THE FUNCTION CHANGES: RoPE base 10000 and scaling None") == 1
    new = [tmp_path / "out" / folder.name for folder in (first, plain[0])]
    ropes = [AutoConfig.from_pretrained(folder).rope_parameters for folder in new]
    assert ropes[0] == ropes[1]
    assert ropes[1]["rope_theta"] == 5e5
    assert distance(first, new[0]) == 0
    assert distance(plain[0], new[1]) > 1e-3


def test_weights_are_cast_once_and_a_second_run_replaces_the_first(plain, tmp_path):
    """Bits that no step touches are kept."""
    assert run(*plain, "--out", tmp_path)[0] == 0
    old, new = (load_file(folder / "m0" / FILE) for folder in (plain[0].parent, tmp_path))
    up = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(new[up][:40], old[up])
    assert not new[up][40:].any()
    code, output = run(*plain, "--out", tmp_path, "--dtype", "bfloat16", "--shard-size", "9K")
    assert code == 0, output
    files = sorted((tmp_path / "m0").glob("*.safetensors"))
    assert len(files) > 1
    for file in files:
        for name, tensor in load_file(file).items():
            assert torch.equal(tensor, new[name].to(torch.bfloat16))
    assert AutoConfig.from_pretrained(tmp_path / "m0").dtype == torch.bfloat16


GROWN = """
import resource, sys
from ablations.cli import main

peaks, (small, wide, large, *outs) = [], sys.argv[1:]
for one, out in zip((small, large), outs):
    main(["harmonize", one, wide, "--out", out], standalone_mode=False)
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
print("grown", peaks[1] - peaks[0])
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_model(tmp_path):
    sizes = {"hidden_size": 192, "intermediate_size": 1024}
    wide = random_model(tmp_path / "wide", 0, hidden_size=256, num_hidden_layers=1)
    small = random_model(tmp_path / "small", 1, num_hidden_layers=1, **sizes)
    large = random_model(tmp_path / "large", 2, num_hidden_layers=24, **sizes)
    outs = [tmp_path / "out" / name for name in ("first", "second")]
    command = [sys.executable, "-c", GROWN, small, wide, large, *outs]
    text = subprocess.check_output(command, text=True, cwd=ROOT)
    written = (outs[1] / "large" / FILE).stat().st_size
    assert written > 100_000_000
    assert int(text.split("grown")[1]) < written / 4


STEPS = {
    "neurons": lambda model: widen_neurons(model, 56),
    "key-value heads repeated": lambda model: widen_heads(model, 4, 1),
    "groups filled with zero heads": lambda model: widen_heads(model, 2, 3),
    "query heads copied": lambda model: widen_heads(model, 2, 4),
    "both repeated": lambda model: widen_heads(model, 6, 2),
    "zero key-value heads": lambda model: widen_heads(model, 3, 2),
    "zero key-value heads, query heads copied": lambda model: widen_heads(model, 3, 4),
    "residual stream copied": lambda model: widen_hidden(model, 72, 1e-5),
    "residual stream padded": lambda model: widen_hidden(model, 40, 1e-5),
    "copied with another eps": lambda model: widen_hidden(model, 48, 1e-3),
    "padded with another eps": lambda model: widen_hidden(model, 44, 1e-2),
    "another eps": lambda model: widen_hidden(model, 24, 1e-2),
    "deeper": lambda model: deepen(model, 5),
    "untied": untie,
    "all": lambda model: widen_hidden(
        deepen(widen_neurons(widen_heads(untie(model), 2, 4), 48), 4), 40, 1e-3
    ),
}
BIASES = {"attention_bias": True, "mlp_bias": True}
FAMILIES = {
    "untied": {},
    "tied and biased": {"tie_word_embeddings": True, **BIASES},
    "Qwen2": {"family": "Qwen2"},
    "normed queries and keys": {"family": "Qwen3", "attention_bias": True},
}


@pytest.fixture(scope="module", params=FAMILIES)
def original(request, tmp_path_factory):
    return random_model(tmp_path_factory.mktemp("original"), **FAMILIES[request.param])


def conversion(folder):
    return read_conversion(read_checkpoint("model", folder))


@pytest.mark.parametrize("step", STEPS)
def test_a_step_keeps_the_logits(step, original, tmp_path):
    before = conversion(original)
    after = STEPS[step](before)
    assert (after is before) == (step == "untied" and not before.shape.tied)
    assert distance(save(after, original, tmp_path / "out"), original) < 1e-9


def test_a_wrong_step_is_seen(original, tmp_path):
    """The comparison can fail: for an eps that is only renamed."""
    wrong = conversion(original).after("", sizes={"eps": 1e-3})
    assert distance(save(wrong, original, tmp_path / "out"), original) > 1e-6
