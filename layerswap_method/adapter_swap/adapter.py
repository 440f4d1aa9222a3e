"""An adapter that is to be written, and the words for it. Knows no recipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True)
class NewAdapter:
    """An adapter in memory."""

    tensors: Mapping[str, torch.Tensor] = field(repr=False)
    """Content of ``adapter_model.safetensors``, contiguous."""

    config: Mapping[str, Any]
    """Content of ``adapter_config.json`` but for the base."""

    record: Mapping[str, Any]
    """For the plan file."""

    lines: tuple[str, ...]
    """For the log."""
