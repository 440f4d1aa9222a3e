"""The method in a copy of mergekit without our package: the same tensors; mergekit's own tests."""

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from importlib.metadata import EntryPoint, version
from pathlib import Path

import mergekit
import pytest
import torch

import upstream
from tests.registration.test_install import packages  # noqa: F401 - a fixture
from tests.standins import merging
from tests.standins.environment import Environment
from tests.standins.model_families import make_model
from tests.standins.oracle import stored
from tests.upstream import common

FOLDER = Path(upstream.__file__).parent
THEIR_TEST = Path(__file__).with_name("pr_test_layer_swap.py")
ZONES = {"bottom_layers": 1, "top_layers": 1, "bottom_transition": 1, "top_transition": 1}
RECIPES = {
    "the paper's": ("tl", {"bottom_layers": 2, "top_layers": 1}, {}),
    "weights": ("tltl", ZONES, {0: 2.0, 3: 8.0}),
    "base": ("ttl", {**ZONES, "bottom_transition": 2, "non_layer": "base"}, {}),
    "language": ("tll", {**ZONES, "top_transition": 0, "non_layer": "language"}, {}),
    "odd weights": ("tltl", {**ZONES, "non_layer": "task"}, {0: 0.7, 1: 1.3}),
}


class Copy(Environment):
    """mergekit that may be changed, with what its tests import, without our package."""

    def apply(self, patch, *options):
        # Outside any repository, so that git takes the paths as they are.
        variables = {"GIT_CEILING_DIRECTORIES": str(self.root), "PATH": "/usr/bin:/bin"}
        command = ["git", "apply", *options, str(FOLDER / patch)]
        subprocess.run(command, cwd=self.site_packages, env=variables, check=True)

    def add_the_method(self, *options):
        """Do what the README says: three files and a patch."""
        shutil.copy(FOLDER / "layer_swap.py", self.site_packages / "mergekit" / "merge_methods")
        shutil.copy(THEIR_TEST, self.site_packages / "tests" / "test_layer_swap.py")
        self.apply("2_layer_swap/register.patch", *options)

    def pytest(self, *names):
        """Run tests of the copy, with none of our plug-ins, settings or cache."""
        paths = [self.site_packages / name for name in names]
        flags = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-c", "/dev/null")
        done = self.run(self.python, "-m", "pytest", *flags, *paths, check=False, timeout=3600)
        assert (done.returncode, " passed" in done.stdout) == (0, True), done.stdout


def make_copy(root, packages):  # noqa: F811
    made = Copy.create(root, packages)
    shutil.copytree(Path(mergekit.__file__).parent, made.site_packages / "mergekit")
    (made.site_packages / "tests").mkdir()
    (made.site_packages / "tests" / "__init__.py").touch()
    shutil.copy(common.__file__, made.site_packages / "tests" / "common.py")
    return made


@pytest.fixture
def copy(tmp_path, packages):  # noqa: F811
    return make_copy(tmp_path / "venv", packages)


@pytest.fixture(scope="module")
def mergekit_with_it(tmp_path_factory, packages):  # noqa: F811
    made = make_copy(tmp_path_factory.mktemp("upstream") / "venv", packages)
    assert made.code("import layerswap_method", check=False).returncode == 1
    made.add_the_method("--include=mergekit/*")  # the installed package has no tests
    return made


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Four random Llamas of six layers, in bfloat16."""
    root = tmp_path_factory.mktemp("models")
    sizes = {"num_hidden_layers": 6, "dtype": torch.bfloat16}
    return [make_model("llama", root / str(seed), seed, **sizes) for seed in range(4)]


@pytest.mark.slow
@pytest.mark.parametrize("case", RECIPES)
def test_every_tensor_is_ours(case, mergekit_with_it, models, tmp_path):
    roles, parameters, weights = RECIPES[case]
    letters = list(zip(roles, models, strict=False))
    folders = {
        role: [model for letter, model in letters if letter == role[0]]
        for role in ("task", "language")
    }
    recipe = merging.recipe(folders, parameters, models[3], dtype="bfloat16")
    for number, weight in weights.items():
        recipe["models"][number]["parameters"]["weight"] = weight
    ours = stored(merging.merge(recipe, tmp_path / "ours"))
    path = merging.write_recipe(tmp_path / "recipe.yml", recipe)
    mergekit_with_it.run("mergekit-yaml", path, tmp_path / "theirs", "--no-copy-tokenizer")
    theirs = stored(tmp_path / "theirs")
    torch.testing.assert_close(theirs, ours, rtol=0, atol=0)


@pytest.mark.slow
def test_the_new_tests_pass_there(mergekit_with_it):
    mergekit_with_it.pytest("tests/test_layer_swap.py")


@pytest.mark.slow
def test_mergekits_own_tests_pass_there(copy, tmp_path):
    """Its release has them all but `tests/common.py`; it comes from the package index."""
    name = f"mergekit=={version('mergekit')}"
    flags = ["--no-deps", "--no-binary", "mergekit", "--dest", str(tmp_path), name]
    if subprocess.run([sys.executable, "-m", "pip", "download", *flags], check=False).returncode:
        pytest.skip("mergekit's release cannot be downloaded from the package index")
    (archive,) = tmp_path.glob("mergekit-*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path / "release", filter="data")
    for test in (tmp_path / "release").glob("*/tests/test_*.py"):
        shutil.copy(test, copy.site_packages / "tests")
    (readme,) = (tmp_path / "release").glob("*/README.md")
    shutil.copy(readme, copy.site_packages)
    copy.apply("2_layer_swap/docs.patch", "--include=README.md")  # the release lacks docs
    copy.add_the_method()
    copy.pytest("tests")


@pytest.mark.slow
@pytest.mark.parametrize("place", ["1_entry_points", "3_select_inputs"])
def test_a_patch_applies_by_itself_and_its_tests_pass(place, copy):
    name = place.partition("_")[2]
    copy.apply(f"{place}/{name}.patch")
    copy.pytest(f"tests/test_{name}.py")


def test_the_folders_are_the_pull_requests_of_the_page():
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    folders = sorted(path.name for path in FOLDER.iterdir() if path.name[0].isdigit())
    assert re.findall(r"^\| \d \| \[.+?\]\((\w+)/description\.md\)", page, re.M) == folders
    for folder in folders:
        assert any((FOLDER / folder).glob("*.patch"))


def test_the_pages_of_the_method_name_it_in_contents_section_and_table():
    patch = FOLDER / "2_layer_swap" / "docs.patch"
    added = re.findall(r"^\+(?!\+)(.*)", patch.read_text(encoding="utf-8"), re.M)
    (heading,) = [line for line in added if line.startswith("### ")]
    anchor = re.sub(r"[^\w\- ]", "", heading.removeprefix("### ").lower()).replace(" ", "-")
    links = [line for line in added if f"#{anchor})" in line]
    assert [line.lstrip()[0] for line in links] == ["|", "-"]
    parsed = subprocess.run(
        ["git", "apply", "--numstat", patch], capture_output=True, text=True, check=True
    )
    changes = [line.split("\t") for line in parsed.stdout.splitlines()]
    assert [change[1:] for change in changes] == [
        ["0", "README.md"],
        ["0", "docs/merge_methods.md"],
    ]


def test_the_entry_points_that_we_declare_are_our_methods():
    declared = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text(encoding="utf-8"))
    points = declared["project"]["entry-points"]["mergekit.merge_methods"]
    found = {name: EntryPoint(name, value, "").load().spec.name for name, value in points.items()}
    assert found == {"layer_swap": "layer_swap", "delta_revert": "delta_revert"}
