"""The random experts of the study tests, for whole runs on real engines."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.study.conftest import experts, models
from tests.study.standins import write_yaml

__all__ = ["experts", "models"]


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
