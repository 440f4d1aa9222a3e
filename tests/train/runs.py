"""Small training runs: a base that talks, rows for it, configurations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.standins.talkers import write_model

SMALL: dict[str, Any] = {
    "samples": 16,
    "held_out": 4,
    "batch_size": 4,
    "max_length": 64,
    "learning_rate": 0.001,
    "compute": "float32",
    "gradient_checkpointing": False,
    "save_every": None,
    "log_every": 1,
}
"""Four steps of a second or less."""


def write_rows(path: Path, count: int = 40, shift: int = 1) -> Path:
    """Write rows that ask for the word `shift` places after the last one."""
    rows = [
        {
            "question": f"w{i % 24} w{i // 24}",
            "reply": f"w{(i + shift) % 24}",
            "language": "ab"[i % 2],
        }
        for i in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_base(folder: Path, **changes: Any) -> Path:
    """Write a random Llama of four layers."""
    return write_model(folder, **{"num_hidden_layers": 4, **changes})


def write_config(path: Path, base: Path, rows: Path | Sequence[Any], **changes: Any) -> Path:
    """Write a configuration over `SMALL`; a path stands for rows of `write_rows`."""
    source = {"path": str(rows), "prompt": "{question} ", "answer": "{reply}"}
    data = [source] if isinstance(rows, Path) else list(rows)
    document = {"base": str(base), "data": data, **SMALL, **changes}
    path.write_text(yaml.safe_dump(document))
    return path


def weights(folder: Path) -> dict[str, Any]:
    """Return every tensor of an expert."""
    from safetensors.torch import load_file

    return {
        name: tensor
        for file in sorted(folder.glob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }
