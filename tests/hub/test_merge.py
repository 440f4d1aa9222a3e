"""Merges of models of the hub: what goes over the wire, and what comes of it."""

import json
import re
import shutil

import pytest
import yaml

from layerswap_method.hub.ranges import join_ranges
from layerswap_method.hub.ranges import size as ranges_size
from layerswap_method.hub.transfer import GAP
from layerswap_method.methods.read import read_recipe, read_recipe_file
from layerswap_method.methods.table import merge_models
from layerswap_method.recipe.references import find_model_files
from tests.hub.conftest import (
    ADAPTER,
    ADAPTER_LANGUAGE,
    BASE,
    DORA,
    LANGUAGE,
    SETTINGS,
    TASK,
    TIED,
    TIED_LANGUAGE,
    Machine,
    commit_of,
    content,
)
from tests.standins.hub import running
from tests.standins.studies import write_expert

pytestmark = pytest.mark.slow  # commands in processes of their own, against a server


def weights(repositories, name):
    return sorted((repositories / name / commit_of(name)).glob("*.safetensors"))


def size(files):
    return sum(file.stat().st_size for file in files)


@pytest.mark.parametrize(
    ("setting", "download"),
    [*((setting, "ranges") for setting in SETTINGS), ("swap", "whole"), ("tied", "whole")],
)
def test_a_merge_equals_that_of_whole_models(setting, download, machine, expected):
    out = machine.merge(machine.recipe(**SETTINGS[setting]), "out", "--download", download)
    assert content(out) == expected(setting)
    assert len(content(out)) > 5


COUNT = """
import functools, sys
import layerswap
from layerswap_method.methods.table import METHODS
built = []
def counted(build, *arguments):
    built.append(build)
    return build(*arguments)
for name, method in METHODS.items():
    METHODS[name] = method._replace(build=functools.partial(counted, method.build))
layerswap.merge(sys.argv[1], "out")
print("built", len(built))
"""


MAC = """
import os, sys
for name in ("fdatasync", "sched_getaffinity", "copy_file_range", "posix_fadvise"):
    delattr(os, name)
import layerswap
layerswap.merge(sys.argv[1], "out", verify=True)
"""


def test_a_merge_needs_nothing_that_only_linux_has(own_hub, expected):
    (base,) = (own_hub.hub.root / BASE).iterdir()
    names = {"a.spm", "b.bpe", "c.vocab", "spiece.txt", "tokenizer.bin"}
    for name in names:  # a merge of this folder copies them
        (base / name).write_text("of a tokenizer")
    code, output = own_hub.run("python", "-c", MAC, own_hub.recipe())
    assert code == 0, output
    written = content(own_hub.home / "out")
    assert names <= written.keys()
    assert {file: written[file] for file in expected("swap") if "tensors" in file} == {
        file: digest for file, digest in expected("swap").items() if "tensors" in file
    }


def without_tokenizer(hub):
    (folder,) = (hub.root / LANGUAGE).iterdir()
    for file in folder.glob("tokenizer*"):
        file.unlink()
    return {}


def with_fifteen_experts(hub):
    names = [f"tiny/expert-{number}" for number in range(15)]
    for seed, name in enumerate(names):
        write_expert(hub.root / name / commit_of(name), seed, layers=5, hidden=128)
    return {"task": names[:8], "language": names[8:], "base": names[0]}


@pytest.mark.parametrize(
    ("prepare", "download"),
    [
        (lambda hub: {}, "whole"),
        (lambda hub: SETTINGS["tied"], "ranges"),
        (without_tokenizer, "ranges"),
        (with_fifteen_experts, "whole"),
    ],
    ids=["swap", "tied", "no tokenizer", "fifteen experts"],
)
def test_a_merge_is_planned_once(prepare, download, own_hub):
    recipe = own_hub.recipe(**prepare(own_hub.hub))
    code, output = own_hub.run("python", "-c", COUNT, recipe, LAYERSWAP_DOWNLOAD=download)
    assert code == 0, output
    assert output.splitlines()[-1] == "built 1"
    assert own_hub.hub.bytes["store"] > 0


