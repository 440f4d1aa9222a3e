"""A base and rows for all training tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.train.runs import write_base, write_rows


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a random Llama of four layers. Do not write to it."""
    return write_base(tmp_path_factory.mktemp("train") / "base")


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of forty rows. Do not write to it."""
    return write_rows(tmp_path_factory.mktemp("train") / "rows.jsonl")
