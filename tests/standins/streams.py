"""A recipe's merge, its tensors computed from the experts' files without a merged copy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from layerswap_method.methods.read import merge_of_one, recipe_by_files
from layerswap_method.recipe.document import Merge
from layerswap_method.recipe.references import Model, find_model_files
from layerswap_method.tensors import read_mix


def merge_of(document: Mapping[str, Any]) -> Merge:
    """Return the merge of a recipe with `models:`."""
    recipe = recipe_by_files(document)
    assert recipe is not None
    return recipe.merge({name: find_model_files(name) for name in recipe.references})


def merge_of_folder(folder: Path, adapter: Path | None = None) -> Merge:
    """Return one checkpoint, with its adapter if there is one, as a merge."""
    return merge_of_one(Model(str(folder), Path(folder), adapter))


def tensors_of(made: Merge) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield name and tensor."""
    for name, mix in made.tensors.items():
        yield name, read_mix(mix)
