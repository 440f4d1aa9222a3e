"""One judgement of a pair, for mergekit, streams and deltas alike, in no method's words."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from layerswap_method.checkpoint.checkpoint import Checkpoint, read_checkpoint
from layerswap_method.checkpoint.compatible import pair_problems
from layerswap_method.deltas.pair import open_pair
from layerswap_method.errors import InputError
from layerswap_method.recipe.document import read_models
from layerswap_method.recipe.references import StreamInput
from tests.standins.merging import linear_recipe, merge, recipe, revert_recipe
from tests.standins.streams import check_stream
from tests.standins.tuned import edited, restored, tune, with_head
from tests.standins.zoo import make_model

ONE_EACH = {"bottom_layers": 1, "top_layers": 1}
FILE, HEAD = "model.safetensors", "lm_head.weight"


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three models of one base that tie their embeddings, each with and without a stored head."""
    root = tmp_path_factory.mktemp("tied")
    found = {"base": make_model("llama_tied", root / "base", 1)}
    for name, seed in (("task", 2), ("language", 3)):
        found[name] = tune(found["base"], root / name, seed, 0.02, None)
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
    expert, other = tied[f"task{task}"], tied[f"language{language}"]
    donor = tied[f"base{base}"]
    swap, both = {"bottom_layers": 2, "top_layers": 1}, {"task": expert, "language": other}
    documents = [
        recipe(both, swap, donor),
        recipe(both, {**swap, "non_layer": "task"}, donor),
        linear_recipe([expert, other]),
        revert_recipe(expert, donor, {"keep_fraction": 0.3}),
        revert_recipe(expert, donor, {"bottom_layers": 1}),
    ]
    for index, document in enumerate(documents):
        check_stream(document, tmp_path / str(index))


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


def odd(folder: Path, family: str = "llama", **changes: Any) -> Path:
    return make_model(family, folder, 1, **changes)


def quantised(folder: Path) -> None:
    edited(odd(folder), quantization_config={"quant_method": "gptq"})


def lacking(folder: Path) -> None:
    less = {"lm_head.weight", "model.layers.3.mlp.up_proj.weight"}
    whole = odd(folder.with_name("whole"))
    restored(whole, folder, lambda held: {n: t for n, t in held.items() if n not in less})


@pytest.mark.parametrize(
    ("make", "says"),
    [
        ({"vocab_size": 100}, "vocabularies: lm_head.weight [96, 16] against [100, 16]"),
        ({"intermediate_size": 32}, "shapes: model.layers.0.mlp.down_proj.weight [16, 24] against"),
        ({"num_hidden_layers": 7}, "(6 and 7 layers); merging needs models of one pretrained"),
        ({"family": "mistral"}, "(LlamaForCausalLM, MistralForCausalLM); merging needs models of"),
        ({"family": "llama_tied"}, "ties its output embedding to the input embedding and "),
        (quantised, "is quantised (gptq)"),
        (lacking, "lacks 2 tensors that "),
    ],
)
def test_merges_streams_and_deltas_say_the_same(
    make: Callable[[Path], None] | dict[str, Any], says: str, plain: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "other"
    odd(folder, **make) if isinstance(make, dict) else make(folder)
    base, other = StreamInput("plain", plain), StreamInput("other", folder)
    with pytest.raises(InputError) as of_stream:
        read_models([base, other])
    with pytest.raises(InputError) as of_delta:
        open_pair(other, base)
    with pytest.raises(InputError, match=re.escape(says)):
        merge(recipe({"task": plain, "language": folder}, ONE_EACH), tmp_path / "merged")
    assert not (tmp_path / "merged").exists()
    for raised in (of_stream, of_delta):
        assert says in raised.value.message
        assert "layer swap" not in raised.value.message


def test_what_to_do_about_another_vocabulary(plain: Path, tmp_path: Path) -> None:
    odd(tmp_path / "other", vocab_size=100)
    pair = [read_checkpoint(each.name, each) for each in (plain, tmp_path / "other")]

    def problems(**how: bool) -> str:
        return "; ".join(pair_problems(*pair, **how))

    assert "add tokenizer: {source: base}" in problems()
    assert f"layerswap compat {plain} {tmp_path / 'other'}" in problems()
    assert problems(aligned=True) == ""
    for how in ({"by_feature": True}, {"by_feature": True, "aligned": True}):
        assert "resize_token_embeddings" in problems(**how)
        assert "tokenizer:" not in problems(**how)


def test_configs_that_do_not_say_whether_they_tie(tied: dict[str, Path], tmp_path: Path) -> None:
    def silent(name: str) -> Checkpoint:
        folder = Path(shutil.copytree(tied[name], tmp_path / name))
        return read_checkpoint(name, edited(folder, tie_word_embeddings=None))

    once, twice = silent("task"), silent("language twice")
    assert list(pair_problems(once, twice)) == []
    assert list(pair_problems(once, read_checkpoint("base", tied["base twice"]))) == []
