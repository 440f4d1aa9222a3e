"""A damaged or half-removed layerswap breaks neither an interpreter nor mergekit."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.registration.environment import Environment

METHODS = """
import logging, warnings
import mergekit.merge
from mergekit import merge_methods
names = {method.spec.name for method in merge_methods.registered_methods()}
print("linear" in names, bool({"layer_swap", "delta_revert"} & names))
"""


def assert_one_warning(stderr: str, reason: str) -> None:
    warnings = [line for line in stderr.splitlines() if "layerswap" in line]
    assert len(warnings) == 1
    assert reason in warnings[0]
    assert "pip install --force-reinstall" in warnings[0]
    assert "pip uninstall layerswap" in warnings[0]
    assert "Traceback" not in stderr


def break_hook_syntax(package: Path) -> None:
    (package / "_hook.py").write_text("def install(:\n")


def delete_hook(package: Path) -> None:
    (package / "_hook.py").unlink()


def delete_package(package: Path) -> None:
    shutil.rmtree(package)


def leave_only_bytecode_folder(package: Path) -> None:
    shutil.rmtree(package)
    (package / "__pycache__").mkdir(parents=True)


def break_package_encoding(package: Path) -> None:
    (package / "__init__.py").write_bytes(b"\xff\x00\xfe")


def hook_of_another_version(package: Path) -> None:
    (package / "_hook.py").write_text("CALLBACKS = {}\n")


def break_plugin(package: Path, file: str, text: str) -> None:
    (package / "mergekit_plugin" / file).write_text(text)


NOT_INSTALLED = "import a_library_that_is_not_installed"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (break_hook_syntax, "SyntaxError"),
        (delete_hook, "No module named 'layerswap_method.autoload'"),
        (delete_package, "No module named 'layerswap_method'"),
        (leave_only_bytecode_folder, "No module named 'layerswap_method.autoload'"),
        (break_package_encoding, "SyntaxError"),
        (hook_of_another_version, "cannot import name 'LayerSwapFinder'"),
    ],
)
def test_a_damaged_hook_is_silent_until_mergekit_is_imported(
    with_wheel: Environment, damage: Callable[[Path], None], reason: str
) -> None:
    damage(with_wheel.site_packages / "layerswap_method")
    bare = with_wheel.code("import json, email.message; print('up')")
    assert (bare.stdout, bare.stderr) == ("up\n", "")

    done = with_wheel.code("import mergekit; print('up')")
    assert done.stdout == "up\n"
    assert_one_warning(done.stderr, reason)


@pytest.mark.slow
def test_with_only_the_pth_left_mergekit_has_its_own_methods(with_wheel: Environment) -> None:
    delete_package(with_wheel.site_packages / "layerswap_method")
    done = with_wheel.code(METHODS)
    assert done.stdout.split() == ["True", "False"]
    assert_one_warning(done.stderr, "layerswap.pth beside mergekit")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("register.py", "", "has no attribute 'on_"),
        ("layer_swap_kernel.py", NOT_INSTALLED, "a_library_that_is_not_installed"),
        ("planner.py", "raise RuntimeError('half written')", "RuntimeError: half written"),
        ("layer_swap_merge.py", "raise KeyError('run_merge')", "KeyError: 'run_merge'"),
        ("delta_revert_kernel.py", "raise OSError('cut short')", "OSError: cut short"),
    ],
)
def test_damage_behind_the_hook_is_one_warning(
    with_wheel: Environment, file: str, text: str, reason: str
) -> None:
    """And methods of which a part is missing are withdrawn, not left half working."""
    break_plugin(with_wheel.site_packages / "layerswap_method", file, text)
    done = with_wheel.code(METHODS)

    assert done.stdout.split() == ["True", "False"]
    assert_one_warning(done.stderr, reason)


@pytest.mark.slow
def test_after_damage_register_raises_and_mergekit_says_its_own_error(
    with_wheel: Environment, recipe: Path
) -> None:
    package = with_wheel.site_packages / "layerswap_method"
    break_plugin(package, "layer_swap_kernel.py", NOT_INSTALLED)
    register = "import mergekit.merge, layerswap_method; layerswap_method.register()"
    done = with_wheel.code(register, check=False)
    assert done.returncode == 1
    assert "LayerSwapError: layer_swap could not be registered with mergekit" in done.stderr

    done = with_wheel.run("mergekit-yaml", recipe, with_wheel.root / "merged", check=False)
    assert done.returncode == 1
    assert "Unimplemented merge method layer_swap" in done.stderr
    assert "layer_swap is not available: layerswap could not join this mergekit" in done.stderr
