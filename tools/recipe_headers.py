"""The header that every shipped recipe has; `tests/recipes` says what is wrong with one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ablations.paper.published import published_tables
from ablations.recipe_commands.find import (
    FIELDS,
    command_words,
    read_recipe_header,
    recipe_files,
    shipped_root,
)
from layerswap_method.recipe.references import is_hub_id, named_models

_DTYPES = ("float32", "bfloat16")
_OUTPUTS = ("./merged/", "runs/merged/")
"""Folders of merges, which git ignores."""


def header_problems(path: Path, text: str, document: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the header of a recipe that is meant for the gallery.

    `text` and `document` are the content of the file `path`.
    """
    header = read_recipe_header(text)
    missing = [field for field in FIELDS if not header.get(field)]
    if missing:
        yield f"header: {', '.join(missing)}: missing or empty; write # {missing[0]}: ..."
    elif tuple(header) != FIELDS:
        yield f"header: its fields are in another order; write {', '.join(FIELDS)}"
    adapters = [name for name in named_models(document) if "+" in name]
    if "Run" in header:
        yield from _command_problems(path, header, bool(adapters))
    if "Needs" in header:
        yield from _needs_problems(header["Needs"], document)
    if "Expected" in header:
        yield from _expected_problems(header["Expected"])
    if not document.get("base_model"):
        yield "base_model: is missing; without it mergekit takes config and tokenizer of any model"
    if document.get("dtype") not in _DTYPES:
        yield f"dtype: must be one of {', '.join(_DTYPES)}, not {document.get('dtype')!r}"


def _command_problems(path: Path, header: Mapping[str, str], has_adapter: bool) -> Iterator[str]:
    words = command_words(header)
    if words[:1] != ["mergekit-yaml"] or len(words) < 3:
        yield "header: Run: write mergekit-yaml RECIPE ./merged/NAME"
        return
    if not path.resolve().as_posix().endswith(f"/{words[1].removeprefix('./').lstrip('/')}"):
        yield f"header: Run: names {words[1]}; write {path}"
    if not words[2].startswith(_OUTPUTS):
        yield f"header: Run: merges to {words[2]}; write ./merged/NAME, which git ignores"
    for other in recipe_files(shipped_root()):
        if other.resolve() != path.resolve():
            other_words = command_words(read_recipe_header(other.read_text(encoding="utf-8")))
            if other_words[2:3] == words[2:3]:
                yield f"header: Run: {words[2]} is the output of {other.name}; name another folder"
    if has_adapter != ("--lora-merge-cache" in words):
        verb = "add" if has_adapter else "drop"
        why = "are for recipes with adapters, whose merged copies mergekit writes there"
        yield f"header: Run: {verb} --lora-merge-cache FOLDER; such options {why}"


def _needs_problems(needs: str, document: Mapping[str, Any]) -> Iterator[str]:
    if not re.search(r"\d+ [GM]B of disk", needs):
        yield "header: Needs: say how much disk the merge takes, as in: Up to 80 GB of disk"
    parts = dict.fromkeys(p for name in named_models(document) for p in name.split("+"))
    for part in parts:
        if is_hub_id(part) and part.partition("@")[0] not in needs:
            yield f"header: Needs: does not name the model {part}"
        if not is_hub_id(part) and not part.startswith(("./", "runs/")):
            yield f"{part}: write a hub id, or a folder that begins with ./ or runs/"
        if part.startswith("runs/pocket/") and "layerswap pocket build" not in needs:
            yield f"header: Needs: say that `layerswap pocket build` makes {part}"


def _expected_problems(expected: str) -> Iterator[str]:
    """Yield what a header claims beyond what the paper's tables have."""
    if not re.search(r"not measured by us", expected, re.IGNORECASE):
        yield 'header: Expected: write "not measured by us" where nobody ran the recipe'
    text = re.sub(r"arXiv \d+\.\d+|section \d\.\d", "", expected)
    figures = set(re.findall(r"\d+\.\d+", text))
    if not figures:
        return
    sources = set(re.findall(r"Table \d", text))
    tables = [t for t in published_tables()["tables"].values() if t["source"] in sources]
    rows = [row["values"] for t in tables for row in t["rows"] if row["name"].split()[0] in text]
    unknown = sorted(figures - {f"{value:.1f}" for values in rows for value in values})
    if unknown:
        yield (
            f"header: Expected: {', '.join(unknown)}: name the paper's table and row that has it, "
            "or leave it out"
        )
