"""Whose tokenizer and chat template a study needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from ablations.engines.chat import has_template, has_tokenizer
from ablations.models.find import Expert
from ablations.study.cells import Expansion
from ablations.study.documents import unmerged
from ablations.study.schema import Study

_TOKENIZERS = ("tokenizer", "tokenizer_source", "chat_template")
"""Keys of a recipe that make a tokenizer of its own for the merge."""


def template_folders(expansion: Expansion, experts: Mapping[str, Expert]) -> list[Path]:
    """Return the folders whose tokenizers the models of a study bring.

    A merge brings that of its base model. One whose recipe makes a tokenizer is left out: it is
    known when it is merged.
    """
    by_reference = {expert.reference: expert for expert in experts.values()}
    folders = []
    for cell in expansion.cells:
        reference = unmerged(cell.merge)
        if reference is None and not any(cell.merge.get(key) for key in _TOKENIZERS):
            reference = cell.merge.get("base_model")
        expert = by_reference.get(str(reference))
        if expert is not None:
            folders.append(expert.folder)
    return list(dict.fromkeys(folders))


def tokenizer_problems(expansion: Expansion, experts: Mapping[str, Expert]) -> Iterator[str]:
    """Yield which models have no tokenizer and need one: the base, and those asked as they are."""
    base = next(iter(experts.values())).folder
    needed = {base, *template_folders(expansion, experts)}
    for folder in dict.fromkeys(expert.folder for expert in experts.values()):
        if folder in needed and not has_tokenizer(folder):
            names = ", ".join(n for n, expert in experts.items() if expert.folder == folder)
            yield (
                f"expert {names}: {folder} has no tokenizer files (tokenizer.json, or "
                "tokenizer.model, or vocab.json with merges.txt); copy those of the model that it "
                "was trained from into it"
            )


def chat_notes(study: Study, experts: Mapping[str, Expert]) -> Iterator[str]:
    """Yield which models may be asked otherwise than they were trained to be."""
    base = study.experts.base if len(experts) > 1 else None
    if study.evaluate.is_chat:
        if base is not None and "base" in study.baseline:
            yield (
                f"{base} is the base and is asked with a chat template: unless it was trained on "
                "chats, its scores say little about what it knows"
            )
        return
    chatty = [n for n, each in experts.items() if n != base and has_template(each.folder)]
    if chatty:
        verb = "has" if len(chatty) == 1 else "have"
        yield (
            f"{', '.join(chatty)} {verb} a chat template and no prompt is written with it: if "
            f"{'it was' if len(chatty) == 1 else 'they were'} trained on chats, set "
            "evaluate.apply_chat_template: true (--apply-chat-template)"
        )
