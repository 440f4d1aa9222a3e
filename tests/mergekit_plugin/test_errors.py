"""One text from all who read a recipe: check, `layerswap merge`, `mergekit-yaml`, mergekit."""

import json
import logging
import re
import shutil

import pydantic
import pytest
import torch
import yaml
from click.testing import CliRunner
from mergekit.config import MergeConfiguration
from safetensors.torch import load_file

from ablations.cli import main as layerswap
from ablations.gallery.check import check_recipe
from layerswap_method.errors import InputError
from layerswap_method.mergekit_plugin.run import lazy_main
from tests.mergekit_plugin.conftest import write_recipe
from tests.standins.merging import linear_recipe, recipe, revert_recipe, roles
from tests.standins.tokenizers import save_word_tokenizer, words
from tests.standins.tuned import tune, write_adapter
from tests.standins.zoo import VOCAB, make_model

COUNTS = {"bottom_layers": 2, "top_layers": 1}
SIX = {"placement": "layers", "language_layers": "0-5"}


def swap(models, parameters=None, **changes):
    return recipe(roles(models), COUNTS | (parameters or {}), models.base) | changes


def checked(path):
    """Return the errors of `layerswap check`."""
    found = check_recipe(path, hub=False)
    return [finding.message for finding in found if finding.level == "error"]


def without_place(text):
    """Return a message without its file: mergekit hands over what it has read, not from where."""
    text = text.removeprefix("Error: ")
    return re.sub(r"^(\S* ?recipe|\S*\.yml): (cannot be read: )?", "", text).strip()


