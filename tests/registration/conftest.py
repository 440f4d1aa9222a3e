"""Built once: the wheel, links to the packages it needs, and two experts to merge."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.registration.environment import Environment, build_wheel, mirror_packages


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
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    made = {}
    for seed, role in enumerate(("task", "language")):
        torch.manual_seed(seed)
        made[role] = tmp_path_factory.mktemp("experts") / role
        LlamaForCausalLM(config).save_pretrained(made[role])
    return made


@pytest.fixture
def recipe(experts: dict[str, Path], tmp_path: Path) -> Path:
    """One bottom and one top layer from the language expert."""
    path = tmp_path / "recipe.yml"
    path.write_text(
        f"""\
merge_method: layer_swap
base_model: {experts["task"]}
models:
  - model: {experts["task"]}
    parameters: {{role: task}}
  - model: {experts["language"]}
    parameters: {{role: language}}
parameters: {{bottom_layers: 1, top_layers: 1}}
dtype: float32
"""
    )
    return path
