"""Files of a merged model besides its weights: its donor's config, tokenizer, code and settings."""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from types import MappingProxyType
from typing import Any

from layerswap_method.checkpoint.config import own_file, read_document, text_part
from layerswap_method.checkpoint.tokens import has_tokenizer
from layerswap_method.file_names import ADAPTER_CONFIG, MODEL_FILES, TOKENIZER_FILES
from layerswap_method.recipe.document import Recipe
from layerswap_method.write.files import write_json

_DONOR_ONLY = (
    "config.json",
    "*.index.json",
    "*_plan.json",
    ADAPTER_CONFIG,
    "harmonize.json",
    "layerswap_*",
    "optimizer*",
    "train*",
    "trainer_state.json",
    "*_results.json",
    "modules.json",  # sentence-transformers': it names folders with further files
    ".*",
)
"""Files of `MODEL_FILES` that say how the donor itself is stored or was made."""


def copy_donor_files(donor: Path, out: Path, dtype: str) -> None:
    """Write the donor's config with another `dtype`, and its `donor_files`.

    Python files are copied and never run. Raises `InputError` for a file that cannot be read or
    leads out of the folder.
    """
    write_config(read_document("donor", donor), out, dtype)
    copy_files(donor_files(donor), donor, out)


def write_config(
    document: Mapping[str, Any],
    out: Path,
    dtype: str | None,
    changes: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Write the donor's config, `document`, with `dtype` where it is given.

    `changes` are keys with other values, where the donor's config states them.
    """
    config = copy.deepcopy(dict(document))
    text = text_part(config)
    for part in (text, config):
        for key, value in changes.items():
            if part.get(key) is not None:
                part[key] = value
        if dtype is not None:
            for key in part.keys() & {"dtype", "torch_dtype"}:
                part[key] = dtype
    if dtype is not None and not config.keys() & {"dtype", "torch_dtype"}:
        config["dtype"] = dtype
    write_json(out / "config.json", config)


def copy_files(files: Iterable[Path], donor: Path, out: Path) -> None:
    """Copy files of the folder `donor`, and wait until they are on the disk."""
    for file in files:
        target = out / file.relative_to(donor)
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(file, target)
        with target.open("rb") as copied:
            os.fsync(copied.fileno())


def donor_files(donor: Path, *, with_tokenizer: bool = True) -> list[Path]:
    """Return the files that a merge takes from its donor as they are, besides the config.

    Raises `InputError` for one that leads out of the folder.
    """
    excluded = _DONOR_ONLY if with_tokenizer else (*_DONOR_ONLY, *TOKENIZER_FILES)
    templates = donor.glob("additional_chat_templates/*.jinja") if with_tokenizer else ()
    return [
        own_file(str(donor), donor, file)
        for file in (*sorted(donor.iterdir()), *templates)
        if _matches(file, MODEL_FILES) and not _matches(file, excluded) and file.is_file()
    ]


def _matches(file: Path, patterns: Sequence[str]) -> bool:
    return any(fnmatch(file.name, pattern) for pattern in patterns)


def tokenizer_problems(
    recipe: Recipe, folders: Mapping[str, Path], copies: bool = True
) -> Iterator[str]:
    """Yield models without the tokenizer that a setting needs: transformers may make up one.

    `folders` are those of the models that are on this machine, `copies` is ``--copy-tokenizer``.
    """
    setting, references = "tokenizer", list(folders) if recipe.aligns_tokens else []
    if not references and recipe.chat_template and copies:
        setting, references = "chat_template", [str(recipe.base_model)]
    for reference in references:
        if reference in folders and not has_tokenizer(folders[reference]):
            yield (
                f"{reference} has no tokenizer (tokenizer.json, tokenizer.model or vocab.json), "
                f"which {setting}: needs; copy its files there from the model it was trained from, "
                f"or drop {setting}:"
            )


def needs_remote_code(document: Mapping[str, Any], donor: Path) -> bool:
    """Return whether transformers runs code of the donor's folder to load it (``auto_map``)."""
    file = donor / "tokenizer_config.json"
    text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    return any('"auto_map"' in part for part in (json.dumps(document), text))
