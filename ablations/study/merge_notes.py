"""What a plan says aloud of its merges. Knows cells; checks and runs nothing."""

from __future__ import annotations

from collections.abc import Sequence

from ablations.study.cells import Cell
from layerswap_method.layer_swap.report import most_swapped
from layerswap_method.merge_stream import can_stream

_NAMED = 4
"""Cells at most that a note names."""


def mostly_swapped(cells: Sequence[Cell]) -> list[str]:
    """Return a warning about the merges that are the language expert more than the task expert."""
    found = {
        cell.label: warning
        for cell in cells
        if cell.recipe is not None and cell.plan is not None
        if (warning := most_swapped(cell.recipe.parameters, cell.plan)) is not None
    }
    labels = list(found)
    if len(labels) < 2:
        return [f"{label}: {warning}" for label, warning in found.items()]
    more = f" and {len(labels) - _NAMED} more" if len(labels) > _NAMED else ""
    return [
        f"{len(labels)} merges take more than half of the layers from the language expert (the "
        f"paper swaps 7 of 32): {'; '.join(labels[:_NAMED])}{more}"
    ]


def unstreamed(cells: Sequence[Cell]) -> list[str]:
    """Return what is merged to disk before it is evaluated, live engine or not."""
    found = {
        cell.weights_key: str(cell.merge["merge_method"])
        for cell in cells
        if not can_stream(cell.merge)
    }
    if not found:
        return []
    methods = ", ".join(dict.fromkeys(found.values()))
    return [
        f"merges that cannot be streamed into an engine: {len(found)} ({methods}); mergekit-yaml "
        "writes each of them to disk first, one at a time"
    ]
