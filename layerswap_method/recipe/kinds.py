"""What a folder or a YAML file is where another kind was expected, and which command takes it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from layerswap_method.errors import InputError
from layerswap_method.recipe.strict_yaml import read_yaml

_KINDS = {
    "a recipe": ({"merge_method"}, "layerswap merge makes a model of it"),
    "a study": ({"question", "evaluate"}, "layerswap run evaluates it"),
    "a training file": ({"data", "regime", "extends"}, "layerswap train makes an expert of it"),
    "a task file of lm-eval": (
        {"output_type", "dataset_path", "doc_to_text", "include", "group"},
        "name its folder with --include-path",
    ),
}
"""Kind of a document -> keys of which it has one or more, and what takes it."""


def document_kind(document: Any, expected: str = "") -> str:
    """Return what a YAML document is, to end a message: ``"; it is a recipe: ..."``.

    "" for the kind that is `expected`, and for a document of no kind that is known here.
    """
    keys = set(document) if isinstance(document, Mapping) else set()
    for kind, (names, use) in _KINDS.items():
        if keys & names:
            return "" if kind == expected else f"; it is {kind}: {use}"
    return ""


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
