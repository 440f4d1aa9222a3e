"""`layerswap harmonize`: pairs of the real ratios become one architecture, each unchanged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ablations.cli import main
from layerswap_method.checkpoints.compatible import pair_problems
from layerswap_method.checkpoints.headers import read_checkpoint
from layerswap_method.checkpoints.shape import read_shape
from layerswap_method.output import HARMONIZE_FILE
from tests.harmonize.models import logits, random_model

LLAMA3_ROPE = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0}
LLAMA3_ROPE |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3_ROPE |= {"original_max_position_embeddings": 128}

PAIRS: dict[str, dict[str, dict[str, Any]]] = {
    # Llama-2-7B and Mistral-7B-v0.1 over 64: h 4096, MLP 11008 and 14336, 32/32 and 32/8 heads
    "llama2_mistral": {
        "llama2": {
            **{"hidden_size": 64, "intermediate_size": 172, "num_hidden_layers": 4},
            **{"num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 2},
        },
        "mistral": {
            **{"hidden_size": 64, "intermediate_size": 224, "num_hidden_layers": 4},
            **{"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 2},
            **{"sliding_window": 64, "family": "Mistral"},
        },
    },
    # Llama-3.1-8B and Llama-3.2-3B over 64: h 4096 and 3072, MLP 14336 and 8192, 32/8 and 24/8
    "llama31_llama32": {
        "llama31": {
            **{"hidden_size": 64, "intermediate_size": 224, "num_hidden_layers": 8},
            **{"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 2},
            "rope_parameters": LLAMA3_ROPE,
        },
        "llama32": {
            **{"hidden_size": 48, "intermediate_size": 128, "num_hidden_layers": 7},
            **{"num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 2},
            **{"rope_parameters": LLAMA3_ROPE, "tie_word_embeddings": True},
        },
    },
    # the pocket's two sizes over 4: neither number of key-value heads serves both
    "pocket_sizes": {
        "same_size": {
            **{"hidden_size": 24, "intermediate_size": 64, "num_hidden_layers": 8},
            **{"num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 8},
            "tie_word_embeddings": True,
        },
        "other_size": {
            **{"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 6},
            **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8},
            "tie_word_embeddings": True,
        },
    },
    # Qwen3-8B and Qwen3-1.7B over 64: h 4096 and 2048, MLP 12288 and 6144, 32/8 and 16/8 heads
    "qwen3_sizes": {
        "qwen3_8b": {
            **{"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 5},
            **{"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 2},
            **{"family": "Qwen3", "rms_norm_eps": 1e-6},
        },
        "qwen3_2b": {
            **{"hidden_size": 32, "intermediate_size": 96, "num_hidden_layers": 4},
            **{"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 2},
            **{"family": "Qwen3", "rms_norm_eps": 1e-6, "tie_word_embeddings": True},
        },
    },
}


def run(*args: object) -> Result:
    return CliRunner().invoke(main, ["harmonize", *map(str, args)])


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return name -> model, of all pairs."""
    root = tmp_path_factory.mktemp("models")
    named = {name: sizes for pair in PAIRS.values() for name, sizes in pair.items()}
    return {
        name: random_model(root / name, seed, **sizes)
        for seed, (name, sizes) in enumerate(named.items())
    }


@pytest.mark.parametrize("pair", PAIRS)
def test_a_pair_becomes_one_architecture_and_keeps_its_logits(
    pair: str, models: dict[str, Path], tmp_path: Path
) -> None:
    folders = [models[name] for name in PAIRS[pair]]
    out = tmp_path / "out"
    depth = ["--align-depth", "2"] if pair == "llama31_llama32" else []
    result = run(*folders, "--out", out, "--shard-size", "100K", *depth)
    assert result.exit_code == 0, result.output
    assert ("7 become 8 layers; new, and adding nothing: 2\n" in result.output) == bool(depth)
    shapes = []
    for name, folder in zip(PAIRS[pair], folders, strict=True):
        assert len(list((out / name).glob("*.safetensors"))) > 1
        # Llama 3 scales by wavelengths against 128; Mistral's window has 64 tokens.
        for length in (7, 60) if name == "mistral" else (7, 60, 500):
            expected, found = (logits(each, length) for each in (folder, out / name))
            assert (found - expected).abs().max() < 1e-9 < expected.abs().max()
        checkpoint = read_checkpoint(name, out / name)
        shapes.append(read_shape(checkpoint).model_dump(exclude={"positions"}))
        record = json.loads((out / name / HARMONIZE_FILE).read_text())
        assert all(step in result.output for step in record["steps"])
    assert shapes[0] == shapes[1]
    both = [read_checkpoint(name, out / name) for name in PAIRS[pair]]
    assert list(pair_problems(*both)) == []


def test_a_mistral_is_a_llama_within_its_window_only(
    models: dict[str, Path], tmp_path: Path
) -> None:
    result = run(models["mistral"], models["llama2"], "--out", tmp_path / "out")
    assert "the same for sequences of up to 64 tokens (its sliding window)" in result.output
    new = tmp_path / "out" / "mistral"
    config = json.loads((new / "config.json").read_text())
    assert (config["model_type"], config["max_position_embeddings"]) == ("llama", 64)
    assert "sliding_window" not in config
    before, after = (logits(each, 200) for each in (models["mistral"], new))
    assert (before - after)[:, :64].abs().max() < 1e-9 < (before - after).abs().max()


@pytest.mark.parametrize("window", [None, 64])
def test_mistrals_of_one_window_stay_mistrals(window: int | None, tmp_path: Path) -> None:
    for seed, neurons in enumerate((40, 56)):
        sizes = {"intermediate_size": neurons, "sliding_window": window, "num_hidden_layers": 1}
        random_model(tmp_path / f"m{seed}", seed, "Mistral", **sizes)
    assert run(tmp_path / "m0", tmp_path / "m1", "--out", tmp_path / "out").exit_code == 0
    config = json.loads((tmp_path / "out" / "m0" / "config.json").read_text())
    assert (config["model_type"], config["sliding_window"]) == ("mistral", window)
    expected, found = (logits(each, 100) for each in (tmp_path / "m0", tmp_path / "out" / "m0"))
    assert (found - expected).abs().max() < 1e-9
