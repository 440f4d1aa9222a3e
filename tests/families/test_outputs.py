"""The output folder: what a merge leaves, what a failed one does not, what stays."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from layerswap_method.errors import InputError, LayerSwapError
from tests.standins.merging import merge, recipe, roles
from tests.standins.oracle import Swap, assert_same, expected, stored
from tests.standins.tokenizers import save_word_tokenizer, words
from tests.standins.zoo import LAYERS, VOCAB, make_model

SWAP = Swap(LAYERS)


def test_the_plan_file_says_what_was_done(experts: Any, tmp_path: Path) -> None:
    given = experts("llama")
    document = recipe(roles(given), SWAP.parameters(), given.base)
    document["models"][1]["parameters"]["weight"] = 2
    out = merge(document, tmp_path / "merged")
    record = json.loads((out / "layer_swap_plan.json").read_text())
    version = record.pop("layerswap_version")
    assert version.count(".") == 2
    assert record == {
        "schema_version": 1,
        "merge_method": "layer_swap",
        "num_layers": LAYERS,
        "layers": ["language", "language", "average", "task", "average", "language"],
        "parameters": {
            **SWAP.parameters(),
            "weighting": "uniform",
            "placement": "outer",
            "language_layers": None,
            "seed": 0,
            "delta_unit": "layer",
            "delta_threshold": 0.001,
            "delta_dominance": None,
            "delta_blend": 0.5,
            "layer_norms": "block",
            "swap_modules": "all",
        },
        "models": [
            {"model": str(given.task), "role": "task", "weight": 1.0},
            {"model": str(given.language), "role": "language", "weight": 2.0},
        ],
        "base_model": str(given.base),
    }


def test_the_card_and_the_recipe_are_written_under_the_folders_own_name(
    experts: Any, tmp_path: Path
) -> None:
    given = experts("llama")
    out = merge(recipe(roles(given), SWAP.parameters()), tmp_path / "my-merge")
    card = (out / "README.md").read_text()
    assert "my-merge" in card
    assert "partial" not in card
    assert "Layer Swapping" in card
    assert "layer_swap" in (out / "mergekit_config.yml").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my-merge"]


@pytest.fixture
def damaged(experts: Any, tmp_path: Path) -> Path:
    """Return a language expert whose config cannot be told from a good one, but not its weights.

    The headers are whole, so that the checks pass and the failure comes while merging.
    """
    folder = tmp_path / "damaged"
    shutil.copytree(experts("llama").language, folder)
    return folder


def test_a_merge_that_fails_half_way_leaves_nothing(
    experts: Any, damaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mergekit.io.lazy_tensor_loader import LazyTensorLoader

    original = LazyTensorLoader.get_tensor
    done: list[str] = []

    def failing(self: Any, key: str, *args: Any, **kwargs: Any) -> Any:
        if Path(self.index.base_path) == damaged and len(done) > 20:
            raise OSError(5, "Input/output error")
        done.append(key)
        return original(self, key, *args, **kwargs)

    monkeypatch.setattr(LazyTensorLoader, "get_tensor", failing)
    root = tmp_path / "outputs"
    existing = root / "existing"
    existing.mkdir(parents=True)
    (existing / "config.json").write_text("mine")
    models = {"task": experts("llama").task, "language": damaged}
    for out in (root / "new", existing):
        done.clear()
        with pytest.raises(LayerSwapError, match=r"nothing was written: .*Input/output error"):
            merge(recipe(models, SWAP.parameters()), out, out_shard_size=2000)
        assert len(done) > 20  # tensors were read, and shards written, before it failed
    assert [path.name for path in root.iterdir()] == ["existing"]
    assert [path.name for path in existing.iterdir()] == ["config.json"]
    assert (existing / "config.json").read_text() == "mine"


def test_a_folder_written_anew_is_read_anew(tmp_path: Path) -> None:
    # mergekit keeps every checkpoint of a process open under its reference.
    folders = {role: tmp_path / role for role in ("task", "language")}
    results = []
    for seed in (0, 7):
        for shift, folder in enumerate(folders.values()):
            shutil.rmtree(folder, ignore_errors=True)
            make_model("llama", folder, seed + shift)
        out = merge(recipe(folders, SWAP.parameters()), tmp_path / f"merged-{seed}")
        task, language = (stored(folder) for folder in folders.values())
        assert_same(stored(out), expected(SWAP, task, language))
        results.append(stored(out)["model.norm.weight"])
    assert not results[0].equal(results[1])


@pytest.mark.parametrize("first", ["one file", "many shards"])
def test_weights_of_an_earlier_merge_do_not_survive_a_later_one(
    first: str, experts: Any, loads: Any, tmp_path: Path
) -> None:
    # transformers reads model.safetensors and never looks at new shards beside it.
    given = experts("llama")
    out = tmp_path / "merged"
    sizes = {"one file": 10**9, "many shards": 2000}
    merge(recipe(roles(given), SWAP.parameters()), out, out_shard_size=sizes.pop(first))
    save_word_tokenizer(out, words(VOCAB))
    (out / "notes").mkdir()
    (out / "notes" / "mine.txt").write_text("mine")
    swap = Swap(LAYERS, b=1, u=2)
    merge(recipe(roles(given), swap.parameters()), out, out_shard_size=sizes.popitem()[1])
    assert ((out / "model.safetensors").is_file()) == (first == "many shards")
    assert ((out / "model.safetensors.index.json").is_file()) == (first == "one file")
    assert_same(stored(out), expected(swap, stored(given.task), stored(given.language)))
    assert (out / "tokenizer.json").is_file()
    assert (out / "notes" / "mine.txt").read_text() == "mine"
    loads(out)


def test_an_input_is_never_the_output(experts: Any, tmp_path: Path) -> None:
    given = experts("llama")
    before = stored(given.task)
    with pytest.raises(InputError, match="the output folder is one of the merge's inputs"):
        merge(recipe(roles(given), SWAP.parameters()), given.task / "." / "..." / "..")
    assert_same(stored(given.task), before)
