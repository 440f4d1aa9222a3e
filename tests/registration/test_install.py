"""Installed in a fresh environment: mergekit knows our methods; uninstalled or damaged: its own."""

import shutil
import subprocess
import sys
from pathlib import Path

import mergekit
import pytest

from ablations.recipe_commands.find import recipe_files
from tests.standins.environment import REPOSITORY, Environment, build_wheel, mirror_packages
from tests.standins.merging import recipe as swap_recipe
from tests.standins.merging import revert_recipe, roles, write_recipe
from tests.standins.model_families import LAYERS
from tests.standins.oracle import Swap, assert_same, expected, stored


@pytest.fixture(scope="session")
def packages(tmp_path_factory):
    return mirror_packages(tmp_path_factory.mktemp("borrowed") / "site-packages")


@pytest.fixture
def environment(tmp_path, packages):
    return Environment.create(tmp_path / "venv", packages)


@pytest.fixture(scope="session")
def installed(tmp_path_factory, packages):
    """Return an environment with the wheel. Do not change it; see `changed`."""
    root = tmp_path_factory.mktemp("installed")
    made = Environment.create(root / "venv", packages)
    made.install(build_wheel(root / "wheel"))
    return made


@pytest.fixture
def changed(installed, tmp_path):
    """Return that environment; what is changed in its packages is put back."""
    kept = shutil.copytree(installed.site_packages, tmp_path / "kept", symlinks=True)
    yield installed
    shutil.rmtree(installed.site_packages)
    shutil.copytree(kept, installed.site_packages, symlinks=True)


@pytest.fixture
def recipe(experts, tmp_path):
    """One bottom and one top layer from the language expert."""
    counts = {"bottom_layers": 1, "top_layers": 1}
    return write_recipe(tmp_path / "recipe.yml", swap_recipe(roles(experts("llama")), counts))


