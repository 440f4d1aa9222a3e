"""What a plan says aloud of its merges. Knows cells and headers; checks and runs nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ablations.models.find import Expert
from ablations.study.cells import Cell
from layerswap_method.checkpoint.checkpoint import read_checkpoint
from layerswap_method.methods.layer_swap_merge import large_swap_warning
from layerswap_method.methods.read import recipe_by_files

_NAMED = 4
"""Cells at most that a note names."""


def mostly_swapped(cells: Sequence[Cell]) -> list[str]:
    """Return a warning about the merges that are the language expert more than the task expert."""
    found = {
        cell.label: warning
        for cell in cells
        if cell.recipe is not None and cell.plan is not None
        for warning in large_swap_warning(cell.recipe.parameters, cell.plan)
    }
    labels = list(found)
    if len(labels) < 2:
        return [f"{label}: {warning}" for label, warning in found.items()]
    more = f" and {len(labels) - _NAMED} more" if len(labels) > _NAMED else ""
    return [
        f"{len(labels)} merges take more than half of the layers from the language expert (the "
        f"paper swaps 7 of 32): {'; '.join(labels[:_NAMED])}{more}"
    ]


def rounded(experts: Mapping[str, Expert], dtype: str) -> list[str]:
    """Return which experts are stored in more digits than all models run in.

    Args:
        experts: by name, the base first.
        dtype: of the base, in which everything runs because nothing else was asked for.
    """
    base, *others = experts
    stored = {
        name: read_checkpoint(name, experts[name].folder).dtype
        for name in others
        if dtype in ("bfloat16", "float16") and experts[name].adapter is None
    }
    found = {name: each for name, each in stored.items() if each not in (None, dtype)}
    if not found:
        return []
    are = "is" if len(found) == 1 else "are"
    return [
        f"{', '.join(found)} {are} stored in {' and '.join(sorted(set(map(str, found.values()))))} "
        f"and {base} in {dtype}: all models run in {dtype}, with rounded weights; --dtype float32 "
        "(evaluate.options.dtype) keeps them as stored"
    ]


def unstreamed(cells: Sequence[Cell]) -> list[str]:
    """Return what is merged to disk before it is evaluated, live engine or not."""
    found = {
        cell.weights_key: str(cell.merge["merge_method"])
        for cell in cells
        if recipe_by_files(cell.merge) is None
    }
    if not found:
        return []
    methods = ", ".join(dict.fromkeys(found.values()))
    return [
        f"merges that cannot be streamed into an engine: {len(found)} ({methods}); mergekit-yaml "
        "writes each of them to disk first, one at a time"
    ]
