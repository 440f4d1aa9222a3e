"""One model as files: a name, a folder, an adapter."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class ModelFiles(Protocol):
    """One model on this machine."""

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def folder(self) -> Path:
        """The checkpoint."""

    @property
    def adapter(self) -> Path | None:
        """A LoRA adapter on top of the checkpoint."""


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

    @property
    def files(self) -> tuple[Path, Path | None]:
        """Return what is read: folder and adapter, whatever the model is called."""
        return self.folder, self.adapter
