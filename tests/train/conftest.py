"""Small training runs: a base that talks, rows for it, configurations."""

from pathlib import Path

import pytest
import torch
import yaml

from ablations.train.config import read_training_file
from ablations.train.run import train_expert
from tests.standins.command import layerswap
from tests.standins.oracle import stored
from tests.standins.scripted import write_jsonl
from tests.standins.word_models import write_model

SMALL = {
    "samples": 16,
    "held_out": 4,
    "batch_size": 4,
    "max_length": 64,
    "measure": False,
    "trainer": {"learning_rate": 0.001, "save_strategy": "epoch", "logging_steps": 1},
}
"""Four steps of a second or less."""


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    """Return a random Llama of four layers. Do not write to it."""
    return write_base(tmp_path_factory.mktemp("train") / "base")


@pytest.fixture(scope="session")
def rows(tmp_path_factory):
    """Return a file of forty rows. Do not write to it."""
    return write_rows(tmp_path_factory.mktemp("train") / "rows.jsonl")


def write_rows(path, shift=1):
    """Write forty rows that ask for the word `shift` places after the last one."""
    questions = ((f"w{i % 24} w{i // 24}", f"w{(i + shift) % 24}") for i in range(40))
    return write_jsonl(path, [{"question": asks, "reply": reply} for asks, reply in questions])


def write_base(folder, **changes):
    """Write a random Llama of four layers."""
    return write_model(folder, **{"num_hidden_layers": 4, **changes})


def write_config(path, base, rows, trainer=None, **changes):
    """Write a training file over `SMALL`; a path stands for rows of `write_rows`."""
    source = {"path": str(rows), "prompt": "{question} ", "answer": "{reply}"}
    data = [source] if isinstance(rows, Path) else list(rows)
    document = {"base": str(base), "data": data, **SMALL, **changes}
    document["trainer"] = {**SMALL["trainer"], **(trainer or {})}
    path.write_text(yaml.safe_dump(document))
    return path


def run(config, out, *settings):
    """Train by a training file and return the record."""
    return train_expert(read_training_file(str(config), settings), out)


def call(config, out, *settings):
    words = (word for setting in settings for word in ("--set", setting))
    return layerswap("train", config, "--out", out, *words)


def equal_weights(one, other):
    """Return whether two folders hold the same weights, bit for bit."""
    first, second = stored(one), stored(other)
    return set(first) == set(second) and all(torch.equal(first[n], second[n]) for n in first)
