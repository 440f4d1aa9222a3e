"""One text from all who read a recipe: check, `layerswap merge`, `mergekit-yaml`, mergekit."""

import logging
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pydantic
import pytest
import yaml
from mergekit.config import MergeConfiguration

from ablations.recipe_commands.check import check_recipe
from layerswap_method.checkpoint.checkpoint import read_checkpoint
from layerswap_method.checkpoint.lora import other_base
from layerswap_method.errors import InputError
from tests.merge.test_merge import run_merge
from tests.standins.fine_tunes import (
    edited,
    restored,
    tune,
    write_adapter,
)
from tests.standins.merging import linear_recipe, merge_of, recipe, revert_recipe, roles
from tests.standins.model_families import VOCAB
from tests.standins.tokenizers import save_word_tokenizer, words

COUNTS = {"bottom_layers": 2, "top_layers": 1}


def swap(models, parameters=None, /, **changes):
    """Return a recipe; `task` and `language` among the changes are other experts."""
    given = {role: changes.pop(role, folder) for role, folder in roles(models).items()}
    return recipe(given, COUNTS | (parameters or {}), models.base) | changes


def checked(path):
    """Return the errors of `layerswap check`."""
    found = check_recipe(path, hub=False)
    return [finding.message for finding in found if finding.level == "error"]


def without_place(text):
    """Return a message without its file: mergekit hands over what it has read, not from where."""
    text = text.removeprefix("Error: ")
    return re.sub(r"^(\S* ?recipe|\S*\.yml): (cannot be read: )?", "", text).strip()


@pytest.fixture
def refused(merge, tmp_path):
    """Fail unless every reader of a recipe refuses it in one text and nothing is written."""

    def one_text(document):
        path, out = tmp_path / "recipe.yml", tmp_path / "out"
        by_mergekit, by_merge = merge(document), run_merge(document, out)
        said = by_merge.output.removeprefix("Error: ")
        assert by_merge.exit_code == by_mergekit.exit_code == 2
        assert without_place(by_mergekit.output) == without_place(said)
        problems = [line[4:] for line in said.splitlines() if line[:4] == "  - "] or [said]
        found = {*map(without_place, checked(path))}
        assert {without_place(problem) for problem in problems} <= found
        assert "Traceback" not in said
        assert not out.exists()
        assert not by_mergekit.folder.exists()
        return said

    return one_text


def test_all_problems_are_one_message_and_what_mergekits_config_raises(trio, refused):
    document = swap(trio, {"botom_layers": 1, "seed": 1.5}, tokeniser="base")
    document["models"][0] = {"model": str(trio.task), "parameters": {"role": "tsk"}}
    said = refused(document)
    for part in ("4 problems", "bottom_layers", "parameters.seed", "'tokenizer", "models[0]"):
        assert part in said
    with pytest.raises(InputError) as raised:
        MergeConfiguration.model_validate(document)
    assert raised.value.message == said.strip()


def linked(models, root):
    (root / "link").symlink_to(models.task)
    return swap(models, language=root / "link")


def written_twice(models, root):
    document = swap(models, base_model=f"{models.base}/")
    document["models"].append({"model": str(models.base)})
    return document


def damaged(damage):
    """Return a maker of a recipe whose language expert is damaged."""

    def make(models, root):
        damage(shutil.copytree(models.language, root / "odd"))
        return swap(models, language=root / "odd")

    return make


def without_attention(models, root):
    def rename(held):
        return {name.replace("self_attn", "mixer"): tensor for name, tensor in held.items()}

    odd = {n: restored(folder, root / n, rename) for n, folder in vars(models).items()}
    return swap(SimpleNamespace(**odd), {"swap_modules": "attention"})


