from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.standins.oracle import layer_number
from tests.standins.studies import write_expert, write_tasks, write_yaml
from tests.standins.tuned import tune


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with base, two task and two language experts of 4 layers. Read only."""
    folder = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(("base", "math", "math_2", "swahili", "telugu")):
        write_expert(folder / name, seed)
    write_tasks(folder / "tasks", ["words", "words_sw", "words_te"])
    return folder


@pytest.fixture
def experts(models: Path, tmp_path: Path) -> Path:
    """Return an experts file."""
    names = ("base", "math", "math_2", "swahili", "telugu")
    document = {
        "experts": {name: str(models / name) for name in names},
        "include_path": str(models / "tasks"),
    }
    return write_yaml(tmp_path / "experts.yml", document)


@pytest.fixture
def other_generation(tmp_path: Path, models: Path) -> Path:
    """Experts whose math one has another generation config than the base."""
    names = ("base", "math", "swahili")
    for name in names:
        shutil.copytree(models / name, tmp_path / name)
    config = tmp_path / "math" / "generation_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"bos_token_id": 3}))
    setting = {"experts": {name: str(tmp_path / name) for name in names}}
    return write_yaml(tmp_path / "experts.yml", setting | {"include_path": str(models / "tasks")})


@pytest.fixture(scope="session")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a base, fine-tunes of it that moved other layers, and tasks."""
    folder = tmp_path_factory.mktemp("tuned")
    base = write_expert(folder / "base", 0)
    for seed, (name, far) in enumerate({"math": (1, 2), "swahili": (0, 3), "telugu": (3,)}.items()):
        # Far from the base: small changes change no answer of a random model.
        tune(base, folder / name, seed, lambda n, far=far: 0.15 if layer_number(n) in far else 0.05)  # type: ignore[misc]
    write_tasks(folder / "tasks", ["words"])
    names = ("base", "math", "swahili", "telugu")
    document = {
        "experts": {name: str(folder / name) for name in names},
        "include_path": str(folder / "tasks"),
    }
    write_yaml(folder / "experts.yml", document)
    return folder
