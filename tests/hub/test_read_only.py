"""Caches that may only be read, as those that clusters share: what is there is used."""

import shutil
from contextlib import ExitStack

import pytest

from tests.hub.conftest import BASE, LANGUAGE, TASK, Machine, content
from tests.read_only import with_mount, without_permission, without_root
from tests.standins.hub import running

pytestmark = pytest.mark.slow  # commands in processes of their own, against a server

REMEDY = "set HF_HUB_CACHE to a folder inside one that you may write"


@pytest.fixture(params=["permissions", "mount"])
def lock(request):
    """Return a function: from then on programs of a machine may not write its caches."""
    with ExitStack() as stack:

        def locked(machine):
            folder = machine.cache.parent
            if request.param == "mount":
                machine.prefix = with_mount(folder)
            else:
                machine.prefix = without_root()
                stack.enter_context(without_permission(folder))

        yield locked


def test_whole_models_are_merged(lock, machine, expected):
    machine.download(BASE, TASK, LANGUAGE)
    lock(machine)
    machine.hub.forget()
    code, output = machine.run("layerswap", "merge", machine.recipe(), "out")
    assert code == 0, output
    assert "HF_HUB_CACHE" not in output
    assert content(machine.home / "out") == expected("swap")
    assert machine.hub.bytes["store"] == 0


def test_byte_ranges_are_enough_for_the_merges_that_read_no_others(lock, machine, expected):
    machine.merge(machine.recipe(), "out")
    lock(machine)
    machine.hub.forget()
    assert content(machine.merge(machine.recipe(), "again")) == expected("swap")
    code, output = machine.run(
        "layerswap", "merge", machine.recipe(bottom_layers=5, top_layers=1), "more"
    )
    assert code == 1, output
    (error,) = output.splitlines()
    assert error.startswith(f"Error: {machine.own_cache}/models--acme--language/blobs/")
    assert REMEDY in error
    assert not (machine.home / "more").exists()
    assert machine.hub.bytes["store"] == 0


def test_byte_ranges_that_may_not_be_removed_are_one_sentence(lock, machine):
    machine.merge(machine.recipe(), "out")
    lock(machine)
    code, output = machine.run("layerswap", "cache", "--remove")
    assert code == 1
    (error,) = output.splitlines()
    assert error.startswith(f"Error: {BASE}: {machine.own_cache}/models--acme--base/blobs/")
    assert error.endswith("; whoever may write that folder can remove it")
    assert machine.run("layerswap", "cache")[1].count("last downloaded") == 3


@pytest.mark.parametrize("program", ["layerswap", "mergekit-yaml"])
def test_a_model_that_is_not_there_is_one_sentence(program, lock, machine):
    machine.cache.mkdir(parents=True)
    lock(machine)
    merge = ["merge"] if program == "layerswap" else []
    code, output = machine.run(program, *merge, machine.recipe(), "out")
    assert code == 2
    (error,) = (line for line in output.splitlines() if line.startswith("Error: "))
    assert f"{machine.cache}/models--acme--task cannot be written (" in error
    assert REMEDY in error
    assert {path.name for path in machine.home.iterdir()} == {"hf", "recipe.yml"}


def test_an_older_commit_is_merged_without_the_network(lock, repositories, tmp_path, expected):
    for name in (BASE, TASK, LANGUAGE):
        shutil.copytree(repositories / name, tmp_path / "repositories" / name)
    with running(tmp_path / "repositories") as hub:
        machine = Machine(tmp_path / "machine", hub)
        machine.download(BASE, TASK, LANGUAGE)
        (commit,) = (hub.root / TASK).iterdir()
        shutil.copytree(commit, hub.root / TASK / ("f" * 40))
        (hub.root / TASK / ("f" * 40) / "config.json").write_text("{}")
        lock(machine)
        code, output = machine.run("layerswap", "merge", machine.recipe(), "out")
        assert code == 2
        assert f"{REMEDY}, or HF_HUB_OFFLINE=1 where an earlier download is enough" in output
        merged = machine.merge(machine.recipe(), "out", HF_HUB_OFFLINE="1")
        assert content(merged) == expected("swap")


def test_whole_models_are_downloaded_where_there_is_no_place_for_ranges(machine, expected):
    """Our folder lies beside the hub's cache, whose parent may be somebody else's."""
    machine.cache.mkdir(parents=True)
    machine.prefix = without_root()
    machine.cache.parent.chmod(0o555)
    try:
        code, checked = machine.run("layerswap", "check", machine.recipe())
        assert code == 0, checked
        code, output = machine.run("layerswap", "merge", machine.recipe(), "out")
    finally:
        machine.cache.parent.chmod(0o755)
    assert checked.splitlines()[-1] == "1 recipe: 0 errors, 0 warnings, 3 models not checked"
    assert code == 0, output
    for name in (BASE, TASK, LANGUAGE):
        assert (
            f"{machine.own_cache} cannot be written (Permission denied); {REMEDY}; {name} is "
            "downloaded whole"
        ) in output
    assert content(machine.home / "out") == expected("swap")