REGISTER = "import layerswap_method; layerswap_method.register(); layerswap_method.register()"
KNOWN = """
import mergekit.merge
from mergekit import merge_methods
names = {method.spec.name for method in merge_methods.registered_methods()}
print("linear" in names, len({"layer_swap", "delta_revert"} & names))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "first", ["layerswap_method.mergekit_plugin.kernels.plain", "mergekit.merge_methods.base"]
)
def test_the_first_import_may_be_any(first):
    """mergekit's registry and our kernels import each other, through whichever is first."""
    words = [sys.executable, "-c", f"{REGISTER}\nimport {first}\n{KNOWN}"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert (done.stdout.split(), done.stderr.count("layerswap")) == (["True", "2"], 0)


WHERE = "import layerswap_method; print(layerswap_method.__file__)"
IN_PYTHON = """
import sys
import layerswap
is_heavy = "torch" in sys.modules
print(layerswap.plan("swahili", layers=32).layers[0], is_heavy)
"""
FINDERS = "import sys; print(*(type(finder).__name__ for finder in sys.meta_path))"
MODULES = "import sys, json; print(json.dumps(sorted(sys.modules)))"


def assert_swapped(folder, experts):
    both = map(stored, roles(experts("llama")).values())
    assert_same(stored(folder), expected(Swap(LAYERS, 1, 1, 0, 0), *both))


def test_a_bare_interpreter_imports_nothing_more(installed, environment):
    assert installed.code(FINDERS).stdout.split().count("LayerSwapStart") == 1
    assert installed.code(MODULES).stdout == environment.code(MODULES).stdout
    # The `.pth` runs before the current folder is on the path: a checkout imports itself.
    own = environment.root / "layerswap_method" / "__init__.py"
    own.parent.mkdir()
    own.touch()
    pth = installed.site_packages / "layerswap.pth"
    shutil.copy(pth, environment.site_packages)
    assert Path(environment.code(WHERE).stdout.strip()) == own
    (line,) = pth.read_text().splitlines()
    assert line.startswith("import ")
    assert pth.read_text() == (REPOSITORY / "layerswap.pth").read_text()


@pytest.mark.parametrize("first", [REGISTER, "import mergekit", "import layerswap_method.errors"])
def test_there_is_one_hook_whoever_loads_it(first, installed):
    """Two copies of the hook would not know of each other what they did."""
    look = """
import sys
import mergekit
from layerswap_method import autoload
print([type(f) is autoload.LayerSwapFinder for f in sys.meta_path if "LayerSwap" in repr(f)])
"""
    assert installed.code(f"{first}\n{look}").stdout.strip() == "[True]"


@pytest.mark.slow
def test_the_wheel_works_without_a_clone(installed, recipe, experts, tmp_path):
    """Recipes, studies and tasks come along, and neither tests nor what goes upstream."""
    listed = installed.run("layerswap", "recipes", "list").stdout.splitlines()
    assert len(listed) - 2 == len(recipe_files(REPOSITORY / "recipes")) > 40
    installed.run("layerswap", "recipes", "copy", "swahili", "mine")
    installed.run("layerswap", "check", "--offline", "mine/swahili.yml")
    drawn = installed.run("layerswap", "plan", "mine/swahili.yml", "--layers", "32").stdout
    assert "layers: language 0-4,30-31; task 5-29" in drawn
    assert "layer_count" in installed.run("layerswap", "run", "--help").stdout
    assert "layerswap_mgsm_sw" in installed.run("layerswap", "tasks", "--language", "sw").stdout
    installed.run("mergekit-yaml", recipe, tmp_path / "out")
    assert_swapped(tmp_path / "out", experts)
    packages = installed.site_packages
    assert not any((packages / name).exists() for name in ("tests", "upstream"))
    for package in ("layerswap", "layerswap_method", "ablations"):
        assert (packages / package / "py.typed").exists()
    assert installed.code(IN_PYTHON).stdout.split() == ["language", "False"]
    shipped = packages / "layerswap_method" / "_recipes"
    parts = ("ablations/studies", "ablations/tasks")
    pairs = [(shipped, "recipes"), *((packages / part, part) for part in parts)]
    for there, source in pairs:
        files, ours = (
            {p.relative_to(root) for p in root.rglob("*") if p.is_file() and p.suffix != ".pyc"}
            for root in (there, REPOSITORY / source)
        )
        assert files == ours


@pytest.mark.slow
def test_editable_with_mergekit_multi_and_uninstalled(environment, recipe, experts, tmp_path):
    before = environment.listing()
    environment.install("--editable", REPOSITORY)
    assert before < environment.listing()
    assert Path(environment.code(WHERE).stdout.strip()).parents[1] == REPOSITORY
    assert environment.code(IN_PYTHON).stdout.split() == ["language", "False"]
    multi = tmp_path / "multi.yml"
    multi.write_text(f"name: swapped\n{recipe.read_text()}")
    places = ("--intermediate-dir", tmp_path / "out", "--out-path", tmp_path / "x")
    environment.run("mergekit-multi", multi, *places)
    assert_swapped(tmp_path / "out" / "swapped", experts)
    environment.pip("uninstall", "--yes", "layerswap")
    assert environment.listing() == before
    done = environment.run("mergekit-yaml", recipe, environment.root / "merged", check=False)
    assert done.returncode != 0
    assert "layer_swap" in done.stderr.splitlines()[-1]
    assert "layerswap:" not in done.stderr


@pytest.mark.slow
def test_register_where_no_pth_is_read(environment, installed):
    target = environment.root / "target"
    (wheel,) = (installed.root.parent / "wheel").iterdir()
    environment.install("--target", target, wheel)
    path = f"import sys; sys.path.append({str(target)!r})"
    for before, after, known in (
        ("", "", "0"),
        (REGISTER, "", "2"),
        ("import mergekit.merge", REGISTER, "2"),
    ):
        assert environment.code(f"{path}\n{before}\n{after}\n{KNOWN}").stdout.split()[1] == known


KERNEL = "mergekit_plugin/kernels/plain.py"
DAMAGE = {
    # file, what stands in it (None: the package is deleted), reason
    "package": (None, None, "No module named 'layerswap_method'"),
    "hook": ("autoload.py", "def install(:", "SyntaxError"),
    "kernel": (KERNEL, "import a_library_that_is_not_installed", "a_library_that_is_not_installed"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_one_warning_and_mergekit_works_on(kind, changed, recipe, tmp_path):
    """Methods of which a part is missing are withdrawn, not left half working."""
    package, (file, text, reason) = changed.site_packages / "layerswap_method", DAMAGE[kind]
    if file is None:
        shutil.rmtree(package)
    else:
        (package / file).write_text(text)
    bare = changed.code("import json, email.message; print('up')")
    assert (bare.stdout, bare.stderr) == ("up\n", "")
    done = changed.code(KNOWN)
    assert done.stdout.split() == ["True", "0"]
    (warning,) = (line for line in done.stderr.splitlines() if "layerswap" in line)
    for part in (reason, "pip install --force-reinstall", "pip uninstall layerswap"):
        assert part in warning
    assert "Traceback" not in done.stderr
    if kind == "kernel":
        done = changed.code(f"import mergekit.merge\n{REGISTER}", check=False)
        assert "LayerSwapError: layer_swap could not be registered with mergekit" in done.stderr


UPSTREAM = """

from mergekit.merge_methods import base, easy_define

@easy_define.merge_method(name="layer_swap", pretty_name="Upstream")
def _upstream(group: base.TensorGroup) -> torch.Tensor:
    return group.entries[0].tensor

register(_upstream)
"""
LOOK = f"""
import mergekit.io, transformers, warnings; warnings.simplefilter('error')
import mergekit.merge
from mergekit import merge_methods
print(*[merge_methods.get(name).spec.pretty_name for name in ("layer_swap", "delta_revert")])
{REGISTER}
"""


@pytest.mark.slow
def test_a_mergekit_with_a_method_of_this_name(changed, recipe, experts, tmp_path):
    """Ours stands aside with a warning (no Python warning: `-W error` must not break a run)."""
    copy = changed.site_packages / "mergekit"
    shutil.copytree(Path(mergekit.__file__).parent, copy)
    registry = copy / "merge_methods" / "registry.py"
    registry.write_text(f"import torch\n{registry.read_text()}{UPSTREAM}")
    done = changed.code(LOOK)
    assert done.stdout.strip() == "Upstream Delta Revert"
    (said,) = [line for line in done.stderr.splitlines() if "layerswap" in line]
    assert "has a merge method `layer_swap` of its own" in said
    assert "pip uninstall layerswap" in said
    changed.run("mergekit-yaml", recipe, tmp_path / "theirs", "--no-copy-tokenizer")
    assert not (tmp_path / "theirs" / "layer_swap_plan.json").exists()
    given = experts("llama")
    write_recipe(recipe, revert_recipe(given.task, given.base, {"bottom_layers": 1}))
    changed.run("mergekit-yaml", recipe, tmp_path / "ours", "--no-copy-tokenizer")
    assert (tmp_path / "ours" / "delta_revert_plan.json").is_file()
