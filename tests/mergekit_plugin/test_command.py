"""`mergekit-yaml`: from file to file without mergekit's imports, and its options."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from mergekit.options import MergeOptions

from layerswap_method.mergekit_plugin.run import why_mergekit
from tests.mergekit_plugin.conftest import NUM_LAYERS, files_of, write_recipe
from tests.standins import merging
from tests.standins.merging import linear_recipe, revert_recipe
from tests.standins.oracle import Swap, assert_same, expected, stored

SWAP = Swap(NUM_LAYERS, b=2, u=1, t_b=0, t_u=0)
EXECUTOR = {"transformers", "peft", "mergekit.config", "mergekit.graph", "mergekit.merge"}


def document_of(kind, experts):
    if kind == "delta_revert":
        return revert_recipe(experts.task, experts.base, {"bottom_layers": 2})
    changes = {"copies": {"non_layer": "task"}, "averages": {}}[kind]
    return experts.recipe(parameters={"bottom_layers": 2, "top_layers": 1, **changes})


@pytest.mark.parametrize(
    ("kind", "unneeded"),
    [
        ("copies", {"torch", *EXECUTOR}),
        ("delta_revert", {"torch", *EXECUTOR}),
        ("averages", EXECUTOR),
    ],
)
def test_the_program_imports_no_mergekit_and_writes_what_run_merge_writes(
    kind, unneeded, command, experts, tmp_path
):
    document = document_of(kind, experts)
    done = command(document)
    assert done.exit_code == 0, done.output
    assert "from file to file" in done.output
    assert not done.imported & unneeded
    assert {"mergekit", "layerswap_method.merge"} <= done.imported
    within = merging.merge(document, tmp_path / "within" / "merged", copy_tokenizer=True)
    assert files_of(done.folder) == files_of(within)
    assert {"config.json", "README.md", "mergekit_config.yml", "tokenizer.json"} <= {
        *files_of(within)
    }
    if kind == "averages":
        assert_same(stored(within), expected(SWAP, stored(experts.task), stored(experts.language)))


@pytest.mark.parametrize(
    ("options", "absent", "many_shards"),
    [
        (["--out-shard-size", "3K"], set(), True),
        (["--no-copy-tokenizer"], {"tokenizer.json", "tokenizer_config.json"}, False),
        (["--no-write-model-card"], {"README.md", "mergekit_config.yml"}, False),
        (["--lazy-unpickle", "--device", "cpu", "--no-cuda"], set(), False),
        (["--trust-remote-code", "--random-seed", "3", "-j", "1", "-v"], set(), False),
        (["--lora-merge-cache", "cache", "--transformers-cache", "cache"], set(), False),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_options_that_a_merge_from_file_to_file_follows(
    options, absent, many_shards, command, experts, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    done = command(document_of("copies", experts), *options)
    assert done.exit_code == 0, done.output
    assert not done.imported & EXECUTOR
    swap = Swap(NUM_LAYERS, 2, 1, 0, 0, "task")
    assert_same(stored(done.folder), expected(swap, stored(experts.task), stored(experts.language)))
    assert (len(list(done.folder.glob("*.safetensors"))) > 1) == many_shards
    usual = {"tokenizer.json", "tokenizer_config.json", "README.md", "mergekit_config.yml"}
    assert usual - {*files_of(done.folder)} == absent
    assert not (tmp_path / "cache").exists()


def test_quiet_and_verbose(command, experts):
    document = document_of("copies", experts)
    assert not command(document, "--quiet", out="quiet").output
    for options in ([], ["-v"], ["-vv"]):
        said = command(document, *options, out=f"loud{len(options)}").output
        assert "8 layers: language 0-1,7; task 2-6" in said


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("options", [["--cuda"], ["--device", "cuda"]])
def test_a_gpu_that_is_not_there(options, command, experts):
    done = command(document_of("averages", experts), *options)
    assert done.exit_code == 2
    assert done.output.splitlines()[-1].startswith("Error: device cuda: there is no GPU")
    assert "Traceback" not in done.output
    assert not done.folder.parent.exists()


def test_hub_ids_are_read_from_the_cache_that_is_named(command, experts, tmp_path):
    commit = "0" * 40
    for name in ("task", "language", "base"):
        folder = tmp_path / "cache" / f"models--org--{name}"
        shutil.copytree(getattr(experts, name), folder / "snapshots" / commit)
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text(commit)
    document = document_of("copies", experts)
    local = command(document, out="local")
    hub = yaml.safe_dump(document).replace(f"{experts.root}/", "org/")
    done = command(hub, "--transformers-cache", str(tmp_path / "cache"))
    assert done.exit_code == 0, done.output
    assert not done.imported & EXECUTOR
    assert_same(stored(done.folder), stored(local.folder))
    missed = command(hub, "--transformers-cache", str(tmp_path), out="missed")
    assert missed.exit_code == 2
    assert "org/task" in missed.output
    assert not missed.folder.exists()


TO_MERGEKIT = {
    *("allow_crimes", "unsafe_truncate_embeddings", "lora_merge_dtype", "clone_tensors"),
    *("multi_gpu", "read_to_gpu", "gpu_rich"),
}


def test_every_option_of_mergekit_goes_one_way():
    sent = {name for name in MergeOptions.model_fields if why_mergekit({name: True})}
    assert sent == TO_MERGEKIT
    for name in sent:
        assert f"--{name.replace('_', '-')}" in why_mergekit({name: True})
    assert "--no-safe-serialization" in why_mergekit({"safe_serialization": False})
    assert why_mergekit(MergeOptions().model_dump()) is None


@pytest.mark.parametrize(
    "options",
    [
        {"allow_crimes": True},
        {"unsafe_truncate_embeddings": True},
        {"lora_merge_dtype": "float32"},
        {"clone_tensors": True},
        {"safe_serialization": False},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_that_only_mergekit_knows(options, experts, tmp_path, caplog):
    with caplog.at_level(logging.INFO, "layerswap"):
        out = merging.merge(experts.recipe(), tmp_path / "merged", quiet=False, **options)
    ways = [line for line in caplog.messages if "mergekit's executor" in line]
    assert len(ways) == 1
    assert next(iter(options)).split("_")[0] in ways[0].replace("-", "_")
    wanted = expected(SWAP, stored(experts.task), stored(experts.language))
    if options.get("safe_serialization") is False:
        assert_same(torch.load(out / "pytorch_model.bin", weights_only=True), wanted)
    else:
        assert_same(stored(out), wanted)
    assert (out / "layer_swap_plan.json").is_file()


@pytest.mark.slow
def test_the_program_hands_over_to_mergekit(command, experts):
    done = command(experts.recipe(), "--clone-tensors")
    assert done.exit_code == 0, done.output
    assert "mergekit's executor merges this recipe: it was called with --clone-tensors" in (
        done.output
    )
    assert "mergekit.graph" in done.imported
    assert_same(stored(done.folder), expected(SWAP, stored(experts.task), stored(experts.language)))
    unknown = command(experts.recipe(), "--no-such-option", out="unknown")
    assert unknown.exit_code == 2
    assert "No such option" in unknown.output


BARE = """
import sys
sys.meta_path[:] = [f for f in sys.meta_path if not type(f).__name__.startswith("LayerSwap")]
from mergekit.scripts.run_yaml import main
assert not any(name.startswith("layerswap") for name in sys.modules)
main()
"""


def test_a_recipe_that_is_not_there(tmp_path):
    (tmp_path / "swahili.yml").write_text("merge_method: layer_swap\n")
    program = Path(sys.executable).with_name("mergekit-yaml")
    words = [str(program), str(tmp_path / "swahil.yml"), str(tmp_path / "out")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    what = "cannot be read: No such file or directory; did you mean 'swahili.yml'?"
    assert done.stderr == f"Error: {tmp_path / 'swahil.yml'}: {what}\n"


@pytest.mark.slow
def test_other_methods_are_mergekits_alone(command, experts, tmp_path):
    """Byte for byte, and from a file of which our own reader would refuse every second line."""
    linear = linear_recipe([experts.task, experts.language])
    ties = {
        "merge_method": "ties",
        "base_model": str(experts.base),
        "models": [{"model": str(m)} for m in (experts.task, experts.language)],
        "parameters": {"weight": 1.0, "density": 0.5, "unknown": 3},
    }
    aliased = f"x: &a [1]\ny: *a\ndtype: float16\n{yaml.safe_dump(linear)}dtype: float32\n"
    for name, document in (("linear", aliased), ("ties", ties)):
        done = command(document, out=name)
        assert done.exit_code == 0, done.output
        path = write_recipe(tmp_path / "recipe.yml", document)
        subprocess.run([sys.executable, "-c", BARE, path, tmp_path / name], check=True)
        ours, theirs = files_of(done.folder), files_of(tmp_path / name)
        for files in (ours, theirs):  # a card lists the models in a random order
            files["README.md"] = sorted(files["README.md"].splitlines())
        assert ours == theirs
        assert "layerswap" not in done.output
