"""`mergekit-yaml`: from file to file, and its options."""

import logging
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from mergekit.options import MergeOptions

from layerswap_method.errors import InputError
from layerswap_method.mergekit_plugin.run import mergekit_only_option
from tests.merge.test_merge import run_merge
from tests.standins import merging
from tests.standins.experts import content
from tests.standins.merging import linear_recipe, recipe, revert_recipe, roles, write_recipe
from tests.standins.model_families import LAYERS
from tests.standins.oracle import Swap, assert_same, expected, stored


@pytest.fixture
def command(tmp_path):
    """Run the program `mergekit-yaml` as a shell does."""
    program = Path(sys.executable).with_name("mergekit-yaml")

    def run(document, *options, out="merged", code=0):
        folder = tmp_path / "program" / out
        path = write_recipe(tmp_path / "recipe.yml", document)
        words = [program, path, folder, *options]
        how = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        done = subprocess.run(words, check=False, **how)
        assert done.returncode == code, done.stdout
        return SimpleNamespace(output=done.stdout, folder=folder)

    return run


def documents(trio):
    return {
        "copies": recipe(roles(trio), COPIES.parameters(), trio.base),
        "averages": recipe(roles(trio), AVERAGES.parameters(), trio.base),
        "delta_revert": revert_recipe(trio.task, trio.base, {"bottom_layers": 2}),
    }


COPIES, AVERAGES = Swap(LAYERS, 2, 1, 0, 0, "task"), Swap(LAYERS)
USUAL = {"config.json", "tokenizer.json", "README.md", "mergekit_config.yml"}


@pytest.mark.parametrize("kind", ["copies", "averages", "delta_revert"])
def test_every_command_writes_the_same_folder(kind, trio, tmp_path):
    document = documents(trio)[kind]
    within = merging.merge(document, tmp_path / "within" / "merged", copy_tokenizer=True)
    assert run_merge(document, tmp_path / "ours" / "merged").exit_code == 0
    assert content(within) == content(tmp_path / "ours" / "merged")
    assert {*content(within)} >= USUAL


