"""Merged folders: config, tokenizer, card and code; what mergekit must do; `layerswap verify`."""

import gc
import json
import shutil
import subprocess
from functools import partial

import pytest
import torch
import yaml
from safetensors.torch import save_file

import layerswap_method
from ablations.models.verify import compare
from ablations.recipe_commands.check import check_recipe
from layerswap_method.checkpoint.checkpoint import read_checkpoint
from layerswap_method.checkpoint.tokens import Vocabulary
from layerswap_method.errors import InputError
from layerswap_method.merge import WriteOptions
from layerswap_method.mergekit_plugin.run import mergekit_command
from layerswap_method.output import FILES, PLAN_FILE, listed_files
from layerswap_method.recipe.references import Model
from layerswap_method.tensors import OpenModel
from tests.standins.command import layerswap, told
from tests.standins.experts import assert_loads
from tests.standins.fine_tunes import (
    edited,
    restored,
    train_adapter,
    with_head,
    with_value,
)
from tests.standins.merging import merge_of, recipe, roles, tensors_of, write, write_recipe
from tests.standins.model_families import LAYERS, make_model
from tests.standins.oracle import assert_same, stored

SWAP = {"bottom_layers": 2, "top_layers": 1, "bottom_transition": 1}


def run_merge(document, out, *options):
    """Return the result of `layerswap merge`; the recipe stands beside `out`."""
    out.parent.mkdir(parents=True, exist_ok=True)
    file = write_recipe(out.parent / "recipe.yml", document)
    return layerswap("merge", file, out, *options)


def others(folder):
    return {path.name for path in folder.iterdir() if "safetensors" not in path.name}


def test_a_card_has_no_control_characters_of_a_name(trio, tmp_path):
    models = {
        role: shutil.copytree(path, tmp_path / f"{role}\x1b[2J")
        for role, path in roles(trio).items()
    }
    write(recipe(models, SWAP, trio.base), tmp_path / "me\x1b]0;rged")
    card = (tmp_path / "me\x1b]0;rged" / "README.md").read_text(encoding="utf-8")
    assert "\x1b" not in card
    assert "# me\\x1b]0;rged" in card


def test_what_a_merge_says_of_itself(trio, tmp_path):
    document, out = recipe(roles(trio), SWAP, trio.base), tmp_path / "my-merge"
    document["models"][1]["parameters"]["weight"] = 2
    text = "# fence ``` in a comment\n" + yaml.safe_dump(document)
    done = run_merge(text, out, "--verify")
    assert done.exit_code == 0, done.output
    assert "read again and compared" in done.output
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "6 layers: language 0-1,5; average 2; task 3-4" in done.output
    for said in ("# my-merge", "Layer Swapping", "6 layers: language 0-1,5", text.strip()):
        assert said in card
    assert (card.count("````"), "trust_remote_code" in card) == (4, False)
    assert yaml.safe_load(card.split("---")[1])["library_name"] == "transformers"
    assert (out / "mergekit_config.yml").read_text() == text
    record = json.loads((out / PLAN_FILE).read_text())
    assert record.pop("layerswap_version") == layerswap_method.__version__
    assert SWAP.items() <= record.pop("parameters").items()
    assert record == {
        "schema_version": 1,
        "merge_method": "layer_swap",
        "num_layers": 6,
        "layers": ["language", "language", "average", "task", "task", "language"],
        "models": [
            {"model": str(path), "role": role, "weight": float(weight)}
            for (role, path), weight in zip(roles(trio).items(), (1, 2), strict=True)
        ],
        "base_model": str(trio.base),
    }
    write(document, tmp_path / "bare", with_card=False, with_tokenizer=False)
    files = {"config.json", "generation_config.json", PLAN_FILE}
    assert others(tmp_path / "bare") == {*files, FILES}
    assert listed_files(tmp_path / "bare") >= files


def test_shards_config_and_other_files_of_the_donor(trio_copy, tmp_path):
    excluded = {"training_args.bin", "optimizer.pt", "notes.md", "eval_results.json"}
    excluded.add("modules.json")  # names folders that a merge has not
    for name in (*excluded, "tokenizer.model", "extra.py"):
        (trio_copy.base / name).write_text("x")
    (trio_copy.base / "model.safetensors.index.json.old.json").write_text("{}")
    template = "additional_chat_templates/tool_use.jinja"
    (trio_copy.base / template).parent.mkdir()
    (trio_copy.base / template).write_text("x")
    edited(trio_copy.base, dtype="float64", torch_dtype="float64")
    document, out = recipe(roles(trio_copy), SWAP, trio_copy.base), tmp_path / "out"
    write(document, out)  # the config says what the tensors are
    assert read_checkpoint("", out).config.dtype == "bfloat16"
    write(document | {"out_dtype": "float16"}, out, shard_bytes=9_000)
    assert {"tokenizer.model", "extra.py"} <= others(out)
    assert (out / template).is_file()
    assert not excluded & others(out)
    assert len(list(out.glob("*.safetensors"))) > 3
    ours, theirs = (json.loads((f / "config.json").read_text()) for f in (out, trio_copy.base))
    assert ours == theirs | {"dtype": "float16", "torch_dtype": "float16"}
    assert_loads(out)


