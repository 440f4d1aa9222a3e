"""What a user reads when the hub does not give a model: one sentence, and nothing half-merged."""

import re

import pytest

from tests.hub.conftest import BASE, LANGUAGE, TASK, content
from tests.read_only import with_room

pytestmark = pytest.mark.slow  # commands in processes of their own, against a server


@pytest.mark.parametrize(
    ("task", "variables", "gated", "sentence"),
    [
        ("acme/none", {}, (), "there is no such model, or it is private; check its name, or"),
        (f"{TASK}@mian", {}, (), "there is no revision mian; did you mean 'main'?"),
        (TASK, {}, (TASK,), "the model is gated and your account has no access; ask for it at"),
        (TASK, {"HF_TOKEN": "hf_other"}, (TASK,), "the model is gated and your account has no ac"),
        (
            TASK,
            {"HF_ENDPOINT": "http://127.0.0.1:9"},
            (),
            "the hub cannot be reached ([Errno 111] Connection refused); check the network",
        ),
        (
            TASK,
            {"HF_HUB_OFFLINE": "1"},
            (),
            "does not have it (HF_HUB_OFFLINE is set); this gets it",
        ),
    ],
)
@pytest.mark.parametrize("program", ["layerswap", "mergekit-yaml"])
def test_a_refusal_is_one_sentence(program, task, variables, gated, sentence, machine):
    machine.hub.gated.update(gated)
    merge = ["merge"] if program == "layerswap" else []
    code, output = machine.run(program, *merge, machine.recipe(task), "out", **variables)
    said = [line for line in output.splitlines() if not line.startswith("INFO")]
    assert (code, len(said)) == (2, 1), output
    assert said[0].startswith(f"Error: {task}: ")
    assert sentence in said[0]
    assert {path.name for path in machine.home.iterdir()} <= {"hf", "recipe.yml"}


def test_a_gated_model_is_merged_with_the_right_token(machine):
    machine.hub.gated.update((TASK, LANGUAGE, BASE))
    machine.merge(machine.recipe(), "out", HF_TOKEN="hf_secret")


def test_access_that_ends_before_the_ranges_is_one_sentence(machine):
    assert machine.run("layerswap", "check", machine.recipe())[0] == 0
    machine.hub.gated.add(TASK)
    code, output = machine.run("layerswap", "merge", machine.recipe(), "out")
    assert code == 1
    assert output.startswith(f"Error: {TASK}: model-0000")
    assert "the model is gated and your account has no access" in output
    assert not (machine.home / "out").exists()


@pytest.mark.parametrize("download", ["ranges", "whole"])
def test_no_room_is_one_sentence(download, machine):
    machine.cache.mkdir(parents=True)
    machine.prefix = with_room(machine.cache.parent, 14_000_000)
    code, output = machine.run(
        "layerswap", "merge", machine.recipe(), "out", "--download", download
    )
    assert code == 1, output
    (error,) = (line for line in output.splitlines() if not line.startswith("downloading "))
    assert error.startswith(f"Error: {machine.cache.parent}/")
    assert re.search(r": the download needs [\d.]+ MB and the disk has [\d.]+ MB free; ", error)
    assert "make room (layerswap cache), or set HF_HUB_CACHE to a folder on another disk" in error
    assert not (machine.home / "out").exists()


def test_without_a_network_what_was_fetched_is_enough_for_the_same_merge(machine):
    out = machine.merge(machine.recipe(), "out")
    again = machine.merge(machine.recipe(), "again", HF_HUB_OFFLINE="1")
    assert content(again) == content(out)
    other = machine.recipe(bottom_layers=6, top_layers=1)
    code, output = machine.run("layerswap", "merge", other, "other", HF_HUB_OFFLINE="1")
    assert code == 1
    assert "the hub's cache does not have it (HF_HUB_OFFLINE is set); this gets it" in output
    assert not (machine.home / "other").exists()


def test_a_server_without_ranges_gives_whole_models(machine, expected):
    machine.hub.without_ranges = True
    code, output = machine.run("layerswap", "merge", machine.recipe(), "out")
    assert code == 0
    assert output.count("the server gives no byte ranges that can be checked (HTTP 200") == 1
    assert content(machine.home / "out") == expected("swap")
    assert len([*machine.cache.glob("models--acme--base/snapshots/*/*.safetensors")]) == 4


def test_check_counts_the_models_that_a_server_without_ranges_shows_it_nothing_of(machine):
    machine.hub.without_ranges = True
    code, output = machine.run("layerswap", "check", machine.recipe())
    assert code == 0
    assert output.splitlines()[-1] == "1 recipe: 0 errors, 0 warnings, 3 models not checked"


def test_ranges_that_end_after_the_headers_are_whole_files(machine, expected):
    assert machine.run("layerswap", "check", machine.recipe())[0] == 0
    machine.hub.without_ranges = True
    code, output = machine.run("layerswap", "merge", machine.recipe(), "out")
    assert code == 0
    assert "the files that are read are downloaded whole" in output
    assert content(machine.home / "out") == expected("swap")


@pytest.mark.parametrize("program", ["layerswap", "mergekit-yaml"])
def test_a_wrong_choice_is_named_with_the_valid_ones(program, machine):
    merge = ["merge"] if program == "layerswap" else []
    how = {"LAYERSWAP_DOWNLOAD": "range"}
    code, output = machine.run(program, *merge, machine.recipe(), "out", **how)
    assert code == 2
    assert "range" in output
    assert "whole" in output
