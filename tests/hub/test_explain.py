"""A merge explained by parents on the hub: what goes over the wire, and what comes of it."""

import json

import pytest

from tests.hub.conftest import BASE, LANGUAGE, TASK, Machine

pytestmark = pytest.mark.slow  # commands in processes of their own, against a server


def test_parents_on_the_hub_are_read_in_samples(machine, tmp_path):
    merged = machine.merge(machine.recipe(), "merged", "--download", "whole")
    other = Machine(tmp_path / "other", machine.hub)
    machine.hub.forget()
    words = ["explain", merged, "--parents", TASK, LANGUAGE, BASE, "--json"]
    code, output = other.run("layerswap", *words)
    assert code == 0, output
    read = json.loads(output[output.index("{") :])
    assert read["places"] == [
        {"place": "layers 0-1,11", "text": f"copy of {LANGUAGE}"},
        {"place": "layers 2-10", "text": f"copy of {TASK}"},
        {"place": "outside the layers", "text": f"0.5 {TASK} + 0.5 {LANGUAGE}"},
    ]
    assert read["recipe"]["parameters"] == {"bottom_layers": 2, "top_layers": 1}
    whole = sum(file.stat().st_size for file in machine.hub.root.glob(f"{TASK}/*/*.safetensors"))
    # Runs of values that are near come as one range, and the test models are small.
    assert machine.hub.bytes["store"] < 2 * whole


def test_the_recipe_is_written_to_a_new_file(machine):
    merged = machine.merge(machine.recipe(), "merged", "--download", "whole")
    words = ["explain", merged, "--parents", TASK, LANGUAGE, "--recipe", "read_back.yml"]
    code, output = machine.run("layerswap", *words)
    assert code == 0, output
    again = machine.merge("read_back.yml", "again")
    assert machine.run("layerswap", "verify", again, merged)[0] == 0
    code, output = machine.run("layerswap", *words)
    assert code == 2
    assert "read_back.yml: exists already; name another file" in output