def test_a_model_with_code_of_its_own_can_be_loaded(trio_copy, tmp_path, monkeypatch):
    """The config.json named a file that the merge did not have; it is copied, and never run."""
    from transformers import AutoConfig

    code = (
        "import os\nfrom transformers import LlamaConfig\n"
        "os.mkdir(os.environ['RAN'])\n"
        "class OwnConfig(LlamaConfig):\n    model_type = 'own'\n"
    )
    for folder in vars(trio_copy).values():
        (folder / "configuration_own.py").write_text(code)
        auto_map = {"AutoConfig": "configuration_own.OwnConfig"}
        edited(folder, model_type="own", auto_map=auto_map)
    monkeypatch.setenv("RAN", str(tmp_path / "ran"))
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    write(recipe(roles(trio_copy), SWAP, trio_copy.base), tmp_path / "out")
    assert not (tmp_path / "ran").exists()
    assert (tmp_path / "out" / "configuration_own.py").read_text() == code
    assert "trust_remote_code" in (tmp_path / "out" / "README.md").read_text()
    loaded = AutoConfig.from_pretrained(tmp_path / "out", trust_remote_code=True)
    assert (loaded.model_type, (tmp_path / "ran").exists()) == ("own", True)


def test_foreign_files_do_not_get_into_a_merge(trio_copy, tmp_path, monkeypatch):
    """A link of the donor arrived as the content of the file that it names."""
    document = recipe(roles(trio_copy), SWAP, trio_copy.base)
    (trio_copy.base / "tokenizer_config.json").write_bytes(b'{"x": "\xe9"}')
    write(document, tmp_path / "odd")
    (trio_copy.base / "tokenizer.json").rename(tmp_path / "secret.json")
    (trio_copy.base / "tokenizer.json").symlink_to(tmp_path / "secret.json")
    too_late = "layerswap_method.merge.Downloads.fetch"
    monkeypatch.setattr(too_late, lambda *_: pytest.fail("weights are downloaded"))
    with pytest.raises(InputError, match=r"tokenizer\.json is a link to .*secret"):
        write(document, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    found = check_recipe(write_recipe(tmp_path / "recipe.yml", document), hub=False)
    assert "is a link to" in str(found)


UP, HALF = "model.layers.2.mlp.up_proj.weight", {"dtype": "float16"}


def test_values_that_are_not_finite(trio, tmp_path, caplog):
    """NaN of an expert, and numbers beyond float16, went into the merge without a word."""
    for number, (value, top) in enumerate(((torch.nan, {}), (1e6, HALF), (1.0, HALF))):
        caplog.clear()
        odd = with_value(trio.task, tmp_path / f"odd{number}", UP, value)
        document = recipe({"task": odd, "language": trio.language}, SWAP, trio.base, **top)
        write(document, tmp_path / str(number), threads=2)
        said = [message for message in caplog.messages if "infinite" in message]
        # NaN is noticed in the expert, and in the average with its file.
        count = {torch.nan: 2, 1e6: 1, 1.0: 0}[value]
        assert (len(said), UP in str(said)) == (count, count > 0)
        assert (f"infinite, as in {odd}/" in str(said)) == (count == 2)


def test_multi_token_prediction_layers_are_outside_the_decoder(trio_copy):
    """A tensor mtp.layers.0 was taken for decoder layer 0; and layers behind the last one (GLM)."""
    names = ("mtp.layers.0.mlp.up_proj.weight", "model.layers.6.mlp.up_proj.weight")
    for folder in vars(trio_copy).values():
        held = stored(edited(folder, num_nextn_predict_layers=1))
        held |= {name: held[UP].clone() for name in names}
        held["encoder.norm.num_batches_tracked"] = torch.tensor(1)
        save_file(held, folder / "model.safetensors", {"format": "pt"})
    merged = merge_of(recipe(roles(trio_copy), {**SWAP, "non_layer": "task"}, trio_copy.base))
    task, found = stored(trio_copy.task), tensors_of(merged)
    assert merged.plan.num_layers == LAYERS
    assert_same({n: found[n] for n in names}, {n: task[n] for n in names})


PASSED_ON = [
    ({"tokenizer": {"source": "base"}}, "tokenizer:"),
    ({"chat_template": "auto"}, "chat_template:"),
    ({"merge_method": "slerp", "parameters": {"t": 0.5}}, "slerp"),
    ({"merge_method": "linear", "parameters": {"weight": 1}}, "linear"),
]


@pytest.mark.parametrize(("change", "reason"), PASSED_ON, ids=str)
def test_what_mergekit_must_do_is_passed_on(change, reason, trio, tmp_path, monkeypatch):
    calls = []

    def record(command, check):
        calls.append(command)
        return subprocess.CompletedProcess(command, 3)

    monkeypatch.setattr(subprocess, "run", record)
    document = recipe(roles(trio), SWAP, trio.base) | change
    if "parameters" in change:
        document["models"] = [{"model": str(each)} for each in (trio.task, trio.language)]
    files = [str(tmp_path / "recipe.yml"), str(tmp_path / "out")]
    for options, why in (([], reason), (["--cuda"], "options after --")):
        done = run_merge(document, tmp_path / "out", "--", *options)
        assert (done.exit_code, why in done.output) == (3, True), done.output
        assert "passed on to mergekit-yaml" in done.output
        words = [*files, "--out-shard-size", "5000000000", *options]
        assert calls.pop()[-len(words) :] == words
    command = mergekit_command(
        tmp_path / "recipe.yml", "out", WriteOptions(device="cuda:1"), (), ""
    )
    assert command[-2:] == ["--device", "cuda:1"]  # it computed on GPU 0
    refused = run_merge(document, tmp_path / "out", "--verify")
    assert (refused.exit_code, "--verify" in refused.output) == (2, True)


verify = partial(told, "verify")


def test_an_adapter_on_its_base_is_the_merge_of_the_same_recipe(trio, tmp_path):
    model = f"{trio.base}+{train_adapter(trio.base, tmp_path / 'adapter', r=2)}"
    write({"merge_method": "passthrough", "models": [{"model": model}]}, tmp_path / "merged")
    code, text = verify(tmp_path / "merged", model)
    assert (code, "equal: all 57 tensors" in text) == (0, True)
    code, text = verify(model, trio.base)
    assert (code, "12 of 57 common tensors differ" in text) == (1, True)


def test_layers_that_differ_are_named_with_how_much(trio, tmp_path):
    parameters = {"bottom_layers": 2, "top_layers": 1, "non_layer": "task"}
    document, merged = recipe(roles(trio), parameters, trio.base), tmp_path / "merged"
    write(document, merged)
    write(document, tmp_path / "shards", shard_bytes=20_000)
    code, text = verify(merged, tmp_path / "shards")
    assert (code, "equal: all 57 tensors" in text) == (0, True)
    said = "27 of 57 common tensors differ; layers (0-based): 0-1,5"
    code, text = verify(merged, trio.task)
    assert (code, said in text) == (1, True)
    found = compare(*(OpenModel.read(Model(path.name, path)) for path in (merged, trio.task)))
    ours, theirs = stored(merged), stored(trio.task)
    assert {each.layer for each in found.differences} == {0, 1, 5}
    for each in found.differences:
        before = theirs[each.name].double()
        apart = ours[each.name].double() - before
        assert each.largest == apart.abs().max()
        assert each.relative == pytest.approx(float(apart.norm() / before.norm()))


HEAD, NORM = "lm_head.weight", "model.norm.weight"
CHANGES = {
    "values": (HEAD, lambda t: t.index_fill_(0, torch.tensor([3]), 9), []),
    "nan": (NORM, lambda t: t * torch.nan, ["nan"]),
    "dtype": (NORM, lambda t: t.double(), ["dtypes", "all 57"]),
    "lacking": (UP, None, ["only in"]),
    "shape": (HEAD, lambda t: t[:-1].contiguous(), ["shapes"]),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_every_kind_of_difference(kind, trio, tmp_path):
    name, change, parts = CHANGES[kind]

    def edit(held):
        before = held.pop(name)
        return held if change is None else {**held, name: change(before)}

    other = restored(trio.task, tmp_path / "other", edit)
    code, text = verify(other, trio.task)
    assert code == 1
    assert all(part in text for part in (name, *parts)), text


def test_a_tied_head_may_be_stored_once(tmp_path):
    once = make_model("llama_tied", tmp_path / "once", 1)
    twice = with_head(once, tmp_path / "twice")
    empty = restored(once, tmp_path / "empty", lambda t: {**t, "model.x": torch.zeros(4, 0)})
    assert verify(empty, empty)[0] == 0
    assert verify(once, twice)[0] == verify(twice, once)[0] == 0
    edited(once, tie_word_embeddings=False)
    assert HEAD in verify(once, twice)[1]
    code, text = verify(once, tmp_path / "nowhere")
    assert (code, "no such folder" in text) == (2, True)


def test_no_tokens_are_in_memory_while_weights_are_written(trio_copy, tmp_path):
    """Those of three models of 128,256 tokens are 60 MB."""

    def vocabularies():
        gc.collect()
        return sum(type(each) is Vocabulary for each in gc.get_objects())

    file = trio_copy.task / "tokenizer.json"
    file.write_text(file.read_text().replace('"w1"', '"another"'))
    swapped = recipe(roles(trio_copy), {**SWAP, "non_layer": "task"}, trio_copy.base)
    before, counts = vocabularies(), {}
    write(swapped, tmp_path / "out", log=lambda line: counts.setdefault(line, vocabularies()))
    assert set(counts.values()) == {before}
    assert any("different vocabularies" in line for line in counts)  # so they were read
