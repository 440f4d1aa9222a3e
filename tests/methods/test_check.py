"""The model whose config and tokenizer a merge has, and what the merge lacks of the others'."""

import shutil

import pytest

from tests.standins.fine_tunes import restored
from tests.standins.merging import linear_recipe, merge_of, recipe, revert_recipe, roles, write

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
