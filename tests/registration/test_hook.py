"""What Python can do with a module, it can still do where the hook watches the import."""

import copy
import importlib
import importlib.machinery
import importlib.util
import inspect
import pickle
import subprocess
import sys

import pytest

from layerswap_method import autoload

WATCHED = ["mergekit.config", "mergekit.merge_methods.registry", "mergekit.merge"]
KNOWN = """
from mergekit import merge_methods
import mergekit.merge
print(merge_methods.get("layer_swap").spec.name, hasattr(mergekit.merge.run_merge, "__wrapped__"))
"""


def run(source):
    """Run code in a new interpreter in which layerswap is registered and mergekit not imported."""
    code = f"import layerswap_method; layerswap_method.register()\n{source}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "layerswap" not in done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("name", WATCHED)
def test_a_watched_module_is_as_if_never_touched(name):
    module = importlib.import_module(name)
    path = importlib.import_module(name.rpartition(".")[0]).__path__
    found = (finder.find_spec(name, path) for finder in sys.meta_path)
    spec = next(spec for spec in found if spec is not None)
    source = inspect.getsource(module)
    assert type(spec.loader) is importlib.machinery.SourceFileLoader
    assert spec.loader.get_source(name) == source
    untouched = importlib.machinery.SourceFileLoader(name, module.__file__)
    assert module.__loader__ == untouched
    assert pickle.loads(pickle.dumps(module.__loader__)) == untouched
    assert copy.deepcopy(module.__spec__).loader == untouched


def test_other_modules_are_not_looked_at():
    finder = next(found for found in sys.meta_path if type(found) is autoload.LayerSwapFinder)
    # The program's module is lazy in the program `mergekit-yaml` alone.
    for name in ("json", "mergekit", "mergekit.common", "mergekit.scripts.run_yaml", "no_such"):
        assert finder.find_spec(name) is None
    assert autoload.LayerSwapFinder().find_spec("mergekit.merge") is None  # it is on no path


@pytest.mark.slow
@pytest.mark.parametrize(
    "first",
    ["layerswap_method.mergekit_plugin.kernels.plain", "mergekit.merge_methods.base"],
)
def test_the_first_import_may_be_any_and_may_come_again(first):
    """mergekit's registry and our kernels import each other, through whichever is first."""
    again = """
import importlib
from mergekit.merge_methods import registry
for module in (registry, mergekit.merge):
    importlib.reload(module)
function = mergekit.merge.run_merge
print(hasattr(function, "__wrapped__"), hasattr(function.__wrapped__, "__wrapped__"))
print(merge_methods.get("layer_swap") is registry.get("layer_swap"))
"""
    found = run(f"import {first}\n{KNOWN}{again}")
    assert found == ["layer_swap", "True", "True", "False", "True"]