@pytest.mark.parametrize("setting", ["swap", "top", "float32"])
def test_no_more_goes_over_the_wire_than_is_read(setting, machine, with_all):
    document = read_recipe_file(machine.recipe(**SETTINGS[setting])).document
    recipe = read_recipe(document)
    cache = str(with_all.cache)
    models = {n: find_model_files(n, cache_dir=cache) for n in recipe.references}
    ranges = merge_models(recipe, models).ranges
    read = sum(ranges_size(join_ranges(spans, GAP)) for spans in ranges.values())
    assert machine.run("layerswap", "check", machine.recipe(**SETTINGS[setting]))[0] == 0
    sampled = machine.hub.bytes["store"]
    assert sampled < 9_000_000
    machine.hub.forget()
    machine.merge(machine.recipe(**SETTINGS[setting]), "out")
    whole = len([*machine.cache.glob("models--*/snapshots/*/*.safetensors")])
    assert read - sampled <= machine.hub.bytes["store"] <= read + 800_000 * whole


@pytest.mark.parametrize("download", ["ranges", "whole"])
def test_the_same_merge_again_downloads_nothing(download, machine):
    out = machine.merge(machine.recipe(), "out", "--download", download)
    machine.hub.forget()
    assert content(machine.merge(machine.recipe(), "again")) == content(out)
    assert machine.hub.bytes["store"] == 0


def test_files_that_are_not_read_are_not_downloaded(machine, repositories):
    by_default = {"LAYERSWAP_DOWNLOAD": ""}
    recipe = machine.recipe(bottom_layers=2, top_layers=0, non_layer="task")
    code, output = machine.run("layerswap", "check", recipe, **by_default)
    assert code == 0
    said, said_of_ranges = re.search(
        r"the downloads need ([\d.]+) MB of disk below .+ \(with --download ranges ([\d.]+) MB\)",
        output,
    ).groups()
    machine.hub.forget()
    machine.merge(recipe, "out", **by_default)
    fetched = {
        file.name
        for file in machine.cache.glob("models--*/snapshots/*/*.safetensors")
        if file.parents[2].name.endswith("language")
    }
    assert not list(machine.cache.glob("models--acme--base/snapshots/*/*.safetensors"))
    assert 0 < len(fetched) < len(weights(repositories, LANGUAGE))
    whole = size(weights(repositories, TASK)) + size(
        file for file in weights(repositories, LANGUAGE) if file.name in fetched
    )
    assert machine.hub.bytes["store"] == whole
    assert whole / 1e6 == pytest.approx(float(said), rel=0.01)
    assert float(said_of_ranges) < float(said)


def test_a_model_that_is_in_the_cache_is_used_whole(with_all):
    with_all.hub.forget()
    with_all.merge(with_all.recipe(), "used")
    assert with_all.hub.bytes["store"] == 0
    assert not with_all.own_cache.exists()


@pytest.mark.parametrize("program", ["layerswap", "mergekit-yaml"])
def test_commits_are_written_and_the_recipe_of_the_user_stays(program, machine):
    recipe = machine.recipe()
    before = recipe.read_text()
    merge = ["merge"] if program == "layerswap" else []
    assert machine.run(program, *merge, recipe, "out")[0] == 0
    assert recipe.read_text() == before
    copy = (machine.home / "out" / "mergekit_config.yml").read_text()
    names = (BASE, TASK, LANGUAGE)
    assert copy == "".join(
        f"{line}@{commit_of(line.split()[-1])}\n" if line.endswith(names) else f"{line}\n"
        for line in before.splitlines()
    )
    plan = json.loads((machine.home / "out" / "layer_swap_plan.json").read_text())
    assert plan["commits"] == {name: commit_of(name) for name in names}
    assert copy in (machine.home / "out" / "README.md").read_text()
    resolved = [path for _, _, path, *_ in machine.hub.requests if path.endswith("/revision/main")]
    assert sorted(resolved) == sorted(f"/api/models/{name}/revision/main" for name in names)
    machine.hub.forget()
    (machine.home / "pinned.yml").write_text(copy)
    out = machine.merge("pinned.yml", "again")
    assert content(out) == content(machine.home / "out") | {
        "layer_swap_plan.json": content(out)["layer_swap_plan.json"]
    }
    assert not [path for _, _, path, *_ in machine.hub.requests if path.endswith("/main")]


