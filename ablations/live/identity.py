"""What a model is besides its tensors: config, tokenizer, generation settings. Knows files.

A live engine keeps those it was started with. A cell that would get others from its donor, merged
to disk, is another model for the same tensors.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_SETTINGS = ("config.json", "generation_config.json", "tokenizer_config.json")
_CONTENTS = (
    *("tokenizer.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json"),
)
_IDLE = frozenset(
    {
        *("transformers_version", "_name_or_path", "name_or_path", "_from_model_config"),
        *("dtype", "torch_dtype", "use_cache", "output_attentions", "output_hidden_states"),
    }
)
"""Keys that change no answer; the dtype is compared by itself."""


def differences(one: Path, other: Path) -> list[str]:
    """Return what differs between two checkpoints besides their tensors, file by file."""
    return [] if one.resolve() == other.resolve() else list(_differences(one, other))


def _differences(one: Path, other: Path) -> Iterator[str]:
    for name in _SETTINGS:
        first, second = _settings(one / name), _settings(other / name)
        keys = sorted(
            key
            for key in {*first, *second} - _IDLE
            if first.get(key, _ABSENT) != second.get(key, _ABSENT)
        )
        if keys:
            yield f"{name} ({', '.join(keys[:3])}{', ...' if len(keys) > 3 else ''})"
    for name in _CONTENTS:
        if _digest(one / name) != _digest(other / name):
            yield name


_ABSENT = object()


def _settings(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


def _digest(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
