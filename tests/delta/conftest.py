"""Tiny models of every family and experts near them: a little noise on every weight."""

from functools import cache

import pytest
import torch

from layerswap_method.deltas.pair import read_pair
from layerswap_method.recipe.references import Model
from tests.standins.fine_tunes import tune
from tests.standins.model_families import make_model


@pytest.fixture(scope="session")
def pair(tmp_path_factory):
    """Return a function: family and dtype -> (expert, base), made once. Do not write to them."""
    return cache(lambda *kind: family_pair(tmp_path_factory.mktemp("pair"), *kind))


def family_pair(folder, family, dtype=torch.float32):
    """Write a tiny model of a family and an expert of it; return (expert, base)."""
    base = make_model(family, folder / "base", 1, dtype=dtype)
    return fine_tuned(base, folder / "expert", 2), base


def fine_tuned(base, to, seed, changes=lambda name: True):
    """Write an expert: the base with noise on the tensors that `changes` says."""
    return tune(base, to, seed, lambda name: 1e-3 if changes(name) else 0.0, None)


def pair_of(expert, base):
    """Open an expert beside its base, each called as its folder."""
    return read_pair(Model(expert.name, expert), Model(base.name, base))
