"""Settings of the configs that change what a model computes, compared between checkpoints."""

from __future__ import annotations

from collections.abc import Sequence

from layerswap_method.checkpoint.checkpoint import Checkpoint
from layerswap_method.checkpoint.config import FIELDS, read_document, stated_fields, text_part


def mixed_settings(checkpoints: Sequence[Checkpoint]) -> list[str]:
    """Return each setting in which the checkpoints differ, with the value of each of them."""
    stated = [stated_fields(text_part(read_document(c.name, c.path))) for c in checkpoints]
    differing = []
    for name, field in FIELDS.items():
        values = [settings[name] for settings in stated]
        if field.needs_same and any(value != values[0] for value in values):
            named = (f"{c.name} {v}" for c, v in zip(checkpoints, values, strict=True))
            differing.append(f"{field.label}: {', '.join(named)}")
    return differing
