"""Built once: the wheel, an environment that has it, and two experts to merge."""

import shutil

import pytest
import torch
import yaml

from tests.standins import merging
from tests.standins.environment import Environment, build_wheel, mirror_packages
from tests.standins.zoo import make_model


@pytest.fixture(scope="session")
def packages(tmp_path_factory):
    return mirror_packages(tmp_path_factory.mktemp("borrowed") / "site-packages")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def environment(tmp_path, packages):
    return Environment.create(tmp_path / "venv", packages)


@pytest.fixture(scope="session")
def installed(tmp_path_factory, packages, wheel):
    """Return an environment with the wheel. Do not change it; see `changed`."""
    made = Environment.create(tmp_path_factory.mktemp("installed") / "venv", packages)
    made.install(wheel)
    return made


@pytest.fixture
def changed(installed, tmp_path):
    """Return that environment; what is changed in its packages is put back."""
    kept = shutil.copytree(installed.site_packages, tmp_path / "kept", symlinks=True)
    yield installed
    shutil.rmtree(installed.site_packages)
    shutil.copytree(kept, installed.site_packages, symlinks=True)


@pytest.fixture(scope="session")
def experts(tmp_path_factory):
    """Two random Llama models of four layers, without a tokenizer."""
    root = tmp_path_factory.mktemp("experts")
    roles = enumerate(("task", "language"))
    sizes = {"num_hidden_layers": 4, "dtype": torch.float32}
    return {role: make_model("llama", root / role, seed, **sizes) for seed, role in roles}


@pytest.fixture
def recipe(experts, tmp_path):
    """One bottom and one top layer from the language expert."""
    path = tmp_path / "recipe.yml"
    document = merging.recipe(experts, {"bottom_layers": 1, "top_layers": 1}, dtype="float32")
    path.write_text(yaml.safe_dump(document))
    return path