def test_check_says_beforehand_what_a_merge_downloads(machine):
    code, output = machine.run("layerswap", "check", machine.recipe())
    assert code == 0
    said = {
        name: re.search(rf"{name}@{commit_of(name)}: ([\d.]+) of 21.9 MB of its wei", output)[1]
        for name in (TASK, LANGUAGE, BASE)
    }
    assert said[BASE] == "0"
    assert re.search(r"the downloads need 2\d\.\d MB of disk below ", output)
    assert "the merge itself needs 21.9 MB of disk" in output
    machine.hub.forget()
    machine.merge(machine.recipe(), "out")
    fetched = machine.hub.bytes["store"] / 1e6
    assert fetched == pytest.approx(float(said[TASK]) + float(said[LANGUAGE]), rel=0.01)
    machine.hub.forget()
    code, output = machine.run("layerswap", "check", machine.recipe())
    assert f"{TASK}@{commit_of(TASK)}: 0 of " in output
    assert machine.hub.bytes["store"] == 0


def test_check_counts_whole_files_that_are_there_in_the_size_of_a_model(machine):
    recipe = machine.recipe(bottom_layers=1, top_layers=0, non_layer="task")
    machine.merge(recipe, "out")
    assert [*machine.cache.glob("models--acme--task/snapshots/*/*.safetensors")]
    output = machine.run("layerswap", "check", recipe)[1]
    assert f"{TASK}@{commit_of(TASK)}: 0 of 21.9 MB of its weights will be dow" in output


def test_check_without_a_network_looks_at_what_a_merge_fetched(machine):
    machine.merge(machine.recipe(), "out")
    code, output = machine.run("layerswap", "check", machine.recipe(), HF_HUB_OFFLINE="1")
    assert code == 0
    assert f"{TASK}@{commit_of(TASK)}: 0 of 21.9 MB of its weights will be dow" in output
    assert output.splitlines()[-1] == "1 recipe: 0 errors, 0 warnings"


@pytest.fixture
def own_hub(repositories, tmp_path):
    """Return a machine whose hub's repositories may be changed."""
    root = tmp_path / "repositories"
    for name in (BASE, TASK, LANGUAGE):
        shutil.copytree(repositories / name, root / name)
    for name in (TIED, TIED_LANGUAGE):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).symlink_to(repositories / name)
    with running(root) as hub:
        yield Machine(tmp_path / "machine", hub)


def test_check_looks_at_the_commit_that_a_merge_takes(own_hub):
    own_hub.download(BASE, TASK, LANGUAGE)
    repository, commit = own_hub.hub.root / TASK, "f" * 40
    shutil.copytree(repository / commit_of(TASK), repository / commit)
    (weights_file,) = (repository / commit).glob("model-00002*")
    with weights_file.open("r+b") as opened:
        opened.seek(-4, 2)
        opened.write(b"zzzz")
    code, output = own_hub.run("layerswap", "check", own_hub.recipe())
    assert code == 0
    said = re.search(rf"{TASK}@{commit}: ([\d.]+) of 21.9 MB of its weights", output)[1]
    assert LANGUAGE + "@" + commit_of(LANGUAGE) not in output
    own_hub.hub.forget()
    own_hub.merge(own_hub.recipe(), "out")
    assert own_hub.hub.bytes["store"] / 1e6 == pytest.approx(float(said), rel=0.01)


def test_a_commit_that_leaves_the_weights_downloads_none(own_hub):
    own_hub.download(BASE, TASK, LANGUAGE)
    shutil.copytree(own_hub.hub.root / TASK / commit_of(TASK), own_hub.hub.root / TASK / ("f" * 40))
    (own_hub.hub.root / TASK / ("f" * 40) / "README.md").write_text("A new card.")
    own_hub.hub.forget()
    out = own_hub.merge(own_hub.recipe(), "out")
    assert f"model: {TASK}@{'f' * 40}\n" in (out / "mergekit_config.yml").read_text()
    assert own_hub.hub.bytes["store"] == 0


def test_damaged_weights_on_the_hub_are_an_error_of_check_and_merge(own_hub):
    (own_hub.hub.root / TASK / commit_of(TASK) / "model-00002-of-00004.safetensors").write_bytes(
        b"\xff" * 5000
    )
    error = f"{TASK}: model-00002-of-00004.safetensors is no safetensors file: its header would"
    for words in (["check", own_hub.recipe()], ["merge", own_hub.recipe(), "out"]):
        code, output = own_hub.run("layerswap", *words)
        assert code == 2
        assert error in output


def test_weights_that_are_pickles_are_named(own_hub):
    folder = own_hub.hub.root / TASK / commit_of(TASK)
    for file in folder.glob("model*"):
        file.unlink()
    (folder / "pytorch_model-00001-of-00002.bin").write_bytes(b"pickle")
    for words in (["check", own_hub.recipe()], ["merge", own_hub.recipe(), "out"]):
        code, output = own_hub.run("layerswap", *words)
        assert code == 2
        assert f"{TASK}: only pickled weights (pytorch_model-00001-of-00002.bin)" in output
    code, output = own_hub.run("layerswap", "verify", TASK, BASE)
    assert code == 2
    assert "; pickled weights (*.bin) are never downloaded" in output
    assert not [*own_hub.home.rglob("*.bin")]


