"""What Python can do with a module, it can still do where the hook watches the import."""

import copy
import importlib
import importlib.machinery
import importlib.util
import inspect
import pickle
import subprocess
import sys
from types import ModuleType

import pytest

from layerswap_method import _hook
from layerswap_method.mergekit_plugin import register as registration

WATCHED = [
    "mergekit.config",
    "mergekit.merge_methods.registry",
    "mergekit.merge",
]


def run(source: str, *flags: str) -> str:
    """Run code in a new interpreter in which layerswap is registered and mergekit not imported."""
    code = f"import layerswap_method; layerswap_method.register()\n{source}"
    done = subprocess.run(
        [sys.executable, *flags, "-c", code], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "layerswap" not in done.stderr
    return done.stdout


def test_the_table_names_functions_of_registration() -> None:
    assert list(_hook.CALLBACKS) == WATCHED
    for callback in _hook.CALLBACKS.values():
        assert callable(getattr(registration, callback))


def spec_of(name: str) -> importlib.machinery.ModuleSpec:
    """What an import of `name` would be given, if it were not imported already."""
    package = importlib.import_module(name.rpartition(".")[0]).__path__
    found = (finder.find_spec(name, package) for finder in sys.meta_path)
    return next(spec for spec in found if spec is not None)


@pytest.mark.parametrize("name", WATCHED)
class TestWatchedModule:
    def test_found_spec_has_its_usual_loader(self, name: str) -> None:
        spec = spec_of(name)
        source = inspect.getsource(importlib.import_module(name))
        assert type(spec.loader) is importlib.machinery.SourceFileLoader
        assert spec.loader.get_code(name).co_name == "<module>"
        assert spec.loader.get_source(name) == source
        assert spec.loader.get_data(spec.origin) == source.encode()
        assert not spec.loader.is_package(name)
        assert importlib.util.find_spec(name).origin == spec.origin

    def test_loader_is_as_if_never_touched(self, name: str) -> None:
        module = importlib.import_module(name)
        untouched = importlib.machinery.SourceFileLoader(name, module.__file__)
        assert module.__loader__ == untouched
        assert pickle.loads(pickle.dumps(module.__loader__)) == untouched
        assert copy.deepcopy(module.__spec__).loader == untouched

    def test_a_copy_made_by_hand_is_reported_too(self, name: str) -> None:
        """As `importlib`'s documentation runs a module outside `sys.modules`."""
        spec = spec_of(name)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        assert module is not sys.modules[name]
        assert _hook._handled[name] is module


def test_other_modules_are_not_looked_at() -> None:
    finder = next(found for found in sys.meta_path if type(found) is _hook.LayerSwapFinder)
    for name in ("json", "mergekit", "mergekit.common", "layerswap_method", "no_such_module"):
        assert finder.find_spec(name) is None
    assert _hook.LayerSwapFinder().find_spec("mergekit.merge") is None  # it is on no path


def test_two_such_hooks_do_not_ask_each_other_for_ever() -> None:
    class Asking:
        def find_spec(
            self, name: str, path: object = None, target: ModuleType | None = None
        ) -> importlib.machinery.ModuleSpec | None:
            others = [finder for finder in sys.meta_path if finder is not self]
            found = (finder.find_spec(name, path, target) for finder in others)
            return next((spec for spec in found if spec is not None), None)

    asking = Asking()
    package = importlib.import_module("mergekit").__path__
    sys.meta_path.insert(0, asking)
    try:
        assert asking.find_spec("mergekit.merge", package).name == "mergekit.merge"
    finally:
        sys.meta_path.remove(asking)


@pytest.mark.slow
def test_reloaded_modules_know_layer_swap_again() -> None:
    out = run(
        """
import importlib, mergekit.merge
from mergekit import merge_methods
from mergekit.merge_methods import registry
for module in (registry, mergekit.merge):
    importlib.reload(module)
print(merge_methods.get("layer_swap") is registry.get("layer_swap"))
function = mergekit.merge.run_merge
print(hasattr(function, "__wrapped__"), hasattr(function.__wrapped__, "__wrapped__"))
"""
    )
    assert out.split() == ["True", "True", "False"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "first",
    [
        "layerswap_method.mergekit_plugin.kernels.layer_swap",
        "layerswap_method.mergekit_plugin.run",
        "layerswap_method.mergekit_plugin.planner",
        "layerswap_method.mergekit_plugin.layer_swap_merge",
        "mergekit.merge_methods.base",
        "mergekit.plan",
        "mergekit.scripts.run_yaml",
    ],
)
def test_the_first_import_may_be_any(first: str) -> None:
    """mergekit's registry and our method import each other, through whichever is asked first."""
    out = run(
        f"""
import importlib
importlib.import_module({first!r})
from mergekit import merge_methods
import mergekit.merge
print(merge_methods.get("layer_swap").spec.name, hasattr(mergekit.merge.run_merge, "__wrapped__"))
"""
    )
    assert out.split() == ["layer_swap", "True"]


@pytest.mark.slow
def test_mergekit_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mergekit.scripts.run_yaml", "--help"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0
    assert "CONFIG_FILE OUT_PATH" in done.stdout


@pytest.mark.slow
def test_mergekit_in_a_zip_archive_is_still_found(tmp_path: object) -> None:
    """A zip archive has one loader for all its modules, unlike a folder."""
    out = run(
        f"""
import pathlib, sys, zipfile
import mergekit
root = pathlib.Path(mergekit.__file__).parent
with zipfile.ZipFile(r"{tmp_path}/mergekit.zip", "w") as archive:
    for path in sorted(root.rglob("*")):
        archive.write(path, path.relative_to(root.parent))
del sys.modules["mergekit"]
sys.path.insert(0, r"{tmp_path}/mergekit.zip")
from mergekit.merge_methods import registry
import mergekit.merge
print(type(registry.__loader__).__name__, registry.get("layer_swap").spec.name)
print(hasattr(mergekit.merge.run_merge, "__wrapped__"))
"""
    )
    assert out.split() == ["zipimporter", "layer_swap", "True"]
