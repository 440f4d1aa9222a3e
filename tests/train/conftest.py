"""A base and rows for all training tests. Do not write to them."""

import pytest

from tests.train.runs import write_base, write_rows


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    """Return a random Llama of four layers."""
    return write_base(tmp_path_factory.mktemp("train") / "base")


@pytest.fixture(scope="session")
def rows(tmp_path_factory):
    """Return a file of forty rows."""
    return write_rows(tmp_path_factory.mktemp("train") / "rows.jsonl")
