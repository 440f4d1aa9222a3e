from __future__ import annotations

from pathlib import Path

import pytest

from ablations.pocket.build import PocketPaths, build_pocket
from ablations.pocket.config import PocketConfig


@pytest.fixture(scope="session")
def tiny_pocket(tmp_path_factory: pytest.TempPathFactory) -> PocketPaths:
    """Return a testbed of the `tiny` preset. Do not write to it."""
    out: Path = tmp_path_factory.mktemp("pocket") / "tiny"
    return build_pocket(out, PocketConfig.preset("tiny"), progress=False)
