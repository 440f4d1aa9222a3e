"""The names that transformers, peft and mergekit give to files of a model; what no path is.

`MODEL_FILES`, `WEIGHT_FILES` and `SECOND_COPIES` say what is downloaded of a model.
"""

from __future__ import annotations

import os

WEIGHTS_FILE = "model.safetensors"
"""All weights of a model, where they are in one file."""

WEIGHTS_INDEX = "model.safetensors.index.json"
"""File of each tensor, where they are in several."""

MERGED_RECIPE = "mergekit_config.yml"
"""The recipe that mergekit, and this package, leave in the folder of a merge."""

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"

TOKENIZER_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
    "vocab*",
    "*.model",
    "*.tiktoken",
    "*.spm",
    "*.bpe",
    "*.vocab",
    "spiece*",
    "tekken.json",
    "chat_template*",
    "tokenization_*.py",
    "additional_chat_templates",
)
"""Files of a tokenizer."""

MODEL_FILES = ("*.json", "*.jinja", "*.py", *TOKENIZER_FILES)
"""Files that a model is loaded by, besides its weights. A merge copies those of its donor."""

WEIGHT_FILES = "*.safetensors"
"""Files of weights; pickles are neither downloaded nor read."""

STATES = ("training_args.bin", "optimizer.*", "scheduler.*", "scaler.*", "rng_state*")
"""What transformers' Trainer saves beside weights: none of them are weights."""

SECOND_COPIES = ("consolidated*", "original/*")
"""The same weights once more."""

_LONGEST_NAME, _LONGEST_PATH = 255, 4095
"""Bytes of a file's name, and of a path."""


def path_problem(path: str | os.PathLike[str]) -> str | None:
    """Return why no file system has such a path; None where one may have it."""
    try:
        parts = os.fsencode(path).split(b"/")
    except UnicodeEncodeError:
        return "holds half of a character (a lone surrogate)"
    if any(b"\0" in part for part in parts):
        return "holds a NUL"
    if any(len(part) > _LONGEST_NAME for part in parts) or sum(map(len, parts)) > _LONGEST_PATH:
        return "is longer than a path can be"
    return None
