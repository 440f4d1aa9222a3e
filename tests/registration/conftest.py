"""Built once: the wheel, links to the packages it needs, and two experts to merge."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

from tests.registration.environment import Environment, build_wheel, mirror_packages
from tests.standins import merging
from tests.standins.zoo import make_model


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mirror_packages(tmp_path_factory.mktemp("borrowed") / "site-packages")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def new_environment(tmp_path: Path, packages: Path) -> Callable[[], Environment]:
    count = iter(range(9))
    return lambda: Environment.create(tmp_path / f"venv{next(count)}", packages)


@pytest.fixture
def environment(new_environment: Callable[[], Environment]) -> Environment:
    return new_environment()


@pytest.fixture
def with_wheel(environment: Environment, wheel: Path) -> Environment:
    environment.install(wheel)
    return environment


@pytest.fixture(scope="session")
def experts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two random Llama models of four layers, without a tokenizer."""
    root = tmp_path_factory.mktemp("experts")
    roles = enumerate(("task", "language"))
    sizes = {"num_hidden_layers": 4, "dtype": torch.float32}
    return {role: make_model("llama", root / role, seed, **sizes) for seed, role in roles}


@pytest.fixture
def recipe(experts: dict[str, Path], tmp_path: Path) -> Path:
    """One bottom and one top layer from the language expert."""
    path = tmp_path / "recipe.yml"
    document = merging.recipe(experts, {"bottom_layers": 1, "top_layers": 1}, dtype="float32")
    path.write_text(yaml.safe_dump(document))
    return path
