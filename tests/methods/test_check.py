"""The model whose config and tokenizer a merge has, and what the merge lacks of the others'."""

import json
import shutil
from types import SimpleNamespace

import pytest
from transformers import AutoTokenizer

from tests.standins.fine_tunes import restored
from tests.standins.merging import linear_recipe, merge_of, recipe, revert_recipe, roles, write
from tests.standins.model_families import VOCAB
from tests.standins.tokenizers import save_word_tokenizer, words

SWAP = {"bottom_layers": 2, "top_layers": 1}
TABLES = ("model.embed_tokens.weight", "lm_head.weight")


def without_tokenizer(folder):
    files = [*folder.glob("tokenizer*"), *folder.glob("special*"), *folder.glob("chat_template*")]
    assert files
    for file in files:
        file.unlink()


@pytest.mark.parametrize(
    "document",
    [
        lambda models: recipe(roles(models), SWAP, models.base),
        lambda models: recipe(roles(models), SWAP | {"non_layer": "base"}, models.base),
        lambda models: revert_recipe(models.task, models.base, {"top_layers": 1}),
        lambda models: linear_recipe([models.base, models.task]),
    ],
    ids=["average", "base", "delta_revert", "linear"],
)
def test_a_merge_without_a_tokenizer_is_a_warning(document, trio_copy, tmp_path):
    """A base that was saved without one gave none to the merge, without a word."""
    without_tokenizer(trio_copy.base)
    found = document(trio_copy)
    (warning,) = [text for text in merge_of(found).warnings if text.startswith("the merge has no")]
    assert warning == (
        f"the merge has no tokenizer, because {trio_copy.base}, whose config and tokenizer it "
        f"takes, has none; copy that of {trio_copy.task} into its folder, if that has the same "
        "tokens"
    )
    for file in trio_copy.task.glob("tokenizer*"):
        shutil.copy(file, trio_copy.base)
    assert "tokenizer" not in str(merge_of(found).warnings)


def test_of_the_models_that_give_rows_one_with_a_tokenizer_is_taken(trio_copy, tmp_path):
    def with_more_rows(held):
        return held | {name: held[name].repeat(2, 1) for name in TABLES}

    larger = restored(trio_copy.base, tmp_path / "larger", with_more_rows)
    without_tokenizer(trio_copy.task)
    document = recipe(roles(trio_copy), SWAP, larger)
    merge = merge_of(document)
    assert merge.donor_folder == trio_copy.language
    assert not any(text.startswith("the merge has no") for text in merge.warnings)
    write(document, tmp_path / "out")
    assert (tmp_path / "out" / "tokenizer.json").is_file()


@pytest.fixture
def spare(trio, tmp_path):
    """Return a base and two experts with more rows than tokens, as Qwen2.5 has them."""
    folders = {
        name: shutil.copytree(folder, tmp_path / name) for name, folder in vars(trio).items()
    }
    for folder in folders.values():
        save_word_tokenizer(folder, words(VOCAB - 6))
    return SimpleNamespace(**folders)


def with_tokens(folder, *tokens):
    """Add tokens to a tokenizer, in the first spare rows."""
    file = folder / "tokenizer.json"
    document = json.loads(file.read_text())
    for number, token in enumerate(tokens, start=VOCAB - 6):
        added = {"id": number, "content": token, "special": True, "normalized": False}
        sides = dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        document["added_tokens"].append(added | sides)
    file.write_text(json.dumps(document))


def test_tokens_that_all_experts_added_in_spare_rows_are_in_the_merge(spare, tmp_path):
    """The merge had the rows of the experts' tokens, and the tokenizer of a base without them."""
    for folder in (spare.task, spare.language):
        with_tokens(folder, "<|think|>")
    document, out = recipe(roles(spare), SWAP, spare.base), tmp_path / "out"
    assert merge_of(document).donor_folder == spare.task
    lines = write(document, out)
    assert any("different vocabularies" in line and str(spare.task) in line for line in lines)
    assert AutoTokenizer.from_pretrained(out).get_vocab()["<|think|>"] == VOCAB - 6
    of_base = recipe(roles(spare), SWAP | {"non_layer": "base"}, spare.base)
    merge = merge_of(of_base)  # whose rows for them nobody trained
    assert (merge.donor_folder, "rows for tokens" in str(merge.warnings)) == (spare.base, False)


@pytest.mark.parametrize(
    "document",
    [
        lambda models: recipe(roles(models), SWAP, models.base),
        lambda models: revert_recipe(models.task, models.base, {"top_layers": 1}),
        lambda models: linear_recipe([models.base, models.task]),
    ],
    ids=["layer_swap", "delta_revert", "linear"],
)
def test_tokens_that_the_tokenizer_of_the_merge_lacks_are_a_warning(document, spare):
    with_tokens(spare.task, "<|think|>", "<|lang|>")
    merge = merge_of(document(spare))
    assert merge.donor_folder == spare.base
    assert merge.warnings == (
        f"the merge has rows for tokens of {spare.task} (<|think|>, <|lang|>) that the tokenizer "
        f"of {spare.base}, which it takes, lacks; to use them, copy that of {spare.task} into the "
        "merge",
    )


def test_later_experts_are_compared_with_each_other(spare, tmp_path):
    """Where the first did not use an id, two others could use it for two tokens."""
    third = shutil.copytree(spare.language, tmp_path / "third")
    with_tokens(spare.language, "<|a|>")
    with_tokens(third, "<|b|>")
    models = {"task": spare.task, "language": [spare.language, third]}
    (conflict, *lost) = merge_of(recipe(models, SWAP, spare.base)).warnings
    assert conflict.startswith(
        f"{spare.language} and {third} have different tokens at 1 ids, all added or special tokens "
        f"({VOCAB - 6} is '<|a|>' and '<|b|>')"
    )
    assert len(lost) == 2
