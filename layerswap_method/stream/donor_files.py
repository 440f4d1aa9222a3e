"""What a merged model has besides its weights: its donor's config, tokenizer and settings."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from layerswap_method.errors import InputError
from layerswap_method.stream.write import write_text

_TOKENIZER = ("tokenizer_config.json", "tokenizer.json", "tokenizer.model")
_FILES = (
    *_TOKENIZER,
    *("special_tokens_map.json", "added_tokens.json", "merges.txt"),
    *("chat_template.jinja", "chat_template.json"),
    *("generation_config.json", "video_preprocessor_config.json"),
)
"""What mergekit copies."""

_SLOW = ("vocab*", "*.model", "*.tiktoken", "tekken.json")
"""Vocabularies of donors without a fast tokenizer; mergekit has transformers save them anew."""


def copy_donor_files(donor: Path, out: Path, dtype: str | None) -> None:
    """Write the donor's config, tokenizer and generation settings.

    The config is the donor's own, not what transformers makes of it.

    Args:
        donor: a checkpoint.
        out: where to; must exist.
        dtype: torch dtype that the config is to state; None leaves what it says.

    Raises:
        InputError: where the config cannot be read.
    """
    try:
        config = json.loads((donor / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{donor}: no readable config: {error}") from error
    if dtype is not None:
        config["torch_dtype" if "torch_dtype" in config else "dtype"] = dtype
    write_text(out / "config.json", json.dumps(config, indent=2, ensure_ascii=False) + "\n")
    for file in _tokenizer_files(donor):
        shutil.copyfile(file, out / file.name)


def _tokenizer_files(donor: Path) -> Iterator[Path]:
    patterns = list(_FILES)
    if not any((donor / name).is_file() for name in _TOKENIZER[1:]):
        patterns += _SLOW
    for pattern in patterns:
        yield from (file for file in sorted(donor.glob(pattern)) if file.is_file())
