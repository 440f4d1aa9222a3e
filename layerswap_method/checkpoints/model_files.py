"""One model as files: a name, a folder, an adapter."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class StreamInput:
    """One model that a stream reads."""

    name: str
    """For messages."""

    folder: Path
    """The checkpoint."""

    role: str | None = None
    """`task`, `language`, or None for a base."""

    weight: float = 1.0
    """Weight within the soup of its role (`linear`: within the whole); 0 or more."""

    adapter: Path | None = None
    """A LoRA adapter on top of the checkpoint."""
