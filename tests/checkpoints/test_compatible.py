"""One judgement of a pair, for mergekit, streams and deltas alike, in no method's words."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from layerswap_method.checkpoints.compatible import pair_problems
from layerswap_method.checkpoints.headers import Checkpoint, read_checkpoint
from layerswap_method.checkpoints.model_files import StreamInput
from layerswap_method.deltas.open_pair import open_pair
from layerswap_method.errors import InputError
from layerswap_method.stream.weight_stream import read_models
from tests.checkpoints.test_config import edited
from tests.delta.experts import fine_tuned
from tests.standins.merging import merge
from tests.standins.oracle import assert_same, stored
from tests.standins.streams import stream_of
from tests.standins.zoo import make_model

HEAD = "lm_head.weight"
FILE = "model.safetensors"


def with_head(folder: Path, to: Path) -> Path:
    """Copy a checkpoint that ties its embeddings, and store the output embedding as well."""
    shutil.copytree(folder, to)
    tensors = load_file(to / FILE)
    tensors[HEAD] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, to / FILE, {"format": "pt"})
    return to


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three models of one base that tie their embeddings, each with and without a stored head."""
    root = tmp_path_factory.mktemp("tied")
    found = {"base": make_model("llama_tied", root / "base", 1)}
    for name, seed in (("task", 2), ("language", 3)):
        found[name] = fine_tuned(found["base"], root / name, seed, scale=0.02)
    for name, folder in tuple(found.items()):
        found[f"{name} twice"] = with_head(folder, root / f"{name}_twice")
    return found


@pytest.mark.parametrize(
    ("task", "language", "base"),
    [("", "", " twice"), ("", " twice", ""), (" twice", "", " twice")],
    ids=lambda each: each or " once",
)
def test_a_tied_head_stored_once_or_twice_streams_as_it_merges(
    task: str, language: str, base: str, tied: dict[str, Path], tmp_path: Path
) -> None:
    folders = [str(tied[f"task{task}"]), str(tied[f"language{language}"])]
    donor = str(tied[f"base{base}"])
    roles = zip(folders, ("task", "language"), strict=True)
    documents: dict[str, dict[str, Any]] = {
        "layer_swap": {
            "models": [{"model": m, "parameters": {"role": role}} for m, role in roles],
            "parameters": {"bottom_layers": 2, "top_layers": 1},
            "base_model": donor,
        },
        "linear": {
            "models": [{"model": m, "parameters": {"weight": 1.0}} for m in folders],
            "base_model": folders[0],
        },
        "delta_revert": {
            "models": [{"model": folders[0]}],
            "parameters": {"keep_fraction": 0.3},
            "base_model": donor,
        },
    }
    documents["layer_swap, one side"] = {
        **documents["layer_swap"],
        "parameters": {"bottom_layers": 2, "top_layers": 1, "non_layer": "task"},
    }
    documents["delta_revert, one side"] = {
        **documents["delta_revert"],
        "parameters": {"bottom_layers": 1},
    }
    for name, document in documents.items():
        recipe = {"merge_method": name.split(",")[0], **document}
        merged = stored(merge(recipe, tmp_path / name))
        assert_same(dict(stream_of(recipe).tensors()), merged)


def test_a_head_of_its_own_under_a_config_that_ties_it(
    tied: dict[str, Path], tmp_path: Path
) -> None:
    """transformers 5 would not tie it, and other programs would."""
    odd = Path(shutil.copytree(tied["task twice"], tmp_path / "odd"))
    tensors = load_file(odd / FILE)
    tensors[HEAD][-1, -1] += 1
    save_file(tensors, odd / FILE, {"format": "pt"})
    base = StreamInput("base", tied["base"])
    document = {
        "merge_method": "delta_revert",
        "models": [{"model": str(odd)}],
        "parameters": {"bottom_layers": 1},
        "base_model": str(tied["base"]),
    }
    for way in (
        lambda: read_models([base, StreamInput("odd", odd)]),
        lambda: open_pair(StreamInput("odd", odd), base),
        lambda: merge(document, tmp_path / "out"),
    ):
        with pytest.raises(InputError, match=r"but its lm_head\.weight is not its model"):
            way()
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model("llama", tmp_path_factory.mktemp("plain") / "base", 1)


def other_vocabulary(folder: Path) -> None:
    make_model("llama", folder, 1, vocab_size=100)


def other_shape(folder: Path) -> None:
    make_model("llama", folder, 1, intermediate_size=32)


def other_depth(folder: Path) -> None:
    make_model("llama", folder, 1, num_hidden_layers=7)


def other_class(folder: Path) -> None:
    make_model("mistral", folder, 1)


def other_tie(folder: Path) -> None:
    make_model("llama_tied", folder, 1)


def quantised(folder: Path) -> None:
    edited(make_model("llama", folder, 1), quantization_config={"quant_method": "gptq"})


def lacking(folder: Path) -> None:
    make_model("llama", folder, 1)
    tensors = load_file(folder / FILE)
    del tensors["model.layers.3.mlp.up_proj.weight"], tensors[HEAD]
    save_file(tensors, folder / FILE, {"format": "pt"})


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (other_vocabulary, "different vocabularies: lm_head.weight [96, 16] against [100, 16]"),
        (other_shape, "different shapes: model.layers.0.mlp.down_proj.weight [16, 24] against"),
        (other_depth, "(6 and 7 layers); merging needs models of one pretrained parent"),
        (other_class, "(LlamaForCausalLM, MistralForCausalLM); merging needs models of one"),
        (other_tie, "ties its output embedding to the input embedding and plain does not"),
        (quantised, "other is quantised (gptq)"),
        (lacking, "other lacks 2 tensors that plain has: lm_head.weight, model.layers.3.mlp"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_streams_and_deltas_say_the_same(
    make: Callable[[Path], None], says: str, plain: Path, tmp_path: Path
) -> None:
    make(tmp_path / "other")
    base, other = StreamInput("plain", plain), StreamInput("other", tmp_path / "other")
    with pytest.raises(InputError) as of_stream:
        read_models([base, other])
    with pytest.raises(InputError) as of_delta:
        open_pair(other, base)
    for raised in (of_stream, of_delta):
        assert says in raised.value.message
        assert "layer swap" not in raised.value.message


def test_what_to_do_about_another_vocabulary(plain: Path, tmp_path: Path) -> None:
    other_vocabulary(tmp_path / "other")
    pair = [read_checkpoint(each.name, each) for each in (plain, tmp_path / "other")]

    def problems(**how: bool) -> str:
        return "; ".join(pair_problems(*pair, **how))

    assert "add tokenizer: {source: base}" in problems()
    assert problems(aligned=True) == ""
    for how in ({"by_row": True}, {"by_row": True, "aligned": True}):
        assert "resize_token_embeddings" in problems(**how)
        assert "tokenizer:" not in problems(**how)


def test_configs_that_do_not_say_whether_they_tie(tied: dict[str, Path], tmp_path: Path) -> None:
    def silent(name: str) -> Checkpoint:
        folder = Path(shutil.copytree(tied[name], tmp_path / name))
        return read_checkpoint(name, edited(folder, tie_word_embeddings=None))

    once, twice = silent("task"), silent("language twice")
    assert list(pair_problems(once, twice)) == []
    assert list(pair_problems(once, read_checkpoint("base", tied["base twice"]))) == []
