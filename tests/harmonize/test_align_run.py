"""`layerswap harmonize --align procrustes`: different models end in one basis, each unchanged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file, save_file

from ablations.cli import main
from layerswap_method.checkpoints.compatible import pair_problems
from layerswap_method.checkpoints.headers import read_checkpoint
from layerswap_method.errors import InputError
from layerswap_method.harmonize.pairs import pair_tokens
from layerswap_method.output import HARMONIZE_FILE
from tests.harmonize.models import logits, random_model
from tests.harmonize.test_coordinates import opened
from tests.harmonize.test_run import PAIRS

SMALL = {"hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1}
SMALL |= {"num_hidden_layers": 2, "intermediate_size": 24, "tie_word_embeddings": True}


def run(*args: object) -> Result:
    return CliRunner().invoke(main, ["harmonize", *map(str, args)])


def tokenizer(folder: Path, tokens: dict[str, int]) -> None:
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": tokens}}))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a model, and one of half its width, fewer layers, heads and neurons."""
    root = tmp_path_factory.mktemp("pair")
    return random_model(root / "large"), random_model(root / "small", seed=1, **SMALL)


@pytest.mark.parametrize("neurons", ["activations", "weights"])
def test_models_of_two_sizes_end_in_one_basis(
    pair: tuple[Path, Path], tmp_path: Path, neurons: str
) -> None:
    naive = run(*pair, "--out", tmp_path / "naive")
    aligned = run(*pair, "--out", tmp_path / "out", "--align", "procrustes", "--neurons", neurons)
    assert (naive.exit_code, aligned.exit_code) == (0, 0), aligned.output
    assert "a rotation fitted on 48 shared tokens" in aligned.output
    for origin in pair:
        folder = tmp_path / "out" / origin.name
        assert (logits(folder) - logits(origin)).abs().max() < 1e-9
        record = json.loads((folder / HARMONIZE_FILE).read_text())
        assert record["alignment"]["align"] == "procrustes"
        assert not json.loads((folder / "config.json").read_text())["tie_word_embeddings"]
    assert record["alignment"]["reference"] == str(pair[0])
    cosines = record["alignment"]["mean_cosines"]
    assert cosines["embed_tokens"]["rotated"] > cosines["embed_tokens"]["harmonized"] + 0.1
    assert f"{cosines['up_proj']['neurons']:.3f}" in aligned.output


@pytest.mark.parametrize("pair", PAIRS)
def test_the_whole_chain_at_the_ratios_of_real_pairs(pair: str, tmp_path: Path) -> None:
    origins = [
        random_model(tmp_path / name, seed, **sizes)
        for seed, (name, sizes) in enumerate(PAIRS[pair].items())
    ]
    result = run(*origins, "--out", tmp_path / "out", "--align", "procrustes")
    assert result.exit_code == 0, result.output
    for origin in origins:
        found, expected = (logits(each) for each in (tmp_path / "out" / origin.name, origin))
        assert (found - expected).abs().max() < 1e-9


def test_untied_models_fit_to_aligned_ones(tmp_path: Path) -> None:
    tied = [random_model(tmp_path / name, tie_word_embeddings=True) for name in ("a", "b")]
    assert run(*tied, "--out", tmp_path / "naive", "--untie").exit_code == 0
    assert run(*tied, "--out", tmp_path / "aligned", "--align", "procrustes").exit_code == 0
    naive, aligned = (read_checkpoint(each, tmp_path / each / "b") for each in ("naive", "aligned"))
    assert list(pair_problems(naive, aligned)) == []
    assert (logits(tmp_path / "naive" / "b") - logits(tied[1])).abs().max() < 1e-9


def test_options_of_align_without_it(pair: tuple[Path, Path], tmp_path: Path) -> None:
    result = run(*pair, "--out", tmp_path / "out", "--neurons", "weights")
    assert result.exit_code == 2
    assert "--neurons and --probe are for --align procrustes" in result.output
    assert not (tmp_path / "out").exists()


