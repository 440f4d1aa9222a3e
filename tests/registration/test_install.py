"""After `pip install`, stock mergekit knows `layer_swap`; after uninstall nothing is left."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from ablations.gallery.find import recipe_files
from tests.registration.environment import REPOSITORY, Environment

KNOWN = """
from mergekit import merge_methods
print("layer_swap" in {method.spec.name for method in merge_methods.registered_methods()})
"""
PYTHON_API = """
import sys, yaml
from mergekit.config import MergeConfiguration
from mergekit.merge import run_merge
from mergekit.options import MergeOptions

def merge(recipe, folder):
    text = open(recipe).read()
    config = MergeConfiguration.model_validate(yaml.safe_load(text))
    run_merge(config, folder, options=MergeOptions(), config_source=text)
"""
SPAWN = """
import multiprocessing, sys
import merging

if __name__ == "__main__":
    worker = multiprocessing.get_context("spawn").Process(target=merging.merge, args=sys.argv[1:])
    worker.start()
    worker.join()
    print(worker.exitcode, "mergekit.merge" in sys.modules)
"""


def assert_swapped(folder: Path, experts: dict[str, Path]) -> None:
    """The recipe's merge: layers 0 and 3 from the language expert, 1 and 2 from the task one."""
    merged = {}
    for shard in folder.glob("*.safetensors"):
        merged.update(load_file(shard))
    sources = {role: load_file(path / "model.safetensors") for role, path in experts.items()}
    for layer, role in enumerate(("language", "task", "task", "language")):
        name = f"model.layers.{layer}.self_attn.q_proj.weight"
        assert merged[name].equal(sources[role][name])
    assert not sources["task"][name].equal(sources["language"][name])


def test_a_bare_interpreter_imports_nothing_more(with_wheel: Environment) -> None:
    modules = "import sys, json; print(json.dumps(sorted(sys.modules)))"
    finders = "import sys; print(*(type(finder).__name__ for finder in sys.meta_path))"
    with_hook = json.loads(with_wheel.code(modules).stdout)
    assert with_wheel.code(finders).stdout.split().count("LayerSwapStart") == 1
    with_wheel.uninstall()
    assert json.loads(with_wheel.code(modules).stdout) == with_hook
    assert "LayerSwapStart" not in with_wheel.code(finders).stdout


def test_a_checkout_imports_itself_beside_an_installed_copy(with_wheel: Environment) -> None:
    """The `.pth` runs before the current folder is on the path: it must not import the package."""
    (with_wheel.root / "layerswap_method").mkdir()
    (with_wheel.root / "layerswap_method" / "__init__.py").write_text("")
    where = "import layerswap_method; print(layerswap_method.__file__)"
    found = Path(with_wheel.code(where).stdout.strip())
    assert found.parent == with_wheel.root / "layerswap_method"


def test_the_wheel_carries_recipes_and_no_tests(with_wheel: Environment) -> None:
    package = with_wheel.site_packages / "layerswap_method"
    shipped = {path.relative_to(package / "_recipes") for path in package.glob("_recipes/**/*.yml")}
    assert shipped == {
        path.relative_to(REPOSITORY / "recipes") for path in REPOSITORY.glob("recipes/**/*.yml")
    }
    assert not (with_wheel.site_packages / "tests").exists()
    for name in ("layerswap_method", "ablations"):
        assert (with_wheel.site_packages / name / "py.typed").exists()


@pytest.mark.slow
def test_the_wheel_works_without_a_clone(with_wheel: Environment) -> None:
    """Recipes, studies, tasks and what goes upstream come along; commands find them."""
    listed = with_wheel.run("layerswap", "recipes", "list", "--format", "json").stdout
    shipped = recipe_files(REPOSITORY / "recipes")
    assert len(json.loads(listed)) == len(shipped) > 40
    shown = with_wheel.run("layerswap", "recipes", "show", "swahili").stdout
    assert shown == (REPOSITORY / "recipes" / "swahili.yml").read_text()
    with_wheel.run("layerswap", "recipes", "copy", "swahili", "mine")
    with_wheel.run("layerswap", "check", "--offline", "mine/swahili.yml")
    drawn = with_wheel.run("layerswap", "plan", "mine/swahili.yml", "--layers", "32").stdout
    assert "layers: language 0-4,30-31; task 5-29" in drawn
    assert "layer_count" in with_wheel.run("layerswap", "run", "--help").stdout
    assert "layerswap_mgsm_sw" in with_wheel.run("layerswap", "tasks").stdout
    for module in ("layerswap_method.upstream", "ablations.studies", "ablations.tasks.generated"):
        folder = with_wheel.site_packages / Path(*module.split("."))
        there = {path.relative_to(folder) for path in folder.rglob("*") if path.suffix != ".pyc"}
        source = REPOSITORY / Path(*module.split("."))
        ours = {path.relative_to(source) for path in source.rglob("*") if path.suffix != ".pyc"}
        assert {path for path in there if path.name != "__pycache__"} == {
            path for path in ours if path.name != "__pycache__"
        }


