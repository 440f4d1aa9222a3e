"""Files that are there in part: never a hole, never taken for whole, listed and removed."""

import os
import shutil
import subprocess
import time

import pytest
from huggingface_hub import constants

from ablations.machine.fingerprint import FileHashes, claimed_sha256, fingerprint_checkpoint
from layerswap_method.checkpoint.checkpoint import read_checkpoint
from layerswap_method.checkpoint.config import own_file
from layerswap_method.checkpoint.stored import read_tensor
from layerswap_method.errors import InputError
from layerswap_method.hub.cache import remove_models
from layerswap_method.hub.downloads import Downloads
from layerswap_method.hub.partial import create, has_length, is_partial, list_of, ranges_there
from layerswap_method.hub.ranges import lacking
from layerswap_method.recipe.references import find_model_files
from tests.hub.conftest import BASE, LANGUAGE, TASK, Machine, commit_of, content
from tests.standins import merging
from tests.standins.hub import running


def folder_of(machine, name):
    return machine.own_cache / f"models--{name.replace('/', '--')}" / "snapshots" / commit_of(name)


@pytest.fixture(scope="module")
def home_of_merged(repositories, tmp_path_factory):
    """Return the home of a machine that has merged. Do not write to it."""
    with running(repositories) as hub:
        machine = Machine(tmp_path_factory.mktemp("merged"), hub)
        machine.merge(machine.recipe(), "out")
    return machine.home


@pytest.fixture
def merged(home_of_merged, hub, tmp_path):
    """Return a machine that has merged, and so has byte ranges of the models."""
    home = tmp_path / "machine"
    subprocess.run(["cp", "-a", "--sparse=always", home_of_merged, home], check=True)
    return Machine(home, hub)


def test_a_hole_is_an_error_and_what_is_there_is_right(merged, repositories):
    partial = read_checkpoint(LANGUAGE, folder_of(merged, LANGUAGE))
    whole = read_checkpoint(LANGUAGE, repositories / LANGUAGE / commit_of(LANGUAGE))
    missing = []
    for name, stored in partial.tensors.items():
        span = (stored.offset, stored.offset + stored.nbytes)
        if is_partial(stored.file) and lacking([span], ranges_there(stored.file)):
            missing.append(name)
            with pytest.raises(InputError, match=f"{name} was not downloaded; merge from"):
                read_tensor(stored)
        else:
            assert read_tensor(stored).equal(read_tensor(whole.tensors[name]))
    layers = {int(name.split(".")[2]) for name in missing}
    assert {*range(3, 10)} <= layers < {*range(12)}
    assert len(partial.tensors) > len(missing) > 40


def test_a_recipe_that_names_our_folder_is_refused_where_something_is_missing(merged):
    models = {
        role: folder_of(merged, name) for role, name in (("task", TASK), ("language", LANGUAGE))
    }
    recipe = merging.write_recipe(
        merged.home / "folders.yml", merging.recipe(models, {"bottom_layers": 9, "top_layers": 1})
    )
    code, output = merged.run("layerswap", "merge", recipe, "other")
    assert code == 2
    assert "was not downloaded; merge from the hub id" in output
    assert not (merged.home / "other").exists()


def test_the_hash_of_a_partial_file_is_that_of_the_whole(merged, repositories):
    partial, whole = folder_of(merged, LANGUAGE), repositories / LANGUAGE / commit_of(LANGUAGE)
    names = sorted(file.name for file in whole.glob("*.safetensors"))
    for name in names:
        hashes = FileHashes().of([partial / name, whole / name])
        assert hashes[partial / name] == hashes[whole / name]
    assert all(claimed_sha256(partial / name) is not None for name in names)
    assert any(is_partial((partial / name).resolve()) for name in names)
    assert fingerprint_checkpoint(partial) == fingerprint_checkpoint(whole)


