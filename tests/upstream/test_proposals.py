"""The two patches for mergekit apply to the installed version, and their own tests pass there."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from layerswap_method import upstream
from tests.upstream.conftest import copy_of_mergekit
from tests.upstream.test_assemble import pytest_there

PROPOSALS = sorted((Path(upstream.__file__).parent / "proposals").glob("*.patch"))


def apply(patch: Path, folder: Path) -> None:
    # Outside any repository, so that git takes the paths as they are.
    environment = {"GIT_CEILING_DIRECTORIES": str(folder.parent), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        ["git", "apply", str(patch)], cwd=folder, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr


def test_both_proposals_are_there() -> None:
    assert [path.name for path in PROPOSALS] == ["entry_points.patch", "select_inputs.patch"]


@pytest.mark.slow
@pytest.mark.parametrize("patch", PROPOSALS, ids=lambda path: path.stem)
def test_a_proposal_applies_and_its_tests_pass(patch: Path, tmp_path: Path, packages: Path) -> None:
    environment = copy_of_mergekit(tmp_path / "venv", packages)
    apply(patch, environment.site_packages)
    assert "passed" in pytest_there(environment, f"tests/test_{patch.stem}.py")


@pytest.mark.slow
def test_with_entry_points_mergekit_finds_our_methods(tmp_path: Path, packages: Path) -> None:
    """As this package declares them, without its import hook."""
    environment = copy_of_mergekit(tmp_path / "venv", packages)
    apply(PROPOSALS[0], environment.site_packages)
    package = Path(upstream.__file__).parents[1]
    (environment.site_packages / package.name).symlink_to(package)
    metadata = environment.site_packages / "layerswap-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: layerswap\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text(
        "[mergekit.merge_methods]\n"
        "layer_swap = layerswap_method.mergekit_plugin.register:layer_swap_method\n"
        "delta_revert = layerswap_method.mergekit_plugin.register:delta_revert_method\n"
    )
    done = environment.code(
        "from mergekit import merge_methods\n"
        "for name in ('layer_swap', 'delta_revert'):\n"
        "    print(merge_methods.get(name).spec.pretty_name)\n"
    )
    assert done.stdout.splitlines() == ["Layer Swapping", "Delta Revert"]
