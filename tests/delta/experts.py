"""Experts near a base: checkpoints of every family with a little noise on every weight."""

import torch

from layerswap_method.deltas.pair import open_pair
from layerswap_method.recipe.references import Model
from tests.standins.tuned import tune
from tests.standins.zoo import make_model


def fine_tuned(base, to, seed, changes=lambda name: True):
    """Write an expert: the base with noise on the tensors that `changes` says."""
    return tune(base, to, seed, lambda name: 1e-3 if changes(name) else 0.0, None)


def pair_of(expert, base, adapter=None):
    """Open an expert beside its base, each called as its folder."""
    sides = (Model(expert.name, expert, adapter=adapter), Model(base.name, base))
    return open_pair(*sides)


def family_pair(family, folder, dtype=torch.float32):
    """Write a tiny model of a family and an expert of it; return (expert, base)."""
    base = make_model(family, folder / "base", 1, dtype=dtype)
    return fine_tuned(base, folder / "expert", 2), base
