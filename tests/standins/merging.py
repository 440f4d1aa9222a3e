"""Recipes and merges for the tests: mergekit's own `run_merge`, in this process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml


def recipe(
    models: Mapping[str, Path | str],
    parameters: Mapping[str, Any] | None = None,
    base: Path | str | None = None,
    **top: Any,
) -> dict[str, Any]:
    """Return a `models:` recipe with one model a role; the base defaults to the task expert."""
    return {
        "merge_method": "layer_swap",
        "base_model": str(base if base is not None else models["task"]),
        "models": [
            {"model": str(path), "parameters": {"role": role}} for role, path in models.items()
        ],
        "parameters": dict(parameters or {}),
        **top,
    }


def roles(experts: SimpleNamespace) -> dict[str, Path]:
    """Return role -> folder of a trio of experts."""
    return {"task": experts.task, "language": experts.language}


def merge(document: Mapping[str, Any], out: Path, **options: Any) -> Path:
    """Merge as `mergekit-yaml` does and return the output folder."""
    from mergekit.config import MergeConfiguration
    from mergekit.merge import run_merge
    from mergekit.options import MergeOptions

    text = yaml.safe_dump(dict(document), sort_keys=False)
    run_merge(
        MergeConfiguration.model_validate(yaml.safe_load(text)),
        str(out),
        MergeOptions(**{"quiet": True, "copy_tokenizer": False, **options}),
        text,
    )
    return out