FAULTS = [
    (lambda m, _: yaml.safe_dump(swap(m)) + "dtype: &x float32\nout_dtype: *x\n", ["alias *x"]),
    (
        lambda m, _: yaml.safe_dump(swap(m)).replace("top_layers", "bottom_layers"),
        ["line 12 has the key 'bottom_layers' again (first in line 11)"],
    ),
    (linked, ["is listed twice"]),
    (written_twice, ["write it in the same way"]),
    (damaged(lambda f: os.truncate(f / "model.safetensors", 9000)), ["damaged", "copy it again"]),
    *(
        (damaged(lambda f, t=text: (f / "tokenizer.json").write_text(t)), ["read as a tokenizer"])
        for text in ("{", '{"model": {"vocab": [[]]}}', '{"model": {"vocab": {"a": Infinity}}}')
    ),
    (lambda m, _: swap(m, {"bottom_layers": 8}), ["8 + 1 = 9 is more than the model's 6 layers"]),
    (without_attention, ["swap_modules is attention"]),
    (lambda m, _: swap(m, chat_template="chatlm"), ["did you mean 'chatml'"]),
    (lambda m, _: swap(m, tokenizer_source="unoin"), ["is no model; did you mean 'union'"]),
    (lambda m, _: swap(m, tokenizer_source="base", tokenizer={}), ["are two forms of one setting"]),
    (lambda m, _: swap(m, tokenizer={"tokens": {"a": {"froce": 1}}}), ["mean 'force'"]),
    (lambda m, _: swap(m, tokenizer={"pad_to_multiple_of": 0}), ["pad_to_multiple_of", "than 0"]),
]


@pytest.mark.parametrize(("make", "parts"), FAULTS, ids=range(len(FAULTS)))
def test_faults(make, parts, trio, refused, tmp_path):
    said = refused(make(trio, tmp_path))
    assert all(part in said for part in parts), said


def test_rows_of_other_tokens_are_not_averaged(trio_copy, refused):
    """Rows of unrelated words were averaged without a word."""
    tokens = words(VOCAB)
    save_word_tokenizer(trio_copy.language, [*tokens[:10], tokens[11], tokens[10], *tokens[12:]])
    said = refused(swap(trio_copy))
    for part in ("different tokens at 2 ids", repr(tokens[10]), "tokenizer: {source: union}"):
        assert part in said
    merge_of(swap(trio_copy, {"non_layer": "task"}))
    for parameters in ({"keep_fraction": 0.5}, {"bottom_layers": 1}):
        said = refused(revert_recipe(trio_copy.language, trio_copy.base, parameters))
        assert ("resize_token_embeddings" in said, "tokenizer:" in said) == (True, False)
    with pytest.raises(InputError, match="different tokens"):
        merge_of(linear_recipe([trio_copy.task, trio_copy.language]))


@pytest.mark.parametrize("name", ["Layer_Swap", "layerswap"])
def test_near_misses_of_a_methods_name(name, trio, merge, tmp_path):
    document, said = swap(trio, merge_method=name), f"{name!r}; did you mean 'layer_swap'?"
    for result in (merge(document), run_merge(document, tmp_path / "out")):
        assert (result.exit_code, said in result.output) == (2, True), result.output
    assert any(said in problem for problem in checked(tmp_path / "recipe.yml"))


@pytest.mark.parametrize("name", ["linear", "Linear", "nearswap", "graft", None, 3])
def test_other_methods_keep_mergekits_errors(name, trio):
    with pytest.raises(pydantic.ValidationError):
        MergeConfiguration.model_validate(swap(trio, merge_method=name, parameters=[]))
    assert type(MergeConfiguration.model_validate(swap(trio))) is MergeConfiguration


def test_what_mergekit_would_ignore(trio, tmp_path):
    """F6. `layerswap check` is in tests/recipe_commands."""
    document = linear_recipe([trio.task, trio.language]) | {"parameters": {"normalise": True}}
    document["models"][1]["parameters"]["wieght"] = 2
    parts = ["'normalise' of linear", "'normalize'", "models[1]", "'wieght'", "'weight'"]
    for more, wanted in (({}, parts), ({"tokeniser": "base"}, ["tokeniser: unknown key"])):
        result = run_merge(document | more, tmp_path / "out")
        assert (result.exit_code, (tmp_path / "out").exists()) == (2, False)
        assert all(part in result.output for part in wanted), result.output


