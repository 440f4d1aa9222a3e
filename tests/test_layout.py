"""Imports run down the floors only, in no circle, and every module stands in a folder."""

from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.standins.imports import imports

ROOT = Path(__file__).parents[1]
FLOORS = {
    "ablations": "cli > card > evaluate > report > runner smol pocket > study train > engines"
    " > scoring delta gallery > tasks models paper > statistics sandbox drawing machine",
    "layerswap_method": "autoload upstream > mergekit_plugin > merge compare harmonize adapter_swap"
    " > methods write loading > tensors deltas > checkpoint recipe output > hub > plan average"
    " command_line > tensor_names errors frozen progress",
}
ALLOWED = {
    ("layerswap_method.mergekit_plugin.registration", "layerswap_method.autoload"),
    ("ablations.train.rows", "ablations.pocket_world.corpora"),
}
"""What Python calls at start-up and the methods' registration call each other; the pocket's experts
are trained by `train`, which draws their rows from the pocket's world."""


def _modules(package):
    found = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = {package: _modules(package) for package in FLOORS}
EVERY = MODULES["ablations"] | MODULES["layerswap_method"]


def _imports(path):
    """Yield the modules of ours that a file imports."""
    for name in imports(path):
        module = name if name in EVERY else name.rpartition(".")[0]
        if module in EVERY:
            yield module


IMPORTS = {
    name: {
        other
        for other in _imports(path)
        # A package gives its version to all, which is no room of it.
        if other not in (name, "layerswap_method") and (name, other) not in ALLOWED
    }
    for name, path in EVERY.items()
}


@pytest.mark.parametrize("package", FLOORS)
def test_imports_run_down_only(package):
    floors = enumerate(FLOORS[package].split(" > "))
    floor = {room: number for number, rooms in floors for room in rooms.split()}
    up = []
    for name in MODULES[package]:
        for other in IMPORTS[name]:
            (own, *mine), (whose, *theirs) = name.split("."), other.split(".")
            if own != whose:
                runs_up = package == "layerswap_method"
            else:  # every module stands in a folder that has a floor
                runs_up = mine and theirs and floor[theirs[0]] < floor[mine[0]]
            up += [f"{name} -> {other}"] if runs_up else []
    assert up == []


@pytest.mark.parametrize("depth", [2, 9], ids=["folders", "modules"])
def test_no_import_leads_back(depth):
    assert len(IMPORTS) > 100
    leans = {}
    for name, others in IMPORTS.items():
        mine, *theirs = (".".join(each.split(".")[:depth]) for each in (name, *others))
        leans.setdefault(mine, set()).update({*theirs} - {mine})
    try:
        TopologicalSorter(leans).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))
