"""Tiny models of every family and experts of them, made once. Do not write to them."""

from functools import cache

import pytest
import torch

from tests.delta.experts import family_pair


@pytest.fixture(scope="session")
def pair(tmp_path_factory):
    """Return a function: family and dtype -> (expert, base)."""
    return cache(
        lambda family, dtype=torch.float32: family_pair(
            family, tmp_path_factory.mktemp(family), dtype
        )
    )