def test_tokens_are_paired_by_their_text(pair: tuple[Path, Path], tmp_path: Path) -> None:
    models = (opened(pair[0]), opened(pair[1]))
    byte_level = {"Ġa": 5, "b": 6, "only": 7, "beyond": 48}
    pieces = {"▁a": 1, "b": 2, "other": 3, "beyond": 4}
    found = pair_tokens(models, (byte_level, pieces))
    assert [ids.tolist() for ids in found.shared] == [[5, 6], [1, 2]]
    assert found.probe[0].shape == (16, 64)
    assert (found.probe[0] == found.probe[1] + 4).all()
    text = pair_tokens(models, (byte_level, pieces), "a b only " * 40)
    assert text.probe[1].tolist() == [[1, 2] * 32]


def test_vocabularies_of_other_sizes_are_compared_by_token(tmp_path: Path) -> None:
    """A twin with its rows in another order and one row more is the same, token for token."""
    base = random_model(tmp_path / "base", num_hidden_layers=1)
    twin = random_model(tmp_path / "twin", num_hidden_layers=1, vocab_size=49)
    tensors = load_file(base / "model.safetensors")
    order = torch.randperm(48, generator=torch.Generator().manual_seed(0))
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = torch.cat([tensors[name][order], torch.ones(1, 24, dtype=torch.float64)])
    save_file(tensors, twin / "model.safetensors", {"format": "pt"})
    tokenizer(base, {f"w{row}": row for row in range(48)})
    tokenizer(twin, {**{f"w{old}": new for new, old in enumerate(order.tolist())}, "own": 48})
    result = run(base, twin, "--out", tmp_path / "out", "--align", "procrustes")
    assert result.exit_code == 0, result.output
    assert "a rotation fitted on 48 shared tokens" in result.output
    record = json.loads((tmp_path / "out" / "twin" / HARMONIZE_FILE).read_text())
    for kind in ("embed_tokens", "lm_head", "up_proj", "hidden states"):
        assert record["alignment"]["mean_cosines"][kind]["rotated"] == pytest.approx(1)
    assert (logits(tmp_path / "out" / "twin") - logits(twin)).abs().max() < 1e-9


@pytest.mark.parametrize(
    ("tokens", "text", "said"),
    [
        (({"a": 1}, {"b": 1}), None, "large and small share no tokens"),
        (({"a": 1}, None), None, "small has no tokenizer.json"),
        ((None, None), "no such words", "--probe: only 0 words of the text"),
    ],
)
def test_pairs_that_are_of_no_use(
    pair: tuple[Path, Path],
    tokens: tuple[dict[str, int] | None, dict[str, int] | None],
    text: str | None,
    said: str,
) -> None:
    with pytest.raises(InputError, match=said):
        pair_tokens((opened(pair[0]), opened(pair[1])), tokens, text)


def test_a_probe_that_is_no_text(pair: tuple[Path, Path], tmp_path: Path) -> None:
    result = run(*pair, "--out", tmp_path, "--align", "procrustes", "--probe", tmp_path / "none")
    assert result.exit_code == 2
    assert "--probe" in result.output
    assert "cannot be read as text" in result.output


@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "model.layers.1.mlp.up_proj.weight"])
def test_weights_that_are_not_finite(pair: tuple[Path, Path], tmp_path: Path, name: str) -> None:
    broken = random_model(tmp_path / "broken", seed=1, **SMALL)
    tensors = load_file(broken / "model.safetensors")
    tensors[name][3, 5] = float("nan")
    save_file(tensors, broken / "model.safetensors", {"format": "pt"})
    result = run(pair[0], broken, "--out", tmp_path / "out", "--align", "procrustes")
    assert (result.exit_code, (tmp_path / "out").exists()) == (2, False)
    assert "broken: model." in result.output
    assert "_proj.weight has" in result.output or "embed_tokens.weight has" in result.output
    assert "values that are not finite" in " ".join(result.output.split())
