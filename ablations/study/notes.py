"""Notes of a plan on its merges and models, and which models lack a tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ablations.engines.chat import has_template, has_tokenizer
from ablations.models.find import Expert
from ablations.study.cells import Cell
from ablations.study.documents import unmerged
from ablations.study.schema import Study
from layerswap_method.checkpoint.checkpoint import read_checkpoint

_TOKENIZERS = ("tokenizer", "tokenizer_source", "chat_template")
"""Keys of a recipe that make a tokenizer of its own for the merge."""


def template_folders(cells: Iterable[Cell], experts: Mapping[str, Expert]) -> list[Path]:
    """Return the folders whose tokenizers the models of a study bring.

    A merge brings that of its base model. One whose recipe makes a tokenizer is left out: it is
    known when it is merged.
    """
    by_reference = {expert.reference: expert.folder for expert in experts.values()}
    folders = dict[Path, None]()
    for cell in cells:
        reference = unmerged(cell.merge)
        if reference is None and not any(cell.merge.get(key) for key in _TOKENIZERS):
            reference = cell.merge.get("base_model")
        if (folder := by_reference.get(str(reference))) is not None:
            folders[folder] = None
    return list(folders)


def tokenizer_problems(cells: Iterable[Cell], experts: Mapping[str, Expert]) -> Iterator[str]:
    """Yield which models have no tokenizer and need one: the base, and unmerged ones."""
    base = next(iter(experts.values())).folder
    for folder in dict.fromkeys([base, *template_folders(cells, experts)]):
        if not has_tokenizer(folder):
            names = ", ".join(n for n, expert in experts.items() if expert.folder == folder)
            yield (
                f"expert {names}: {folder} has no tokenizer files (tokenizer.json, or "
                "tokenizer.model, or vocab.json with merges.txt); copy those of the model that it "
                "was trained from into it"
            )


def equal_weights(groups: Iterable[Sequence[Cell]]) -> Iterator[str]:
    """Yield which cells are one model."""
    for cells in groups:
        if len(cells) > 1:
            yield f"the same weights, evaluated once: {'; '.join(cell.label for cell in cells)}"


def chat_notes(study: Study, experts: Mapping[str, Expert]) -> Iterator[str]:
    """Yield which models may get other prompts than they were trained on."""
    base = study.experts.base if len(experts) > 1 else None
    if study.evaluate.is_chat:
        if base is not None and "base" in study.baseline:
            yield (
                f"{base} is the base and is prompted with a chat template: unless it was "
                "trained on "
                "chats, its scores say little about what it knows"
            )
    elif chatty := [n for n, each in experts.items() if n != base and has_template(each.folder)]:
        yield (
            f"no prompt is written with a chat template, and there is one in {', '.join(chatty)}: "
            "for models that were trained on chats set evaluate.apply_chat_template: true "
            "(layerswap evaluate: --set apply_chat_template=true)"
        )


def rounded(experts: Mapping[str, Expert], dtype: str) -> Iterator[str]:
    """Yield which experts are stored in more digits than all models run in.

    Args:
        experts: by name, the base first.
        dtype: of the base, in which everything runs by default.
    """
    if dtype not in ("bfloat16", "float16"):
        return
    stored = {
        name: read_checkpoint(name, expert.folder).dtype
        for name, expert in experts.items()
        if expert.adapter is None
    }
    if others := {name: each for name, each in stored.items() if each not in (None, dtype)}:
        yield (
            f"{', '.join(others)}: stored in {' and '.join(sorted(set(map(str, others.values()))))}"
            f"; all models run in {dtype} as the base {next(iter(experts))}, with rounded weights; "
            "--dtype float32 (evaluate.options.dtype) keeps them as stored"
        )
