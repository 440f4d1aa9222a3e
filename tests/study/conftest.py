from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.standins.studies import write_expert, write_tasks, write_yaml


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
