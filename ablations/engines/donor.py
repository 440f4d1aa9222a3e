"""How two models differ besides their tensors: config, generation settings and tokenizer.

A live engine keeps those it was started with. A cell that would get others from its donor, merged
to disk, is another model for the same tensors. Files are compared by what transformers reads in
them: two versions of it write the same settings in different words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ablations.machine.fingerprint import hash_file

_TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json"),
    *("added_tokens.json", "vocab.json", "merges.txt"),
)
_IDLE = frozenset(
    {
        *("transformers_version", "_name_or_path", "_from_model_config", "_commit_hash"),
        *("dtype", "torch_dtype", "use_cache", "output_attentions", "output_hidden_states"),
    }
)
"""Keys that change no answer. The dtype is compared by itself; the chat template is not compared
at all, because every model is prompted with that of its donor (`ablations.engines.chat`)."""


def differences(one: Path, other: Path) -> list[str]:
    """Return what differs between two checkpoints besides their tensors, file by file."""
    if one.resolve() == other.resolve():
        return []
    readers = {"config.json": _config, "generation_config.json": _generation}
    if _digests(one) != _digests(other):
        readers["tokenizer"] = _tokenizer
    differing = []
    for name, read in readers.items():
        ours, theirs = read(one), read(other)
        keys = sorted(key for key in {*ours, *theirs} if ours.get(key) != theirs.get(key))
        if keys:
            differing.append(f"{name} ({', '.join(keys[:3])}{', ...' if len(keys) > 3 else ''})")
    return differing


def _config(folder: Path) -> dict[str, Any]:
    from transformers import AutoConfig

    return _active(AutoConfig.from_pretrained(folder).to_dict())


def _generation(folder: Path) -> dict[str, Any]:
    """Return the generation settings; where there is no file, engines take them from the config."""
    from transformers import AutoConfig, GenerationConfig

    if (folder / "generation_config.json").is_file():
        settings = GenerationConfig.from_pretrained(folder)
    else:
        settings = GenerationConfig.from_model_config(AutoConfig.from_pretrained(folder))
    return _active(settings.to_dict())


def _active(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _active(value) if isinstance(value, Mapping) else value
        for key, value in settings.items()
        if key not in _IDLE and value is not None
    }


def _tokenizer(folder: Path) -> dict[str, Any]:
    """Return what decides how text becomes tokens, and which of them are special."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    facts = {
        "class": type(tokenizer).__name__,
        "special tokens": {key: str(each) for key, each in tokenizer.special_tokens_map.items()},
        "model_max_length": tokenizer.model_max_length,
    }
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return facts | _digests(folder)
    stages = json.loads(backend.to_str())
    return facts | {key: stages[key] for key in stages if key not in ("padding", "truncation")}


def _digests(folder: Path) -> dict[str, str]:
    paths = (folder / name for name in _TOKENIZER_FILES)
    return {path.name: hash_file(path) for path in paths if path.is_file()}
