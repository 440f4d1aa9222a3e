"""A copy of the installed mergekit, in an environment without our package."""

import shutil
import subprocess
from pathlib import Path

import mergekit
import pytest

from layerswap_method import upstream
from tests.registration.environment import Environment, mirror_packages
from tests.upstream import common

FOLDER = Path(upstream.__file__).parent


class Copy(Environment):
    """mergekit that may be changed, with what its tests import."""

    def apply(self, patch, *options):
        # Outside any repository, so that git takes the paths as they are.
        variables = {"GIT_CEILING_DIRECTORIES": str(self.root), "PATH": "/usr/bin:/bin"}
        command = ["git", "apply", *options, str(FOLDER / patch)]
        subprocess.run(command, cwd=self.site_packages, env=variables, check=True)

    def add_the_method(self, *options):
        """Do what the README says: three files and a patch."""
        packages = self.site_packages
        shutil.copy(FOLDER / "layer_swap.py", packages / "mergekit" / "merge_methods")
        tests = Path(__file__).with_name("pr_test_layer_swap.py")
        shutil.copy(tests, packages / "tests" / "test_layer_swap.py")
        self.apply("new/register.patch", *options)

    def pytest(self, *names):
        """Run tests of the copy and return the last line of what pytest prints."""
        paths = [self.site_packages / name for name in names]
        # None of our plug-ins, settings or cache.
        flags = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-c", "/dev/null")
        done = self.run(self.python, "-m", "pytest", *flags, *paths, check=False, timeout=3600)
        assert done.returncode == 0, done.stdout
        return done.stdout.strip().splitlines()[-1]


@pytest.fixture(scope="session")
def packages(tmp_path_factory):
    return mirror_packages(tmp_path_factory.mktemp("borrowed") / "site-packages")


@pytest.fixture
def copy(tmp_path, packages):
    return make_copy(tmp_path / "venv", packages)


def make_copy(root, packages):
    made = Copy.create(root, packages)
    shutil.copytree(Path(mergekit.__file__).parent, made.site_packages / "mergekit")
    (made.site_packages / "tests").mkdir()
    (made.site_packages / "tests" / "__init__.py").touch()
    shutil.copy(common.__file__, made.site_packages / "tests" / "common.py")
    return made
