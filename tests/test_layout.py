"""Imports run down the floors in no circle; a module stands in a folder, a name is one thing."""

import ast
import re
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.standins.imports import imports

ROOT = Path(__file__).parents[1]
FLOORS = {
    "layerswap": "",
    "ablations": "cli > hub_card > evaluate power search > report > runner testbeds > runs"
    " > study train > engines > requests > explain > scoring delta recipe_commands"
    " > tasks models paper pocket_world > statistics sandbox drawing machine harmonize",
    "layerswap_method": "autoload > mergekit_plugin > merge adapter_swap"
    " > methods write > mix_reader > tensors deltas > checkpoint recipe output > hub"
    " > layer_plan average command_line"
    " > tensor_names file_names errors frozen progress threads jobs",
}
"""Package, the highest first -> its folders, the highest first."""

ALLOWED = {("layerswap_method.mergekit_plugin.registration", "layerswap_method.autoload")}
"""What Python calls at start-up and the methods' registration call each other."""

ENGINES = ("ablations.runner", "ablations.engines", "ablations.models")
"""What a report must not reach for: it reads what a run leaves."""


def _modules(package):
    found = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = {package: _modules(package) for package in FLOORS}
EVERY = {name: path for modules in MODULES.values() for name, path in modules.items()}


def _imports(path):
    """Yield the modules of ours that a file imports, also for types."""
    for name in imports(path, with_types=True):
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
    packages = list(FLOORS)
    up = []
    for name in MODULES[package]:
        for other in IMPORTS[name]:
            (top, *rooms), (other_top, *other_rooms) = name.split("."), other.split(".")
            if top != other_top:
                runs_up = packages.index(other_top) < packages.index(top)
            else:  # every module stands in a folder that has a floor
                runs_up = rooms and other_rooms and floor[other_rooms[0]] < floor[rooms[0]]
            up += [f"{name} -> {other}"] if runs_up else []
    assert up == []


@pytest.mark.parametrize("depth", [2, 9], ids=["folders", "modules"])
def test_no_import_leads_back(depth):
    assert len(IMPORTS) > 100
    leans = {}
    for name, others in IMPORTS.items():
        room, *imported = (".".join(each.split(".")[:depth]) for each in (name, *others))
        leans.setdefault(room, set()).update({*imported} - {room})
    try:
        TopologicalSorter(leans).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_a_report_reads_what_a_run_leaves_and_nothing_else():
    report = [name for name in MODULES["ablations"] if name.startswith("ablations.report.")]
    assert len(report) > 5
    reached = {f"{name} -> {other}" for name in report for other in IMPORTS[name]}
    assert [line for line in reached if line.split(" -> ")[1].startswith(ENGINES)] == []


def _definitions(path):
    """Yield kind and name of every type and every public function of a file's top level."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            yield "type", node.name
        elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield "function", node.name
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name[0].isupper() and not name.isupper():
                yield "type", name


def test_one_name_is_one_thing():
    places = defaultdict(list)
    for name, path in EVERY.items():
        # Commands, of the shell and of Python, have the names of the functions that they call.
        is_command = name == "layerswap" or name.startswith("ablations.cli")
        if not is_command:
            for definition in _definitions(path):
                places[definition].append(name)
    assert len(places) > 500
    assert {each: where for each, where in places.items() if len(where) > 1} == {}


DESIGN = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
MAP = DESIGN.partition("## Where things are\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("package", ["layerswap_method", "ablations"])
def test_the_map_of_design_names_every_folder_and_file_of_a_package(package):
    table = MAP.partition(f"| `{package}` | content |\n")[2].partition("\n\n")[0]
    named = re.findall(r"`([^`]+)`", "".join(re.findall(r"^\|([^|]+)\|", table, re.M)))
    children = {
        path.name
        for path in (ROOT / package).iterdir()
        if path.suffix == ".py" or any(path.rglob("*.py")) or any(path.rglob("*.yml"))
    }
    unnamed = children - {*named} - {"__init__.py"}
    assert unnamed == set(), "give them a row of the map in docs/design.md"
    assert [name for name in named if not (ROOT / package / name).exists()] == []


def test_every_file_and_folder_that_design_names_is_there():
    """Left out is what a run or a merge writes, and names in capitals, which stand for any."""
    folders = [folder for top in (*FLOORS, "tests") for folder in (ROOT / top).rglob("*/")]
    places = [ROOT, *(ROOT / top for top in FLOORS), *folders]
    prose = re.sub(r"^```.*?^```|^## What a run leaves.*?(?=^## )", "", DESIGN, flags=re.M | re.S)
    paths = re.findall(r"`([\w./]+\.(?:py|yml|yaml|json|jsonl)|(?:[\w.]+/)+[\w.]+)`", prose)
    names = {path for path in paths if not re.search(r"^\.|^runs/|[A-Z]{4}", path)}
    assert len(names) > 40
    missing = [name for name in names if not any((place / name).exists() for place in places)]
    assert missing == []
