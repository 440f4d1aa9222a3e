"""A copy of the installed mergekit, in an environment without our package."""

from __future__ import annotations

import shutil
from pathlib import Path

import mergekit
import pytest

from tests.registration.environment import Environment, mirror_packages
from tests.upstream import common


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mirror_packages(tmp_path_factory.mktemp("borrowed") / "site-packages")


def copy_of_mergekit(root: Path, packages: Path) -> Environment:
    """Return an environment whose mergekit may be changed, with what its tests import."""
    environment = Environment.create(root, packages)
    copy = environment.site_packages
    bytecode = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(mergekit.__file__).parent, copy / "mergekit", ignore=bytecode)
    (copy / "tests").mkdir()
    (copy / "tests" / "__init__.py").touch()
    shutil.copy(common.__file__, copy / "tests" / "common.py")
    return environment