@pytest.fixture
def refused(merge, tmp_path, monkeypatch, capsys):
    """Fail unless every reader of a recipe refuses it in one text and nothing is written."""

    def one_text(document):
        path, out = write_recipe(tmp_path / "recipe.yml", document), tmp_path / "refused" / "out"
        by_merge = CliRunner().invoke(layerswap, ["merge", str(path), str(out)])
        by_mergekit = merge(document)
        monkeypatch.setattr("sys.argv", ["mergekit-yaml", str(path), str(out)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            lazy_main(None, pytest.fail)()
        said = capsys.readouterr().err.removeprefix("Error: ")
        assert ended.value.code == by_merge.exit_code == by_mergekit.exit_code == 2
        for text in (by_merge.output, by_mergekit.output):
            assert without_place(text) == without_place(said)
        problems = [line[4:] for line in said.splitlines() if line[:4] == "  - "] or [said]
        found = {*map(without_place, checked(path))}
        assert {without_place(problem) for problem in problems} <= found
        assert "Traceback" not in said
        assert not out.parent.exists()
        assert not by_mergekit.folder.exists()
        return said

    return one_text


def test_forms(trio, refused):
    reverted = revert_recipe(trio.task, trio.base, {"threshold": 0.1, "keep_fraction": 0.5})
    entry = {"model": str(trio.task), "parameters": {"role": "tsk"}}
    several = swap(trio, {"botom_layers": 1, "seed": 1.5}, tokeniser="base")
    several["models"][0] = entry
    for document, parts in (
        (swap(trio, {"botom_layers": 2}), ["botom_layers", "did you mean 'bottom_layers'"]),
        (several, ["4 problems", "bottom_layers", "parameters.seed", "'tokenizer", "models[0]"]),
        (reverted, ["delta_revert recipe", "drop one"]),
    ):
        said = refused(document)
        assert all(part in said for part in parts), said
        with pytest.raises(InputError) as raised:
            MergeConfiguration.model_validate(document)
        assert raised.value.message == said.strip()


def test_a_key_that_stands_twice_and_an_alias(trio, refused):
    lines = yaml.safe_dump(swap(trio), sort_keys=False).splitlines()
    second = next(i for i, line in enumerate(lines, start=1) if "bottom_layers" in line)
    lines[second:second] = ["  bottom_layers: 3"]
    said = refused("\n".join(lines))
    assert f"line {second + 1} has the key 'bottom_layers' again (first in line {second})" in said
    assert "alias *x" in refused(yaml.safe_dump(swap(trio)) + "dtype: &x float32\nout_dtype: *x\n")


def test_one_model_in_two_places_however_it_is_written(trio, refused, merge, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(trio.task)
    for other in (trio.task, f"{trio.task}/", link):
        document = swap(trio)
        document["models"][1]["model"] = str(other)
        assert "is listed twice" in refused(document)
    document = swap(trio, base_model=f"{trio.base}/")
    document["models"].append({"model": str(trio.base)})
    assert f"write it in the same way ({trio.base}/)" in refused(document)
    document["models"][2]["model"] += "/"
    assert merge(document).exit_code == 0


def pickled(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def cut_short(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


MODELS = [
    (shutil.rmtree, ["odd: no such folder"]),
    (pickled, ["only pickled weights (pytorch_model.bin)", "save_pretrained"]),
    (cut_short, ["model.safetensors is damaged", "download or copy it again"]),
    (lambda folder: (folder / "tokenizer.json").write_text("{"), ["be read as a tokenizer"]),
    (lambda folder: make_model("llama", folder, 9, vocab_size=100), ["different vocabularies"]),
    (lambda folder: make_model("llama", folder, 9, num_hidden_layers=7), ["different depths"]),
]


@pytest.mark.parametrize(("damage", "parts"), MODELS, ids=range(len(MODELS)))
def test_models(damage, parts, trio, refused, tmp_path):
    odd = shutil.copytree(trio.language, tmp_path / "odd")
    damage(odd)
    document = swap(trio)
    document["models"][1]["model"] = str(odd)
    said = refused(document)
    assert all(part in said for part in (str(odd), *parts)), said


def test_layers_and_modules_that_the_model_has_not(trio, refused, merge, tmp_path):
    from transformers import MambaConfig, MambaForCausalLM

    assert "6 + 3 = 9 is more than the model's 6 layers" in refused(
        swap(trio, {"bottom_layers": 6, "top_layers": 3})
    )
    sizes = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 4, "state_size": 4}
    folders = {role: tmp_path / role for role in ("task", "language")}
    for folder in folders.values():
        MambaForCausalLM(MambaConfig(**sizes)).save_pretrained(folder)
    document = recipe(folders, {"bottom_layers": 1, "top_layers": 1, "swap_modules": "attention"})
    assert "swap_modules is attention" in refused(document)
    del document["parameters"]["swap_modules"]
    assert merge(document).exit_code == 0


def test_rows_of_other_tokens_are_not_averaged(own_trio, refused, merge):
    """H4a: rows of unrelated words were averaged without a word."""
    tokens = words(VOCAB)
    save_word_tokenizer(own_trio.language, [*tokens[:10], tokens[11], tokens[10], *tokens[12:]])
    document = swap(own_trio)
    said = refused(document)
    for part in ("different tokens at 2 ids", repr(tokens[10]), "tokenizer: {source: union}"):
        assert part in said
    for fixed in (
        document | {"tokenizer": {"source": "union"}},
        swap(own_trio, {"non_layer": "task"}),
    ):
        result = merge(fixed)
        assert result.exit_code == 0, result.output
        shutil.rmtree(result.folder)
    path = result.folder.parent / "linear.yml"
    write_recipe(path, linear_recipe([own_trio.task, own_trio.language]))
    result = CliRunner().invoke(layerswap, ["merge", str(path), str(result.folder)])
    assert (result.exit_code, "different tokens" in result.output) == (2, True)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("Layer_Swap", "layer_swap"), ("layerswap", "layer_swap"), ("delta-reverse", "delta_revert")],
)
def test_near_misses_of_a_methods_name(name, meant, trio, merge, tmp_path):
    document, said = swap(trio, merge_method=name), f"{name!r}; did you mean {meant!r}?"
    path = write_recipe(tmp_path / "recipe.yml", document)
    merged = CliRunner().invoke(layerswap, ["merge", str(path), str(tmp_path / "out")])
    for result in (merge(document), merged):
        assert (result.exit_code, said in result.output) == (2, True), result.output
    assert any(said in problem for problem in checked(path))


@pytest.mark.parametrize("name", ["linear", "Linear", "nearswap", "graft", None, 3])
def test_other_methods_keep_mergekits_errors(name, trio):
    document = swap(trio, merge_method=name)
    for wrong in (document | {"parameters": []}, ["layer_swap"]):
        with pytest.raises(pydantic.ValidationError):
            MergeConfiguration.model_validate(wrong)
    if isinstance(name, str):
        with pytest.raises(RuntimeError, match="Exactly one of 'models'"):
            MergeConfiguration.model_validate(document | {"models": []})
    config = MergeConfiguration.model_validate(swap(trio))
    assert type(config) is MergeConfiguration


def test_what_layerswap_merge_says_of_mergekits_own_methods(trio, tmp_path):
    """F6: a model listed twice was merged; mergekit ignores what it does not know."""
    models = [trio.task, trio.language]
    typo = linear_recipe(models)
    typo["models"][1]["parameters"]["wieght"] = 2
    for document, parts in (
        (
            linear_recipe(models) | {"parameters": {"normalise": True}},
            ["'normalise' of linear", "'normalize'"],
        ),
        (typo, ["models[1]", "unknown parameter 'wieght'", "did you mean 'weight'"]),
        (linear_recipe(models) | {"tokeniser": "base"}, ["tokeniser: unknown key"]),
        (linear_recipe([*models, trio.task], (1.0, 1.0, 1.0)), [f"{trio.task}) is listed twice"]),
        (linear_recipe(models, (0.0, 0.0)), ["sum to 0"]),
    ):
        path = write_recipe(tmp_path / "recipe.yml", document)
        result = CliRunner().invoke(layerswap, ["merge", str(path), str(tmp_path / "out")])
        assert result.exit_code == 2, result.output
        for part in parts:
            assert part in result.output
            assert any(part in problem for problem in checked(path))
        assert not (tmp_path / "out").exists()


WARNINGS = {
    "dtypes": "different dtypes",
    "narrow": "is stored in float32 and dtype is bfloat16",
    "range": "whose largest number is 65504",
    "settings": "different settings",
    "half": "of the 6 layers come from the language expert, more than half",
    "tokens": "all added or special tokens",
    "base": "trained on other/Base-7B",
}


@pytest.fixture
def warned(merge, tmp_path, caplog):
    """Return which warnings check, merge and mergekit-yaml give: all three the same."""

    def ask(document, *, by_check=True):
        path, out = write_recipe(tmp_path / "warned.yml", document), tmp_path / "warned"
        said = []
        for run in (
            lambda: merge(document),
            lambda: CliRunner().invoke(layerswap, ["merge", str(path), str(out)]),
        ):
            caplog.clear()
            with caplog.at_level(logging.WARNING, "layerswap"):
                result = run()
            assert result.exit_code == 0, result.output
            said.append({r.message for r in caplog.records if r.levelno == logging.WARNING})
        found = check_recipe(path, hub=False)
        said.append({finding.message for finding in found if finding.level == "warning"})
        assert said[0] == said[1]
        assert said[0] == said[2] or not by_check
        shutil.rmtree(out)
        return {name for name, text in WARNINGS.items() if text in str(said[0])}

    return ask


def test_what_check_warns_of_merges_warn_of(trio, warned, tmp_path):
    wide = swap(trio)
    wide["models"][0]["model"] = str(tune(trio.base, tmp_path / "wide", 3))
    other = swap(trio)
    other["models"][1]["model"] = str(make_model("llama", tmp_path / "o", 9, rms_norm_eps=1e-3))
    for document, wanted in (
        (swap(trio), set()),
        (wide, {"dtypes"}),
        (wide | {"dtype": "bfloat16"}, {"narrow"}),
        (swap(trio, dtype="float16"), {"range"}),
        (other, {"settings"}),
        (swap(trio, {"bottom_layers": 3}), {"half"}),
        (
            recipe(roles(trio), {"placement": "layers", "language_layers": "0-4"}, trio.base),
            {"half"},
        ),
        (swap(trio, {"bottom_layers": 3, "top_layers": 0}), set()),
        (swap(trio, {"bottom_layers": 3, "swap_modules": "mlp"}), set()),
    ):
        assert warned(document) == wanted, document


@pytest.mark.parametrize("stated", ["other/Base-7B", "someone/BASE"])
def test_an_adapter_of_another_base(stated, trio, warned, tmp_path):
    """H4e. The last part of the name is compared, in any case: folders are copied."""
    adapter = write_adapter(tmp_path / "adapter", "model.layers.1.self_attn.k_proj", 16, 8)
    config = json.loads((adapter / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = stated
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    document = swap(trio)
    document["models"][0]["model"] = f"{trio.base}+{adapter}"
    found = warned(document, by_check=False)
    assert found == ({"base"} if stated == "other/Base-7B" else set())


def test_added_tokens_that_differ_are_a_warning(own_trio, warned):
    file = own_trio.language / "tokenizer.json"
    file.write_text(file.read_text().replace("<bos>", "<begin>"))
    assert warned(swap(own_trio)) == {"tokens"}
