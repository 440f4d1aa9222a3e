"""What a folder or a YAML file is where another kind was expected, and which command takes it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from layerswap_method.errors import InputError
from layerswap_method.recipe.strict_yaml import read_yaml

_KINDS = (
    ({"merge_method"}, "it is a recipe: layerswap merge makes a model of it"),
    ({"question", "evaluate"}, "it is a study: layerswap run evaluates it"),
    ({"data", "regime", "extends"}, "it is a training file: layerswap train makes an expert of it"),
    ({"task", "output_type"}, "it is a task file of lm-eval: name its folder with --include-path"),
)
"""Keys of which a document of a kind has one or more -> what it is and what takes it."""


def document_kind(document: Any) -> str:
    """Return what a YAML document is, to end a message: ``"; it is a recipe: ..."``, or ``""``."""
    keys = set(document) if isinstance(document, Mapping) else set()
    return next((f"; {kind}" for names, kind in _KINDS if keys & names), "")


def place_kind(path: Path) -> str:
    """Return what a file or folder that is there is, as `document_kind` does."""
    if path.is_dir():
        if (path / "run.json").is_file():
            return "; it is a run folder: layerswap compare, report and answers take it"
        if (path / "config.json").is_file():
            return "; it is a model's folder: layerswap evaluate takes it"
    elif path.suffix in (".yml", ".yaml") and path.is_file():
        try:
            return document_kind(read_yaml(path))
        except InputError:  # of no kind that is known here
            return ""
    return ""
