"""Patches in copies of mergekit and lm-eval, without our package: their tests; our tensors."""

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from importlib.metadata import EntryPoint, version
from pathlib import Path

import lm_eval
import mergekit
import pytest
import torch

from tests.registration.test_install import packages  # noqa: F401 - a fixture
from tests.standins import merging
from tests.standins.environment import Environment
from tests.standins.model_families import make_model
from tests.standins.oracle import stored
from tests.upstream import common

FOLDER = Path(__file__).parents[2] / "upstream"
PATCHES = sorted(FOLDER.glob("[0-9]_*/*.patch"))  # each needs those before it
# mergekit's release has these, its installation does not.
NOT_INSTALLED = (
    "--exclude=README.md",
    "--exclude=docs/*",
    "--exclude=tests/test_merge_method_regressions.py",
)
ZONES = {"bottom_layers": 1, "top_layers": 1, "bottom_transition": 1, "top_transition": 1}
RECIPES = {
    "the paper's": ("tl", {"bottom_layers": 2, "top_layers": 1}, {}),
    "weights": ("tltl", ZONES, {0: 2.0, 3: 8.0}),
    "base": ("ttl", {**ZONES, "bottom_transition": 2, "non_layer": "base"}, {}),
    "language": ("tll", {**ZONES, "top_transition": 0, "non_layer": "language"}, {}),
    "odd weights": ("tltl", {**ZONES, "non_layer": "task"}, {0: 0.7, 1: 1.3}),
}


def new_tests(patch):
    """Test files that a patch adds."""
    return re.findall(r"^--- /dev/null\n\+\+\+ b/(tests/.+)$", patch.read_text("utf-8"), re.M)


class Copy(Environment):
    """A package that may be changed, with what its tests import, without our package."""

    def apply(self, patch, *options):
        # Outside any repository, so that git takes the paths as they are.
        variables = {"GIT_CEILING_DIRECTORIES": str(self.root), "PATH": "/usr/bin:/bin"}
        command = ["git", "apply", *options, str(patch)]
        subprocess.run(command, cwd=self.site_packages, env=variables, check=True)

    def pytest(self, *names):
        """Run tests of the copy, with none of our plug-ins, settings or cache."""
        paths = [self.site_packages / name for name in names]
        flags = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-c", "/dev/null")
        done = self.run(self.python, "-m", "pytest", *flags, *paths, check=False, timeout=3600)
        assert (done.returncode, " passed" in done.stdout) == (0, True), done.stdout


def make_copy(root, packages, package):  # noqa: F811
    made = Copy.create(root, packages)
    source = Path(package.__file__).parent
    shutil.copytree(source, made.site_packages / package.__name__)
    (made.site_packages / "tests").mkdir()
    (made.site_packages / "tests" / "__init__.py").touch()
    return made


@pytest.fixture
def copy_of_mergekit(tmp_path, packages):  # noqa: F811
    made = make_copy(tmp_path / "venv", packages, mergekit)
    shutil.copy(common.__file__, made.site_packages / "tests" / "common.py")
    return made


@pytest.fixture(scope="module")
def mergekit_with_all(tmp_path_factory, packages):  # noqa: F811
    made = make_copy(tmp_path_factory.mktemp("upstream") / "venv", packages, mergekit)
    assert made.code("import layerswap_method", check=False).returncode == 1
    for patch in PATCHES:
        made.apply(patch, "--include=mergekit/*")
    return made


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Four random Llamas of six layers, in bfloat16."""
    root = tmp_path_factory.mktemp("models")
    sizes = {"num_hidden_layers": 6, "dtype": torch.bfloat16}
    return [make_model("llama", root / str(seed), seed, **sizes) for seed in range(4)]


@pytest.mark.slow
@pytest.mark.parametrize("case", RECIPES)
def test_every_tensor_is_ours(case, mergekit_with_all, models, tmp_path):
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
    mergekit_with_all.run("mergekit-yaml", path, tmp_path / "theirs", "--no-copy-tokenizer")
    theirs = stored(tmp_path / "theirs")
    torch.testing.assert_close(theirs, ours, rtol=0, atol=0)


@pytest.mark.slow
def test_each_patch_applies_after_those_before_it_and_its_tests_pass(copy_of_mergekit):
    for patch in PATCHES:
        copy_of_mergekit.apply(patch, *NOT_INSTALLED)
        copy_of_mergekit.pytest(*new_tests(patch))


@pytest.mark.slow
@pytest.mark.parametrize("patch", PATCHES[:3], ids=lambda patch: patch.stem)
def test_the_first_three_apply_by_themselves(patch, copy_of_mergekit):
    copy_of_mergekit.apply(patch, "--check", *NOT_INSTALLED)


@pytest.mark.slow
def test_mergekits_own_tests_pass_there(copy_of_mergekit, tmp_path):
    """Its release has them all but `tests/common.py`; it comes from the package index."""
    name = f"mergekit=={version('mergekit')}"
    flags = ["--no-deps", "--no-binary", "mergekit", "--dest", str(tmp_path), name]
    if subprocess.run([sys.executable, "-m", "pip", "download", *flags], check=False).returncode:
        pytest.skip("mergekit's release cannot be downloaded from the package index")
    (archive,) = tmp_path.glob("mergekit-*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path / "release", filter="data")
    for test in (tmp_path / "release").glob("*/tests/test_*.py"):
        shutil.copy(test, copy_of_mergekit.site_packages / "tests")
    (readme,) = (tmp_path / "release").glob("*/README.md")
    shutil.copy(readme, copy_of_mergekit.site_packages)
    for patch in PATCHES:
        copy_of_mergekit.apply(patch, "--exclude=docs/*")  # the release lacks docs
    copy_of_mergekit.pytest("tests")


@pytest.mark.slow
def test_the_tests_of_mgsm_pass_in_a_copy_of_lm_eval(tmp_path, packages):  # noqa: F811
    made = make_copy(tmp_path / "venv", packages, lm_eval)
    patch = FOLDER / "lm_eval_mgsm" / "mgsm.patch"
    made.apply(patch)
    made.pytest(*new_tests(patch))


def test_the_folders_are_the_pull_requests_of_the_page():
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    patches = [str(path.relative_to(FOLDER)) for path in sorted(FOLDER.glob("*/*.patch"))]
    assert len(patches) == len(PATCHES) + 1
    assert re.findall(r"\]\((\w+/\w+\.patch)\)", page) == patches
    for patch in patches:
        assert (FOLDER / patch).with_name("description.md").is_file()
        assert new_tests(FOLDER / patch)


def test_the_entry_points_that_we_declare_are_our_methods():
    declared = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text(encoding="utf-8"))
    points = declared["project"]["entry-points"]["mergekit.merge_methods"]
    found = {name: EntryPoint(name, value, "").load().spec.name for name, value in points.items()}
    assert found == {"layer_swap": "layer_swap", "delta_revert": "delta_revert"}
