"""Tiny models of every family, experts near them, and their deltas computed anew in float64."""

import re
from functools import cache

import numpy as np
import pytest
import torch

from layerswap_method.deltas.pair import open_pair
from layerswap_method.recipe.references import Model
from tests.standins.oracle import stored
from tests.standins.tuned import tune
from tests.standins.zoo import make_model


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
    return open_pair(Model(expert.name, expert), Model(base.name, base))


def read(folder):
    """Return every tensor of a checkpoint as float64."""
    return {name: tensor.double().numpy() for name, tensor in stored(folder).items()}


def rows(name, delta, family):
    """Return the MAV of every input feature: the mean over the outputs, by how each is stored."""
    magnitude = np.abs(delta)
    if delta.ndim == 1:
        return magnitude.mean(keepdims=True)
    if family == "gpt2" and re.search(r"(c_attn|c_proj|c_fc)\.weight$", name):
        return magnitude.mean(axis=1)  # [in, out]
    if family == "gpt_oss" and "experts" in name:
        return magnitude.mean(axis=-1).ravel()  # [experts, in, out], and a bias an expert
    return magnitude.mean(axis=0).ravel()  # [out, in], [out, channels, height, width]


def statistics(name, expert, base, family, threshold):
    """Return what `delta.csv` says of one tensor."""
    delta = expert - base
    mav, norm = rows(name, delta, family), np.linalg.norm(base)
    found = {
        "rows": mav.size,
        "mav": mav.mean(),
        "mav_max": mav.max(),
        "share_above": (mav > threshold).mean(),
        "share_changed": (delta != 0).mean(),
    }
    return found | ({"relative_norm": np.linalg.norm(delta) / norm} if norm > 0 else {})