@pytest.fixture
def warned(merge, tmp_path, caplog):
    """Return which warnings check, merge and mergekit-yaml give: all three the same."""

    def ask(document, *, by_check=True):
        said, out = [], tmp_path / "warned"
        for run in (lambda: merge(document), lambda: run_merge(document, out)):
            caplog.clear()
            with caplog.at_level(logging.WARNING, "layerswap"):
                result = run()
            assert result.exit_code == 0, result.output
            said.append({r.message for r in caplog.records if r.levelno == logging.WARNING})
        found = check_recipe(tmp_path / "recipe.yml", hub=False)
        said.append({finding.message for finding in found if finding.level == "warning"})
        assert said[0] == said[1]
        assert said[0] == said[2] or not by_check
        shutil.rmtree(out)
        return str(sorted(said[0]))

    return ask


def test_what_check_warns_of_merges_warn_of(trio, warned, tmp_path):
    wide = swap(trio, task=tune(trio.base, tmp_path / "wide", 3))
    other = edited(shutil.copytree(trio.language, tmp_path / "other"), rms_norm_eps=1e-3)
    turned = shutil.copytree(trio.language, tmp_path / "turned")
    edited(turned, hidden_act="gelu", rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    for document, wanted in (
        (swap(trio), ""),
        (swap(trio, language=turned), "RoPE (rope_parameters.rope_theta: "),
        (wide, "different dtypes"),
        (wide | {"dtype": "bfloat16"}, "is stored in float32 and the merge is written in bfloat16"),
        (swap(trio, dtype="float16"), "whose largest number is 65504"),
        (swap(trio, language=other), "different settings"),
        (swap(trio, {"bottom_layers": 3}), "of the 6 layers come from the language expert, more"),
        (swap(trio, {"bottom_layers": 3, "top_layers": 0}), ""),
        (swap(trio, {"bottom_layers": 3, "swap_modules": "mlp"}), ""),
    ):
        said = warned(document)
        assert wanted in said if wanted else said == "[]", (document, said)


IN_A_CACHE = "/home/x/.cache/huggingface/hub/models--acme--Base/snapshots/0123456789abcdef"


@pytest.mark.parametrize("stated", ["other/Base-7B", "n" * 300, "someone/BASE", IN_A_CACHE])
def test_an_adapter_of_another_base(stated, trio, warned, tmp_path):
    """The last part of the name is compared, in any case: folders are copied.

    A name may be too long for a path, or in a folder without access: both are an OSError.
    """
    is_other = stated not in ("someone/BASE", IN_A_CACHE)
    adapter = write_adapter(tmp_path / "adapter", "model.layers.1.self_attn.k_proj", 16, 8)
    edited(adapter, "adapter_config.json", base_model_name_or_path=stated)
    said = warned(swap(trio, task=f"{trio.base}+{adapter}"), by_check=False)
    assert (f"trained on {stated}" in said) == is_other
    # Of one on the hub the name is said, and no folder of a cache.
    warning = other_base(adapter, read_checkpoint("acme/base+acme/adapter", Path(trio.base)))
    assert str(warning).startswith("acme/adapter: its") == is_other


def test_tokens_that_were_renamed(trio_copy, warned, merge, caplog):
    """Where both experts had renamed one, their rows got the base's tokenizer without a word."""
    for folder in (trio_copy.language, trio_copy.task):
        file = folder / "tokenizer.json"
        file.write_text(file.read_text().replace("<bos>", "<begin>"))
        if folder == trio_copy.language:
            assert "all added or special tokens" in warned(swap(trio_copy))
    for non_layer, donor in (("average", trio_copy.task), ("base", trio_copy.base)):
        merged = merge_of(swap(trio_copy, {"non_layer": non_layer}))
        assert (merged.donor_folder, f"has the one of {donor}" in str(merged.lines)) == (
            donor,
            True,
        )
    caplog.clear()
    place = merge(swap(trio_copy, chat_template="chatml")).folder  # mergekit takes the base's
    found = check_recipe(place.parents[1] / "recipe.yml", hub=False)
    assert all("all added or special tokens" in said for said in (caplog.text, str(found)))
