"""A model is opened once: each config and tokenizer of a merge is read one time."""

import sys
from collections import Counter
from pathlib import Path

import pytest

from ablations.recipe_commands.check import check_recipe
from layerswap_method.checkpoint import checkpoint
from layerswap_method.errors import InputError
from layerswap_method.methods.read import read_recipe
from layerswap_method.methods.table import merge_models
from layerswap_method.recipe.references import Model
from tests.standins.merging import recipe, revert_recipe, roles, write
from tests.standins.model_families import VOCAB
from tests.standins.tokenizers import save_word_tokenizer, words

OPENED: list[str] = []
WATCHED: list[bool] = []
sys.addaudithook(
    lambda event, arguments: (
        OPENED.append(str(arguments[0])) if WATCHED and event == "open" else None
    )
)


@pytest.fixture
def opened():
    """Return the paths that are opened from here on."""
    OPENED.clear()
    WATCHED.append(True)
    yield OPENED
    WATCHED.clear()


def with_other_tokens(models):
    """Give each model a tokenizer with another added token, so that all files differ."""
    for number, folder in enumerate(vars(models).values()):
        save_word_tokenizer(folder, words(VOCAB))
        file = folder / "tokenizer.json"
        file.write_text(file.read_text().replace("<bos>", f"<bos{number}>"))
    return models


RECIPES = {
    "layer_swap": lambda m: recipe(roles(m), {"bottom_layers": 2, "top_layers": 1}, m.base),
    "magnitude": lambda m: recipe(
        roles(m), {"bottom_layers": 2, "weighting": "magnitude", "non_layer": "task"}, m.base
    ),
    "delta_revert": lambda m: revert_recipe(m.task, m.base, {"keep_fraction": 0.5}),
}


@pytest.mark.parametrize("name", RECIPES)
def test_each_config_and_tokenizer_is_read_once(name, trio_copy, opened, monkeypatch, tmp_path):
    parsed, read = Counter(), checkpoint.read_vocabulary

    def counting(model, folder):
        parsed[folder] += 1
        return read(model, folder)

    monkeypatch.setattr(checkpoint, "read_vocabulary", counting)
    document = RECIPES[name](with_other_tokens(trio_copy))
    opened.clear()
    write(document, tmp_path / "out")
    folders = {Path(folder) for folder in read_recipe(document).references}
    configs = Counter(path for path in opened if path.endswith("/config.json"))
    out = {path: count for path, count in configs.items() if Path(path).parent not in folders}
    assert {path: configs[path] for path in configs.keys() - out.keys()} == {
        str(folder / "config.json"): 1 for folder in folders
    }
    assert len(out) == 1  # the merge's
    assert set(parsed.values()) <= {1}
    assert len(parsed) <= 3


@pytest.mark.parametrize(("alike", "parses"), [(True, 1), (False, 3)])
def test_a_check_opens_a_model_once_and_parses_equal_tokenizers_once(
    alike, parses, trio_copy, opened, monkeypatch
):
    parsed, read = Counter(), checkpoint.read_vocabulary

    def counting(model, folder):
        parsed[folder] += 1
        return read(model, folder)

    monkeypatch.setattr(checkpoint, "read_vocabulary", counting)
    document = RECIPES["layer_swap"](trio_copy if alike else with_other_tokens(trio_copy))
    opened.clear()
    assert all(finding.level != "error" for finding in check_recipe(document))
    configs = Counter(path for path in opened if path.endswith("/config.json"))
    assert configs == {str(folder / "config.json"): 1 for folder in vars(trio_copy).values()}
    assert sum(parsed.values()) == parses


def test_models_with_names_of_their_own_are_checked_as_those_of_a_recipe(trio_copy):
    """A study gives its experts names; their tokens were not compared at all."""
    tokens = words(VOCAB)
    save_word_tokenizer(trio_copy.language, [*tokens[:10], tokens[11], tokens[10], *tokens[12:]])
    counts = {"bottom_layers": 2, "top_layers": 1}
    document = recipe(roles(trio_copy), counts, trio_copy.base)
    names = {str(folder): role for role, folder in vars(trio_copy).items()}
    models = {path: Model(name, Path(path)) for path, name in names.items()}
    with pytest.raises(InputError, match="different tokens at 2 ids"):
        merge_models(read_recipe(document), models)
    document["parameters"] = counts | {"non_layer": "task"}
    merged = merge_models(read_recipe(document), models)
    assert merged.donor_folder == trio_copy.base