@pytest.mark.slow
def test_the_hubs_own_cache_never_has_a_partial_file(merged, repositories):
    code = "from huggingface_hub import scan_cache_dir; print(*scan_cache_dir().warnings)"
    assert merged.run("python", "-c", code) == (0, "\n")
    merged.download(TASK, LANGUAGE, BASE)
    for name in (TASK, LANGUAGE, BASE):
        cached = merged.cache / f"models--{name.replace('/', '--')}" / "snapshots" / commit_of(name)
        for file in (repositories / name / commit_of(name)).glob("*.safetensors"):
            assert (cached / file.name).read_bytes() == file.read_bytes()
    merged.hub.forget()
    out = merged.merge(merged.recipe(), "again")
    assert merged.hub.bytes["store"] == 0
    assert content(out) == content(merged.home / "out")
    assert "byte ranges" not in (out / "README.md").read_text()


def test_what_was_checked_stands_in_the_card(merged):
    card = (merged.home / "out" / "README.md").read_text()
    for name in (TASK, LANGUAGE):
        assert (
            f"{name}@{commit_of(name)}: byte ranges were downloaded; checked: commit, size, header "
            "and length of each range, but no SHA-256 of a whole file"
        ) in card
    assert f"{BASE}@{commit_of(BASE)}: byte ranges" not in card


def test_another_merge_fetches_what_it_reads_more(merged):
    merged.hub.forget()
    blob = (folder_of(merged, LANGUAGE) / "model-00002-of-00004.safetensors").resolve()
    before = ranges_there(blob)
    out = merged.merge(merged.recipe(bottom_layers=5, top_layers=1), "more")
    assert 0 < merged.hub.bytes["store"] < 12_000_000
    assert ranges_there(blob) != before
    assert (out / "model.safetensors").is_file()


def test_links_of_our_folder_lead_into_the_hubs_cache_only(merged, tmp_path):
    folder = folder_of(merged, BASE)
    assert own_file(BASE, folder, folder / "config.json").is_file()
    outside = tmp_path / "outside.json"
    outside.write_text("{}")
    (folder / "generation_config.json").unlink()
    (folder / "generation_config.json").symlink_to(outside)
    with pytest.raises(InputError, match="outside of the model's folder"):
        own_file(BASE, folder, folder / "generation_config.json")


@pytest.mark.slow
def test_the_cache_is_listed_and_removed(merged):
    code, output = merged.run("layerswap", "cache")
    listed = output.splitlines()
    assert code == 0
    assert [line.split(":")[0] for line in listed] == [BASE, LANGUAGE, TASK, str(merged.own_cache)]
    # One of its four files is read whole, so it is in the hub's cache.
    assert f" of 17.6 MB, last downloaded {time.strftime('%Y-')}" in listed[1]
    code, output = merged.run("layerswap", "cache", "acme/langauge", "--remove")
    assert code == 2
    assert "did you mean 'acme/language'?" in output
    assert merged.allocated() > 5_000_000
    assert merged.run("layerswap", "cache", LANGUAGE, "--remove")[1].startswith(f"{LANGUAGE}: remo")
    assert not folder_of(merged, LANGUAGE).exists()
    assert folder_of(merged, TASK).exists()
    assert merged.run("layerswap", "cache", "--remove")[0] == 0
    assert merged.run("layerswap", "cache")[1] == f"{merged.own_cache}: 0 bytes\n"
    assert content(merged.merge(merged.recipe(), "again")) == content(merged.home / "out")


@pytest.mark.slow
def test_what_is_being_downloaded_is_not_removed(machine):
    machine.hub.delay_s = 0.05
    process = machine.start_fetching(TASK)
    while machine.hub.bytes["store"] < 1_500_000:
        assert process.poll() is None
        time.sleep(0.002)
    machine.hub.delay_s = 1  # a megabyte takes longer than the command below, on a busy machine too
    code, output = machine.run("layerswap", "cache", "--remove")
    machine.hub.delay_s = 0.05
    assert code == 1
    assert f"{TASK}: another process is downloading it; let it end" in output
    assert process.communicate()[0] == ""
    assert process.returncode == 0