SIZES = ["--out-shard-size", "3K", "--no-copy-tokenizer", "-vv"]
OTHERS = ["--lazy-unpickle", "--device", "cpu", "--no-cuda", "--trust-remote-code", "-j", "1"]
PLACES = ["--lora-merge-cache", "c", "--transformers-cache", "c", "--no-write-model-card"]
OPTIONS = [
    (SIZES, {"tokenizer.json"}),
    ([*OTHERS, *PLACES, "--random-seed", "3", "--quiet"], {"README.md", "mergekit_config.yml"}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("options", "absent"), OPTIONS, ids=["sizes", "others"])
def test_options_that_a_merge_from_file_to_file_follows(
    options, absent, command, trio, monkeypatch
):
    monkeypatch.chdir(trio.base.parents[1])  # PARENT/base has the form of a hub id
    text = yaml.safe_dump(documents(trio)["copies"]).replace(f"{trio.base.parents[1]}/", "")
    done = command(text, *options)
    assert "mergekit's executor" not in done.output
    assert_same(stored(done.folder), expected(COPIES, stored(trio.task), stored(trio.language)))
    assert (len(list(done.folder.glob("*.safetensors"))) > 1) == ("3K" in options)
    assert USUAL - {*content(done.folder)} == absent
    assert not (trio.base.parents[1] / "c").exists()
    plan_line = "6 layers: language 0-1,5; task 2-4"
    assert (plan_line in done.output) == ("--quiet" not in options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there(merge, trio):
    done = merge(documents(trio)["averages"], "--cuda")
    assert (done.exit_code, "Error: device cuda: there is no GPU" in done.output) == (2, True)
    assert not done.folder.parent.exists()


def test_hub_ids_are_read_from_the_cache_that_is_named(merge, trio, tmp_path):
    commit = "0" * 40
    for name, model in vars(trio).items():
        folder = tmp_path / "cache" / f"models--org--{name}"
        shutil.copytree(model, folder / "snapshots" / commit)
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text(commit)
    hub = yaml.safe_dump(documents(trio)["copies"]).replace(f"{trio.base.parent}/", "org/")
    done = merge(hub, "--transformers-cache", str(tmp_path / "cache"))
    assert_same(stored(done.folder), expected(COPIES, stored(trio.task), stored(trio.language)))
    shutil.rmtree(done.folder)
    missed = merge(hub, "--transformers-cache", str(tmp_path))
    assert (missed.exit_code, "org/task" in missed.output) == (2, True)
    assert not missed.folder.exists()


def test_every_option_of_mergekit_goes_one_way():
    names = MergeOptions.model_fields.keys() - {"device"}
    sent = {name for name in names if mergekit_only_option({name: True})}
    assert sent == {
        "allow_crimes",
        "unsafe_truncate_embeddings",
        "lora_merge_dtype",
        "clone_tensors",
        "multi_gpu",
        "read_to_gpu",
        "gpu_rich",
    }
    assert [mergekit_only_option({"device": name}) for name in ("cuda:1", "cpu")] == [None, None]
    assert mergekit_only_option({"device": "xpu"}) == "it was called with --device xpu"
    reasons = [mergekit_only_option({name: True}) for name in sent]
    page = (Path(__file__).parents[2] / "docs" / "merging.md").read_text()
    for reason in (*reasons, mergekit_only_option({"safe_serialization": False})):
        assert f"`{reason.split()[-1]}`" in page
    assert mergekit_only_option(MergeOptions().model_dump()) is None


@pytest.mark.parametrize("count", [-1, 0])
def test_numbers_of_threads_that_there_are_not(count, trio, tmp_path):
    with pytest.raises(InputError, match=f"--num-threads {count}: give 1 or more"):
        merging.merge(documents(trio)["copies"], tmp_path / "out", num_threads=count)


def test_pickles_are_written_by_mergekit_alone(trio, tmp_path, caplog):
    how = {"quiet": False, "safe_serialization": False}
    with caplog.at_level(logging.INFO, "layerswap"):
        out = merging.merge(documents(trio)["averages"], tmp_path / "merged", **how)
    assert "mergekit's executor merges this recipe" in caplog.text
    wanted = expected(AVERAGES, stored(trio.task), stored(trio.language))
    assert_same(torch.load(out / "pytorch_model.bin", weights_only=True), wanted)
    assert (out / "layer_swap_plan.json").is_file()


@pytest.mark.slow
def test_the_program_hands_over_to_mergekit(command, trio):
    done = command(documents(trio)["averages"], "--clone-tensors")
    assert "it was called with --clone-tensors" in done.output


BARE = """
import sys
sys.meta_path[:] = [f for f in sys.meta_path if not type(f).__name__.startswith("LayerSwap")]
from mergekit.scripts.run_yaml import main
assert not any(name.startswith("layerswap") for name in sys.modules)
main()
"""


@pytest.mark.slow
def test_other_methods_are_mergekits_alone(command, trio, tmp_path):
    """Byte for byte, and from a file of which our own reader would refuse every second line."""
    linear = linear_recipe([trio.task, trio.language])
    ties = linear | {"merge_method": "ties", "parameters": {"density": 0.5, "unknown": 3}}
    aliased = f"x: &a [1]\ny: *a\ndtype: float16\n{yaml.safe_dump(linear)}dtype: float32\n"
    for name, document in (("linear", aliased), ("ties", ties)):
        done = command(document, out=name)
        path = write_recipe(tmp_path / "recipe.yml", document)
        subprocess.run([sys.executable, "-c", BARE, path, tmp_path / name], check=True)
        ours, theirs = content(done.folder), content(tmp_path / name)
        for files in (ours, theirs):  # a card lists the models in a random order
            files["README.md"] = sorted(files["README.md"].splitlines())
        assert ours == theirs
        assert "layerswap" not in done.output