@pytest.mark.parametrize("revision", ["v1.0", "refs/pr/1", "a/branch"])
def test_a_revision_is_a_tag_a_branch_or_a_pull_request(revision, machine, expected):
    machine.hub.tags[TASK, revision] = commit_of(TASK)
    recipe = machine.recipe(f"{TASK}@{revision}")
    assert machine.run("layerswap", "check", recipe)[0] == 0
    out = machine.merge(recipe, "out")
    weights_names = [name for name in content(out) if name.endswith(".safetensors")]
    assert weights_names
    for name in weights_names:
        assert content(out)[name] == expected("swap")[name]
    assert f"model: {TASK}@{commit_of(TASK)}\n" in (out / "mergekit_config.yml").read_text()
    machine.merge(recipe, "again", HF_HUB_OFFLINE="1")


def test_check_finds_what_does_not_fit_before_a_byte_of_weights_is_there(machine):
    recipe = machine.recipe(bottom_layers=9, top_layers=4)
    code, output = machine.run("layerswap", "check", recipe)
    assert code == 2
    assert "is more than the model's 12 layers" in output
    code, output = machine.run("layerswap", "check", machine.recipe(task=TIED))
    assert code == 2
    assert "ties its output embedding to the input embedding and" in output
    for name in ("acme/none", "acme/a name"):
        code, output = machine.run("layerswap", "check", machine.recipe(task=name))
        assert code == 2
        assert f"error: {name}: " in output


def test_what_is_all_read_is_downloaded_whole_by_the_library(machine, repositories):
    setting = {"bottom_layers": 1, "top_layers": 0, "non_layer": "task"}
    machine.merge(machine.recipe(**setting), "out")
    cached = machine.cache.glob("models--acme--task/snapshots/*/*.safetensors")
    whole = {file.name for file in weights(repositories, TASK)}
    assert {file.name for file in cached} == whole - {"model-00001-of-00004.safetensors"}
    assert not [*machine.cache.glob("models--acme--language/snapshots/*/*.safetensors")]


def test_a_recipe_that_needs_whole_models_says_so(machine):
    recipe = machine.recipe(**SETTINGS["magnitude"])
    code, output = machine.run("layerswap", "check", recipe)
    assert code == 0
    assert "the models are downloaded whole: the recipe measures all weights" in output
    assert f"{BASE}@{commit_of(BASE)}: 21.9 of 21.9 MB of its weights" in output
    code, output = machine.run("layerswap", "merge", recipe, "out")
    assert code == 0
    for name in (BASE, TASK, LANGUAGE):
        assert f"{name} is downloaded whole: the recipe measures all weights" in output
    code, output = machine.run("layerswap", "merge", recipe, "again")
    assert code == 0
    assert "downloaded whole" not in output


def test_a_merge_goes_through_a_proxy(machine, expected):
    proxy = {"HF_ENDPOINT": "http://hub.invalid", "HTTP_PROXY": machine.hub.endpoint}
    out = machine.merge(machine.recipe(), "out", NO_PROXY="127.0.0.1", **proxy)
    assert content(out) == expected("swap")


def test_check_looks_at_a_model_whose_config_alone_is_cached(machine):
    code = "import sys; from huggingface_hub import hf_hub_download as get\n"
    code += "for name in sys.argv[1:]: get(name, 'config.json')"
    assert machine.run("python", "-c", code, BASE, TASK, LANGUAGE)[0] == 0
    code, output = machine.run("layerswap", "check", machine.recipe(), HF_HUB_OFFLINE="1")
    unread = "its weights are not on this machine, and the hub cannot be reached; its layers and sh"
    assert output.count(unread) == 3
    assert output.splitlines()[-1] == "1 recipe: 0 errors, 0 warnings, 3 models not checked"
    code, output = machine.run("layerswap", "check", machine.recipe())
    assert output.count(" of its weights will be downloaded") == 3
    assert output.splitlines()[-1] == "1 recipe: 0 errors, 0 warnings"


