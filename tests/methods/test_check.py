"""The model whose config and tokenizer a merge has, and what the merge lacks of the others'."""

import json
import shutil
from types import SimpleNamespace

import pytest
from transformers import AutoTokenizer

from ablations.recipe_commands.check import check_recipe
from layerswap_method.adapter_swap.run import swap_adapters
from layerswap_method.methods.read import RecipeFile
from layerswap_method.recipe.references import find_model_files
from tests.standins.fine_tunes import restored, write_adapter
from tests.standins.merging import (
    linear_recipe,
    merge_of,
    recipe,
    revert_recipe,
    roles,
    write,
    write_recipe,
)
from tests.standins.model_families import VOCAB
from tests.standins.tokenizers import save_word_tokenizer, words

SWAP = {"bottom_layers": 2, "top_layers": 1}
UP = "model.layers.2.mlp.up_proj.weight"
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


def test_tokens_and_template_beside_an_adapter_are_not_lost_in_silence(spare, tmp_path):
    """As trl, axolotl and unsloth save them; only the base's folder was looked at."""
    adapters = {}
    for role in ("task", "language"):
        adapter = write_adapter(tmp_path / f"{role}-lora", UP.removesuffix(".weight"), 16, 24)
        save_word_tokenizer(adapter, words(VOCAB - 6), chat_template="{{ messages }} <|end|>")
        with_tokens(adapter, "<|end|>")
        adapters[role] = f"{spare.base}+{adapter}"
    task, language = adapters.values()
    document = recipe(adapters, SWAP, spare.base)
    merge = merge_of(document)
    tokens = (
        f"rows for tokens of {task} and {language} (<|end|>) that the tokenizer of {spare.base}"
    )
    template = f"{task} and {language} has a chat template and {spare.base} has another, which"
    assert tokens in str(merge.warnings)
    assert template in str(merge.lines)
    findings = check_recipe(write_recipe(tmp_path / "recipe.yml", document), hub=False)
    for level, part in (("warning", tokens), ("note", template)):
        assert any(finding.level == level and part in finding.message for finding in findings)
    log = []
    file = RecipeFile("recipe", "", document)
    swap_adapters(file, find_model_files, str(tmp_path / "adapter"), log.append)
    assert template in str(log)
    of_itself = merge_of(recipe(adapters, SWAP, task))
    assert f"and the base of {task} has another, which the merge takes" in str(of_itself.lines)


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