@pytest.mark.slow
def test_wheel_with_mergekit_yaml(
    with_wheel: Environment, recipe: Path, experts: dict[str, Path], tmp_path: Path
) -> None:
    with_wheel.run("mergekit-yaml", recipe, tmp_path / "merged")
    assert_swapped(tmp_path / "merged", experts)


@pytest.mark.slow
def test_wheel_in_a_spawned_process(
    with_wheel: Environment, recipe: Path, experts: dict[str, Path], tmp_path: Path
) -> None:
    (with_wheel.root / "merging.py").write_text(PYTHON_API)
    (with_wheel.root / "spawn.py").write_text(SPAWN)
    done = with_wheel.run(with_wheel.python, "spawn.py", recipe, tmp_path / "merged")
    assert done.stdout.split()[:1] == ["0"], done.stderr
    assert_swapped(tmp_path / "merged", experts)


@pytest.mark.slow
def test_wheel_with_the_python_api_in_isolated_mode(
    with_wheel: Environment, recipe: Path, experts: dict[str, Path], tmp_path: Path
) -> None:
    merge = f"{PYTHON_API}\nmerge({str(recipe)!r}, {str(tmp_path / 'merged')!r})"
    with_wheel.code(merge, "-I")
    assert_swapped(tmp_path / "merged", experts)


@pytest.mark.slow
def test_editable_with_mergekit_multi(
    environment: Environment, recipe: Path, experts: dict[str, Path], tmp_path: Path
) -> None:
    environment.install("--editable", REPOSITORY)
    where = environment.code("import layerswap_method; print(layerswap_method.__file__)").stdout
    assert Path(where.strip()).parent == REPOSITORY / "layerswap_method"

    multi = tmp_path / "multi.yml"
    multi.write_text(f"name: swapped\n{recipe.read_text()}")
    environment.run(
        "mergekit-multi",
        multi,
        "--intermediate-dir",
        tmp_path / "out",
        "--out-path",
        tmp_path / "x",
    )
    assert_swapped(tmp_path / "out" / "swapped", experts)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_uninstall_leaves_nothing_and_mergekit_works(
    new_environment: Callable[[], Environment], wheel: Path, recipe: Path, kind: str
) -> None:
    environment = new_environment()
    before = environment.listing()
    environment.install(*([wheel] if kind == "wheel" else ["--editable", REPOSITORY]))
    assert environment.code(KNOWN).stdout.strip() == "True"
    assert before < environment.listing()

    environment.uninstall()

    assert environment.listing() == before
    done = environment.run("mergekit-yaml", recipe, environment.root / "merged", check=False)
    assert done.returncode != 0
    assert "layer_swap" in done.stderr.splitlines()[-1]
    assert "layerswap:" not in done.stderr


@pytest.mark.slow
def test_register_where_no_pth_is_read(environment: Environment, wheel: Path) -> None:
    target = environment.root / "target"
    environment.install("--target", target, wheel)
    path = f"import sys; sys.path.append({str(target)!r})"
    assert environment.code(f"{path}\n{KNOWN}").stdout.strip() == "False"

    register = "import layerswap_method; layerswap_method.register(); layerswap_method.register()"
    before = environment.code(f"{path}\n{register}\n{KNOWN}").stdout.strip()
    after = environment.code(f"{path}\nimport mergekit.merge\n{register}\n{KNOWN}").stdout.strip()
    assert (before, after) == ("True", "True")


@pytest.mark.parametrize(
    "first",
    [
        "from layerswap_method import _hook",
        "import layerswap_method; layerswap_method.register(); layerswap_method.register()",
        "import mergekit",
        "import layerswap_method.errors",
    ],
)
def test_there_is_one_hook_whoever_loads_it(with_wheel: Environment, first: str) -> None:
    """Two copies of the hook would not know of each other what they did."""
    look = """
import sys
import mergekit
from layerswap_method import _hook
print([type(f) is _hook.LayerSwapFinder for f in sys.meta_path if "LayerSwap" in repr(f)])
"""
    assert with_wheel.code(f"{first}\n{look}").stdout.strip() == "[True]"


@pytest.mark.slow
def test_two_installs_register_once(with_wheel: Environment, wheel: Path) -> None:
    """As with a user-wide install below a virtual environment's own: two `.pth` run."""
    second = with_wheel.root / "second"
    with_wheel.install("--target", second, wheel)
    also = f"import site; site.addsitedir({str(second)!r})"
    done = with_wheel.code(f"{also}\n{KNOWN}")
    assert done.stdout.split() == ["True"]
    assert "layerswap" not in done.stderr