def test_check_says_beforehand_what_a_merge_downloads_of_adapters(machine):
    recipe = machine.recipe(**SETTINGS["adapters"])
    code, output = machine.run("layerswap", "check", recipe)
    assert code == 0
    assert output.splitlines()[-1] == "1 recipe: 0 errors, 0 warnings"
    said = re.findall(r"note: (\S+)@\w+: ([\d.]+) of ([\d.]+) MB of its weights", output)
    assert {name for name, *_ in said} == {BASE, ADAPTER, ADAPTER_LANGUAGE}
    machine.hub.forget()
    machine.merge(recipe, "out")
    fetched = machine.hub.bytes["store"] / 1e6
    assert fetched == pytest.approx(sum(float(part) for _, part, _ in said), rel=0.01)


def test_no_more_of_an_adapter_goes_over_the_wire_than_is_read(machine, repositories):
    setting = SETTINGS["adapters"] | {"bottom_layers": 3, "top_layers": 0, "non_layer": "task"}
    machine.merge(machine.recipe(**setting), "out")
    (adapter,) = weights(repositories, ADAPTER_LANGUAGE)
    (partial,) = machine.own_cache.glob("models--acme--adapter_language/blobs/*.ranges")
    there = partial.with_suffix("")
    assert there.stat().st_size == size([adapter])
    assert there.stat().st_blocks * 512 < 0.6 * size([adapter])


def test_check_names_an_adapter_that_the_hub_does_not_have(machine):
    code, output = machine.run("layerswap", "check", machine.recipe(task=f"{BASE}+acme/none"))
    assert code == 2
    assert "acme/none: no such folder" in output
    assert "there is no such model, or it is private" in output
    assert "rename a folder" not in output


def test_an_adapter_that_mergekit_merges_is_downloaded_whole(machine, repositories):
    recipe = machine.recipe(task=f"{BASE}+{DORA}")
    code, output = machine.run("layerswap", "check", recipe)
    assert code == 0
    assert (
        "the models are downloaded whole: only mergekit can merge this recipe: the adapter of "
        in output
    )
    code, output = machine.run("mergekit-yaml", recipe, "out")
    assert code == 0, output
    assert weights(repositories, DORA)[0].name in {
        file.name for file in machine.cache.glob("models--acme--dora/snapshots/*/*")
    }


def test_adapters_are_swapped_without_the_weights_of_their_base(machine, repositories):
    recipe = machine.recipe(**SETTINGS["adapters"])
    code, output = machine.run("layerswap", "swap-adapters", recipe, "--out", "swapped")
    assert code == 0, output
    adapters = size(
        file for name in (ADAPTER, ADAPTER_LANGUAGE) for file in weights(repositories, name)
    )
    assert adapters <= machine.hub.bytes["store"] <= adapters + 4_000_000  # headers, a few rows
    plan = json.loads((machine.home / "swapped" / "layer_swap_plan.json").read_text())
    assert plan["commits"] == {name: commit_of(name) for name in (BASE, ADAPTER, ADAPTER_LANGUAGE)}
    machine.download(BASE, ADAPTER, ADAPTER_LANGUAGE)
    assert machine.run("layerswap", "swap-adapters", recipe, "--out", "whole")[0] == 0
    assert content(machine.home / "whole") == content(machine.home / "swapped")


def test_compat_downloads_headers_and_a_few_rows(machine):
    compat = ("layerswap", "compat", TASK, LANGUAGE, "--base", BASE)
    code, output = machine.run(*compat)
    assert code == 0, output
    assert machine.hub.bytes["store"] < 9_000_000
    assert not [*machine.cache.rglob("*.safetensors")]
    machine.download(BASE, TASK, LANGUAGE)
    assert machine.run(*compat) == (0, output)


def test_check_says_that_mergekit_downloads_whole_models(machine):
    recipe = {"merge_method": "slerp", "base_model": BASE, "parameters": {"t": 0.5}}
    recipe |= {"models": [{"model": BASE}, {"model": TASK}], "dtype": "bfloat16"}
    (machine.home / "slerp.yml").write_text(yaml.safe_dump(recipe))
    code, output = machine.run("layerswap", "check", "slerp.yml")
    assert code == 0, output
    assert "the models are downloaded whole: the merge method is mergekit's" in output
    assert f"{TASK}@{commit_of(TASK)}: 21.9 of 21.9 MB of its weights will be dow" in output
    machine.hub.forget()
    assert machine.run("layerswap", "merge", "slerp.yml", "out")[0] == 0
    assert machine.hub.bytes["store"] == pytest.approx(2 * 21_913_856, rel=0.01)