def test_a_download_that_begins_while_a_model_is_removed_keeps_its_files(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    blob = tmp_path / "hub-layerswap" / "models--acme--task" / "blobs" / "file"
    create(blob, 100)
    remove = shutil.rmtree

    def begin_a_download(folder):
        create(blob, 100)
        remove(folder)

    monkeypatch.setattr(shutil, "rmtree", begin_a_download)
    assert [model.name for model in remove_models([TASK])] == [TASK]
    assert [path.name for path in (tmp_path / "hub-layerswap").iterdir()] == ["models--acme--task"]
    assert has_length(blob, 100)


def test_a_model_whose_weights_come_whole_leaves_no_partial_file(hub, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
    template = hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    cache = str(tmp_path / "hub")
    folder = Downloads("ranges", cache).folder(TASK, None)
    before = read_checkpoint(TASK, folder).tensors
    whole = find_model_files(TASK, cache_dir=cache).folder
    assert not [*(tmp_path / "hub-layerswap").rglob("*.ranges")]
    after = read_checkpoint(TASK, whole).tensors
    for name, stored in before.items():  # whoever read the headers before reads on
        assert read_tensor(stored).equal(read_tensor(after[name]))


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage", [lambda blob: blob.unlink(), lambda blob: os.truncate(blob, 5_000_000)]
)
def test_a_partial_file_that_is_gone_or_was_cut_off_is_fetched_again(damage, merged):
    """Whoever cleans a disk by size or age takes the file and leaves its list."""
    damage((folder_of(merged, LANGUAGE) / "model-00002-of-00004.safetensors").resolve())
    merged.hub.forget()
    out = merged.merge(merged.recipe(), "again")
    assert content(out) == content(merged.home / "out")
    assert 0 < merged.hub.bytes["store"] < 7_000_000


@pytest.mark.slow
def test_a_record_of_files_that_was_left_empty_is_made_again(merged):
    (record,) = merged.own_cache.glob("models--acme--task/records/*.json")
    before = record.read_text()
    record.write_text("")
    out = merged.merge(merged.recipe(), "again")
    assert content(out) == content(merged.home / "out")
    assert record.read_text() == before


def test_the_list_of_a_file_that_was_removed_is_forgotten(tmp_path):
    file = tmp_path / "blobs" / "file"
    create(file, 100)
    list_of(file).write_text("10 20\n")
    assert ranges_there(file) == [(10, 20)]
    another = tmp_path / "another"
    another.write_text("30 40\n")
    another.replace(list_of(file))
    assert ranges_there(file) == [(30, 40)]
    file.unlink()
    create(file, 100)
    assert ranges_there(file) == []


@pytest.mark.slow
def test_what_is_no_model_in_our_folder_is_left_alone(merged):
    others = [merged.own_cache / name for name in ("models--odd", "models--acme--link", "notes")]
    others[0].write_text("")
    others[1].symlink_to("nowhere")
    others[2].mkdir()
    (merged.own_cache / "models--acme--task" / "blobs" / "link").symlink_to("nowhere")
    code, output = merged.run("layerswap", "cache")
    assert code == 0
    listed = [line.split(":")[0] for line in output.splitlines()]
    assert listed == [BASE, LANGUAGE, TASK, str(merged.own_cache)]
    assert merged.run("layerswap", "cache", "--remove")[0] == 0
    assert sorted(merged.own_cache.iterdir()) == sorted(others)
    assert merged.run("layerswap", "cache", "--remove") == (0, "nothing to remove\n")
    code, output = merged.run("layerswap", "cache", TASK)
    assert (code, output) == (
        2,
        f"Error: {TASK}: nothing of it is in {merged.own_cache}, which has no model\n",
    )
