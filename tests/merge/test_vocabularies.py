"""Models with vocabularies of different sizes: all rows come from one of them, both ways alike."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from layerswap_method.errors import InputError
from layerswap_method.output import PLAN_FILE
from tests.merge.conftest import run_merge
from tests.merge.test_merge import assert_same_folder, both
from tests.standins.merging import merge, recipe, roles
from tests.standins.oracle import Swap, assert_same, expected, stored
from tests.standins.streams import stream_of
from tests.standins.tokenizers import save_word_tokenizer, words
from tests.standins.zoo import LAYERS, VOCAB, make_model

SIZES = {"base": VOCAB, "task": VOCAB + 2, "language": VOCAB + 3, "second": VOCAB + 2}
TABLES = ("model.embed_tokens.weight", "lm_head.weight")


@pytest.fixture(scope="module")
def speakers(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Return models of one shape but for their vocabularies; `second` has as many rows as task."""
    root = tmp_path_factory.mktemp("speakers")
    for seed, (name, size) in enumerate(SIZES.items()):
        make_model("llama", root / name, seed, vocab_size=size)
        save_word_tokenizer(root / name, words(size, *(f"{name}{i}" for i in range(3))))
    return SimpleNamespace(**{name: root / name for name in SIZES})


def assert_has_vocabulary_of(donor: Path, merged: Path) -> None:
    """Fail unless the merged folder loads, with the tokenizer and the sizes of `donor`."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(merged)
    assert tokenizer.get_vocab() == AutoTokenizer.from_pretrained(donor).get_vocab()
    model = AutoModelForCausalLM.from_pretrained(merged)
    assert model.get_input_embeddings().weight.shape[0] == len(tokenizer)


@pytest.mark.parametrize("non_layer", ["task", "language", "base"])
def test_all_rows_come_from_one_model(
    non_layer: str, speakers: SimpleNamespace, tmp_path: Path
) -> None:
    swap = Swap(LAYERS, non_layer=non_layer)
    document = recipe(roles(speakers), swap.parameters(), speakers.base)
    ours, theirs = both(document, tmp_path)
    assert_same_folder(ours, theirs)
    giver = getattr(speakers, non_layer)
    held = {name: stored(getattr(speakers, name)) for name in ("task", "language", "base")}
    merged = stored(ours)
    assert_same(*({n: each[n] for n in TABLES} for each in (merged, held[non_layer])))
    plain = {
        role: {name: t for name, t in tensors.items() if name not in TABLES}
        for role, tensors in held.items()
    }
    rest = expected(swap, plain["task"], plain["language"], plain["base"])
    assert_same({name: t for name, t in merged.items() if name not in TABLES}, rest)
    assert_has_vocabulary_of(giver, ours)
    plan = json.loads((ours / PLAN_FILE).read_text(encoding="utf-8"))
    assert plan["tokenizer_from"] == str(giver)
    assert plan["base_model"] == str(speakers.base)
    assert f"`{giver}`, with its tokenizer" in (ours / "README.md").read_text(encoding="utf-8")
    assert stream_of(document).donor == giver


def test_an_average_of_one_vocabulary_under_a_base_with_another(
    speakers: SimpleNamespace, tmp_path: Path
) -> None:
    experts = {"task": speakers.task, "language": speakers.second}
    document = recipe(experts, {"bottom_layers": 2, "top_layers": 1}, speakers.base)
    ours, theirs = both(document, tmp_path)
    assert_same_folder(ours, theirs)
    assert_has_vocabulary_of(speakers.task, ours)


@pytest.mark.parametrize("soup", [False, True], ids=["both experts", "two task experts"])
def test_rows_of_different_vocabularies_are_not_averaged(
    soup: bool, speakers: SimpleNamespace, tmp_path: Path
) -> None:
    document = recipe(roles(speakers), {"bottom_layers": 2, "top_layers": 1}, speakers.base)
    if soup:
        given = {"task": [speakers.task, speakers.language], "language": speakers.second}
        document = recipe(
            given, {"bottom_layers": 2, "top_layers": 1, "non_layer": "task"}, speakers.base
        )
    done = run_merge(document, tmp_path / "ours")
    assert done.exit_code == 2
    assert "have different vocabularies: lm_head.weight [98, 16] against [99, 16]" in done.output
    assert "non_layer: task, language or base" in done.output
    with pytest.raises(InputError, match="have different vocabularies"):
        merge(document, tmp_path / "theirs")
    assert not (tmp_path / "ours").exists()
    assert not (tmp_path / "theirs").exists()


def test_a_layer_of_another_width_is_no_vocabulary(
    speakers: SimpleNamespace, tmp_path: Path
) -> None:
    odd = make_model("llama", tmp_path / "odd", 9, intermediate_size=VOCAB)
    document = recipe({"task": speakers.base, "language": odd}, {"non_layer": "task"})
    done = run_merge(document, tmp_path / "ours")
    assert done.exit_code == 2
    assert "have different shapes: model.layers.0.mlp.down_proj.weight" in done.output
